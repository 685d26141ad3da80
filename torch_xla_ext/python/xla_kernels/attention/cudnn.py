"""Dense attention with cuDNN, called by XLA:GPU: ``torch.ops.xla_gpu.cudnn_attention``.

XLA:GPU implements the targets ``__cudnn$fmha…``. A call's last result is a workspace. The calls are
the same as those that JAX makes for ``jax.nn.dot_product_attention(implementation="cudnn")``
(jax/_src/cudnn/fused_attention_stablehlo.py).

The operands are [batch_size, seq_len, num_heads, head_dim], as projections to heads write them;
[batch_size, num_heads, seq_len, head_dim] would need a copy of each before the call. The results
have cuDNN's order, heads first.
"""

import json
from collections.abc import Mapping, Sequence

import torch
from torch.autograd.function import FunctionCtx

from xla_kernels.operator.checked import Result
from xla_kernels.operator.define import define_operator
from xla_kernels.operator.tensor_checks import Value
from xla_kernels.plugin import driver
from xla_kernels.references import register_reference
from xla_kernels.traits import Traits

DTYPES = {torch.float16: "F16", torch.bfloat16: "BF16"}
HEAD_DIM_MULTIPLE = 8


# The largest supported head_dim; until `look_at_gpu` is called, the one that every GPU supports.
max_head_dim = 128


def look_at_gpu() -> None:
    """Set the limits for this GPU. Call this after the client is created."""
    global max_head_dim
    try:
        max_head_dim = 256 if driver.compute_capability() == 90 else 128
    except RuntimeError:  # a plug-in on a machine without a GPU, in tests
        max_head_dim = 128


_LOGITS_BATCH = ("0", "1")  # of the logits, [batch_size, num_heads, q_seq_len, kv_seq_len]
_Side = tuple[tuple[str, str], str]
_Products = Mapping[str, tuple[_Side, _Side]]


# For each side of a product: the batch dimensions and the contracting one.
_HEADS: _Side = (("0", "2"), "3")
_SUMMED: _Side = (("0", "2"), "1")
_FORWARD_PRODUCTS: _Products = {"bmm1": (_HEADS, _HEADS), "bmm2": ((_LOGITS_BATCH, "3"), _SUMMED)}
_BACKWARD_PRODUCTS: _Products = {
    "bmm1_grad_gemm1": ((_LOGITS_BATCH, "2"), _SUMMED),
    "bmm1_grad_gemm2": ((_LOGITS_BATCH, "3"), _SUMMED),
    "bmm2_grad_gemm1": ((_LOGITS_BATCH, "2"), _SUMMED),
    "bmm2_grad_gemm2": (_HEADS, _HEADS),
}


def _swapped(tensor: torch.Tensor) -> torch.Tensor:
    """Swap the dimensions of heads and sequence."""
    return tensor.transpose(1, 2)


def _check(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bias: torch.Tensor | None = None,
    **others: Value,
) -> None:
    name = "xla_gpu::cudnn_attention"
    if q.dtype not in DTYPES:
        raise TypeError(f"{name}: q must be float16 or bfloat16, but is {q.dtype}")
    if q.dim() != 4 or q.shape[3] > max_head_dim or q.shape[3] % HEAD_DIM_MULTIPLE:
        raise ValueError(
            f"{name}: q must be [batch_size, q_seq_len, num_heads, head_dim], head_dim a multiple "
            f"of {HEAD_DIM_MULTIPLE} up to {max_head_dim}, but is {list(q.shape)}"
        )
    batch_size, q_seq_len, num_heads, head_dim = q.shape
    kv_seq_len, num_kv_heads = k.shape[1:3] if k.dim() == 4 else (0, 1)
    if num_kv_heads == 0 or num_heads % num_kv_heads:
        raise ValueError(
            f"{name}: q's {num_heads} heads must be a multiple of k's, which has {num_kv_heads}"
        )
    expected = {"k": (k, [batch_size, kv_seq_len, num_kv_heads, head_dim])}
    expected["v"] = (v, expected["k"][1])
    if bias is not None:
        sizes = [
            size if bias.dim() == 4 and bias.shape[i] != 1 else 1
            for i, size in enumerate((batch_size, num_heads))
        ]
        expected["bias"] = (bias, [*sizes, q_seq_len, kv_seq_len])
    for label, (tensor, shape) in expected.items():
        if tensor.dtype != q.dtype:
            raise TypeError(f"{name}: {label} must be {q.dtype}, as q is, but is {tensor.dtype}")
        if list(tensor.shape) != shape:
            raise ValueError(f"{name}: {label} must be {shape}, but is {list(tensor.shape)}")


def _payload(
    q: torch.Tensor, k: torch.Tensor, causal: bool, sm_scale: float, products: _Products
) -> bytes:
    dimensions = [str(q.shape[0]), str(q.shape[2]), str(q.shape[1]), str(k.shape[1])]
    config = {
        "algorithm": {
            "algo_id": "0",
            "math_type": "TENSOR_OP_MATH",
            "tuning_knobs": {"17": "1", "24": "0"},
            "is_cudnn_frontend": True,
            "workspace_size": "0",
        },
        "fmha_scale": sm_scale,
        "intermediate_tensor_shape": {
            "element_type": DTYPES[q.dtype],
            "dimensions": dimensions,
            "layout": {"minor_to_major": ["3", "2", "1", "0"]},
            "is_dynamic_dimension": [False] * 4,
        },
        "is_flash_attention": True,
        "mask_type": "CAUSAL" if causal else "NO_MASK",
        "dropout_rate": 0.0,
        "seed": 42,
        "sliding_window_length": 0,
        "max_seg_per_batch": 1,
        "is_paged_attention": False,
    }
    for name, sides in products.items():
        config[f"{name}_dot_dimension_numbers"] = {
            f"{side}_{kind}_dimensions": dimensions
            for side, (batch, contracting) in zip(("lhs", "rhs"), sides, strict=True)
            for kind, dimensions in (("batch", batch), ("contracting", (contracting,)))
        }
    return json.dumps({"operation_queue_id": "0", "cudnn_fmha_backend_config": config}).encode()


def _repeated(k: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return k.repeat_interleave(q.shape[1] // k.shape[1], 1)


def _config(attributes: Mapping[str, object]) -> dict[str, object]:
    """Return the configuration in the payload of a call."""
    return json.loads(attributes["payload"])["cudnn_fmha_backend_config"]


def _in_float(inputs: Sequence[torch.Tensor], bias: int) -> list[torch.Tensor]:
    """Return float32 operands; q, k and v as [batch_size, num_heads, seq_len, head_dim]."""
    return [
        _swapped(each.float()) if each.dim() == 4 and number != bias else each.float()
        for number, each in enumerate(inputs)
    ]


def _logits(
    q: torch.Tensor, k: torch.Tensor, bias: torch.Tensor | None, attributes: Mapping[str, object]
) -> torch.Tensor:
    config = _config(attributes)
    logits = q @ _repeated(k, q).mT * config["fmha_scale"]
    if bias is not None:
        logits = logits + bias
    if config["mask_type"] == "CAUSAL":
        ones = torch.ones(logits.shape[-2:], dtype=torch.bool, device=q.device)
        logits = logits.masked_fill(ones.triu(1), float("-inf"))
    return logits


def _reference(
    inputs: Sequence[torch.Tensor], outputs: Sequence[Result], attributes: Mapping[str, object]
) -> list[torch.Tensor]:
    q, k, v, *bias = _in_float(inputs, 3)
    logits = _logits(q, k, bias[0] if bias else None, attributes)
    result = logits.softmax(-1) @ _repeated(v, q)
    return [result.to(inputs[0].dtype), logits.logsumexp(-1), _no_workspace(inputs[0])]


def _backward_reference(
    inputs: Sequence[torch.Tensor], outputs: Sequence[Result], attributes: Mapping[str, object]
) -> list[torch.Tensor]:
    place_of_bias = 5 if len(inputs) == 7 else -1
    q, k, v, stats, grad, *bias, result = _in_float(inputs, place_of_bias)
    logits = _logits(q, k, bias[0] if bias else None, attributes)
    weights = (logits - stats.unsqueeze(-1)).exp()
    inner = (grad * result).sum(-1, keepdim=True)
    grad_of_logits = weights * (grad @ _repeated(v, q).mT - inner)
    grad_of_products = grad_of_logits * _config(attributes)["fmha_scale"]
    grad_of_q = grad_of_products @ _repeated(k, q)
    grads = [
        grad_of_heads.unflatten(1, (k.shape[1], -1)).sum(2)
        for grad_of_heads in (grad_of_products.mT @ q, weights.mT @ grad)
    ]
    dtype = inputs[0].dtype
    return [*(each.to(dtype) for each in (grad_of_q, *grads)), _no_workspace(inputs[0])]


def _no_workspace(q: torch.Tensor) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=q.device)


_WORKSPACE: Result = ([0], torch.uint8)


def _results(q: torch.Tensor, **others: Value) -> Sequence[Result]:
    shape = _swapped(q).shape
    return [(shape, q.dtype), (shape[:3], torch.float32), _WORKSPACE]


def _backward_results(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **others: Value
) -> Sequence[Result]:
    return [*((_swapped(tensor).shape, q.dtype) for tensor in (q, k, v)), _WORKSPACE]


def _forward_payload(
    q: torch.Tensor, k: torch.Tensor, causal: bool, sm_scale: float, **others: Value
) -> bytes:
    return _payload(q, k, causal, sm_scale, _FORWARD_PRODUCTS)


def _backward_payload(
    q: torch.Tensor, k: torch.Tensor, causal: bool, sm_scale: float, **others: Value
) -> bytes:
    return _payload(q, k, causal, sm_scale, _BACKWARD_PRODUCTS)


def _setup_context(
    ctx: FunctionCtx, inputs: tuple[Value, ...], output: tuple[torch.Tensor, torch.Tensor]
) -> None:
    *tensors, ctx.causal, ctx.sm_scale = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.mark_non_differentiable(output[1])


def _backward(
    ctx: FunctionCtx, grad: torch.Tensor, grad_of_stats: torch.Tensor
) -> tuple[torch.Tensor | None, ...]:
    q, k, v, *bias, result, stats = ctx.saved_tensors
    operator = _backward_with_bias if bias else _backward_operator
    grad, result = _swapped(grad), _swapped(result)
    grads = operator(q, k, v, stats, grad, *bias, result, ctx.causal, ctx.sm_scale)
    return (*map(_swapped, grads), *(None for _ in bias), None, None)


_ATTRIBUTES = "bool causal, float sm_scale"


def _sharding_rule(bias: torch.Tensor | None = None, **others: Value) -> str:
    """Return the sharding rule, in which g query heads share each of k kv heads."""
    q, kv = "b _ (k g) _", "b _ k _"
    return f"{q}, {kv}, {kv}{_bias_rule(bias)} -> b (k g) _ _, b (k g) _"


def _backward_sharding_rule(bias: torch.Tensor | None = None, **others: Value) -> str:
    q, kv = "b _ (k g) _", "b _ k _"
    operands = f"{q}, {kv}, {kv}, b (k g) _, {q}{_bias_rule(bias)}, {q}"
    return f"{operands} -> b (k g) _ _, b k _ _, b k _ _; sum g"


def _bias_rule(bias: torch.Tensor | None) -> str:
    if bias is None:
        return ""
    batch_size, num_heads = bias.shape[:2]
    return f", {'_' if batch_size == 1 else 'b'} {'_' if num_heads == 1 else '(k g)'} _ _"


def _traits(results: Sequence[int]) -> Traits:
    """Return the traits of calls with results [batch_size, num_heads, seq_len, head_dim].

    cuDNN can write any layout. This one has the sequence before the heads, as the matmul after
    attention needs it.
    """
    return Traits(
        built_in=True,
        result_layouts=dict.fromkeys(results, (0, 2, 1, 3)),
        num_hidden_results=1,
        runs_first_alone=True,  # XLA captures cuDNN's graphs while it loads them
    )


def _define(bias: str, target: str, name: str) -> tuple[torch._ops.OpOverload, ...]:
    """Define the operator ``name`` and its gradient; `bias` is "" or its declaration."""
    register_reference(target, _reference)
    register_reference(f"{target}Backward", _backward_reference)
    forward = define_operator(
        f"xla_gpu::{name}(Tensor q, Tensor k, Tensor v, {bias}{_ATTRIBUTES}) -> (Tensor, Tensor)",
        target=target,
        check=_check,
        results=_results,
        payload=_forward_payload,
        traits=_traits([0]),
        setup_context=_setup_context,
        backward=_backward,
        environment=(),
        sharding_rule=_sharding_rule,
    )
    backward = define_operator(
        f"xla_gpu::{name}_backward(Tensor q, Tensor k, Tensor v, Tensor stats, Tensor grad, "
        f"{bias}Tensor result, {_ATTRIBUTES}) -> (Tensor, Tensor, Tensor)",
        target=f"{target}Backward",
        check=_check,
        results=_backward_results,
        payload=_backward_payload,
        traits=_traits([0, 1, 2]),
        environment=(),
        sharding_rule=_backward_sharding_rule,
    )
    return forward, backward


_operator, _backward_operator = _define("", "__cudnn$fmhaSoftmax", "cudnn_attention")
_operator_with_bias, _backward_with_bias = _define(
    "Tensor bias, ", "__cudnn$fmhaScaleBiasSoftmax", "cudnn_attention_with_bias"
)


def cudnn_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,
    sm_scale: float,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute ``softmax(sm_scale * q @ k.mT + bias) @ v`` on a CUDA device of XLA.

    Args:
        q: [batch_size, num_heads, q_seq_len, head_dim], float16 or bfloat16.
        k, v: [batch_size, num_kv_heads, kv_seq_len, head_dim], of q's dtype; num_heads is a
            multiple of num_kv_heads.
        causal: query i sees keys 0 to i.
        bias: [batch_size or 1, num_heads or 1, q_seq_len, kv_seq_len], of q's dtype, finite. It
            receives no gradient.

    Returns:
        A tensor with q's shape and dtype. It has a first derivative only.

    Raises:
        TypeError, ValueError: an operand has an unsupported dtype or shape.
        NotImplementedError: q is not on an XLA device.
    """
    q, k, v = map(_swapped, (q, k, v))
    if bias is None:
        return _operator(q, k, v, causal, sm_scale)[0]
    return _operator_with_bias(q, k, v, bias, causal, sm_scale)[0]
