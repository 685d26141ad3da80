"""MoE (mixture of experts) layers: a router chooses the experts that compute each token.

This is plain PyTorch around the kernels of group_rows and grouped_matmul.
"""

from collections.abc import Callable

import torch
from torch.autograd.function import FunctionCtx
from torch.nn import functional

from .grouped_matmul import (
    mx_grouped_linear,
    mx_grouped_linear_sum,
    scaled_grouped_linear,
    scaled_grouped_linear_sum,
)
from .quantize_rows import quantize_inputs

__all__ = ["fused_experts", "gather_rows", "rows_of_groups"]

Activation = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
# gpt-oss's activation: the sigmoid's factor, and the bound of its two operands.
_SWIGLU_ALPHA, _SWIGLU_LIMIT = 1.702, 7.0


def _swiglu_oai(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    gate, up = gate.clamp(max=_SWIGLU_LIMIT), up.clamp(-_SWIGLU_LIMIT, _SWIGLU_LIMIT)
    return (up + 1) * gate * torch.sigmoid(gate * _SWIGLU_ALPHA)


_ACTIVATIONS: dict[str, Activation] = {
    "silu": lambda gate, up: functional.silu(gate) * up,
    "gelu": lambda gate, up: functional.gelu(gate) * up,
    "gelu_tanh": lambda gate, up: functional.gelu(gate, approximate="tanh") * up,
    "swigluoai": _swiglu_oai,
}


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(x: torch.Tensor, index: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return x.index_select(0, index)

    @staticmethod
    def setup_context(
        ctx: FunctionCtx, inputs: tuple[torch.Tensor, ...], output: torch.Tensor
    ) -> None:
        x, index, places = inputs
        ctx.save_for_backward(index, places)
        ctx.num_rows = x.shape[0]

    @staticmethod
    def backward(ctx: FunctionCtx, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        index, places = ctx.saved_tensors
        if places.shape[0] == ctx.num_rows:
            return _Gather.apply(grad, places, index), None, None
        taken = grad.index_select(0, places).unflatten(0, (ctx.num_rows, -1))
        return taken.sum(1), None, None


def gather_rows(x: torch.Tensor, index: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Return ``x[index]``; its gradient is a gather and a sum, always in the same order.

    Args:
        x: [num_rows, ...].
        index: int32 [num_taken], in which each row occurs equally often.
        places: int32 [num_taken]: the indices of the first row's copies in the result, then the
            second row's, and so on.

    Example:
        >>> order, position, _ = torch.ops.xla_gpu.group_rows(torch.tensor([1, 0, 1]).int(), 2)
        >>> gather_rows(torch.tensor([[1.0], [2.0], [3.0]]), order, position).flatten()
        tensor([2., 1., 3.])
    """
    return _Gather.apply(x, index, places)


class _RowsOfGroups(torch.autograd.Function):
    @staticmethod
    def forward(values: torch.Tensor, groups: torch.Tensor, ranges: torch.Tensor) -> torch.Tensor:
        return values.index_select(0, groups)

    @staticmethod
    def setup_context(
        ctx: FunctionCtx, inputs: tuple[torch.Tensor, ...], output: torch.Tensor
    ) -> None:
        ctx.save_for_backward(inputs[2])

    @staticmethod
    def backward(ctx: FunctionCtx, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (ranges,) = ctx.saved_tensors
        ones = grad.new_ones(grad.shape[0], 1)
        return torch.ops.xla_gpu.grouped_outer(ones, grad, ranges).squeeze(1), None, None


def rows_of_groups(
    values: torch.Tensor, groups: torch.Tensor, ranges: torch.Tensor
) -> torch.Tensor:
    """Return for each row the values of its group, such as a bias: ``values[groups]``.

    Args:
        values: [num_groups, n], float16, bfloat16 or float32.
        groups: int32 [num_rows], in ascending order.
        ranges: int32 [num_groups, 2], the begin and end of each group's rows, for the gradient.

    Example:
        >>> groups, ranges = torch.tensor([0, 1, 1]).int(), torch.tensor([[0, 1], [1, 3]]).int()
        >>> rows_of_groups(torch.tensor([[1.0], [2.0]]), groups, ranges).flatten()
        tensor([1., 2., 2.])
    """
    return _RowsOfGroups.apply(values, groups, ranges)


def _cast(tensor: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    return None if tensor is None else tensor.to(dtype)


def fused_experts(
    x: torch.Tensor,
    weights: torch.Tensor,
    experts: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    *,
    activation: str | Activation = "silu",
    gate_up_bias: torch.Tensor | None = None,
    down_bias: torch.Tensor | None = None,
    gate_rows: int | None = None,
    transposed: bool = False,
    gate_up_scale: torch.Tensor | None = None,
    down_scale: torch.Tensor | None = None,
    input_scales: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor:
    """Compute an MoE layer: run each token through its own experts, and sum the results.

    A token's result is the sum of ``weight * down(act(gate(x), up(x)))`` over its experts. Only
    weights of chosen experts are read, and no shape depends on the choice. Tokens are sorted by
    expert, multiplied with `grouped_linear`, and summed with `grouped_linear_sum` or, if autograd
    records, with differentiable operations.

    Args:
        x: [num_tokens, hidden], float16, bfloat16 or float32. Under torch.autocast, `x` and the
            experts' weights are cast to its dtype.
        weights: [num_tokens, top_k], the router's weights.
        experts: [num_tokens, top_k], integers in ``range(num_experts)``, or num_experts for none,
            as from `choose_experts`. The weights of none must be 0.
        gate_up: [num_experts, 2 * inner, hidden], of the dtype of `x`, or float8_e4m3fn or MXFP4
            with scales; at most 1024 experts.
        down: [num_experts, hidden, inner], with a dtype as for `gate_up`.
        activation: "silu", "gelu", "gelu_tanh", "swigluoai", or a function of gate and up.
        gate_up_bias: [num_experts, 2 * inner].
        down_bias: [num_experts, hidden].
        gate_rows: how the rows of gate and up are interleaved in `gate_up`: so many rows of the
            gate, then as many of up, repeatedly. By default `inner`, all rows of the gate first; 1
            if rows alternate; a divisor of `inner` if several devices share the rows, so that each
            device has rows of both.
        transposed: `gate_up` is [num_experts, hidden, 2 * inner] and `down` [num_experts, inner,
            hidden].
        gate_up_scale, down_scale: float32 [num_experts, n_scales, k_scales], for float8_e4m3fn
            weights, as in `scaled_grouped_linear`; the inputs of both products are then rounded,
            too, by `quantize_inputs`. Or uint8, for MXFP4 weights, as in `mx_grouped_linear`. With
            scales the result has no derivatives.
        input_scales: float32 [] each, the scales of the inputs of both products; by default each
            row has its own scale, or its blocks do if the weights have blocks along k.

    Returns:
        [num_tokens, hidden], of the dtype of `x`, summed in float32. It is differentiable with
        respect to all floating-point tensors.

    Raises:
        TypeError, ValueError: an argument has an unsupported or mismatched dtype or shape.

    Example:
        >>> x = torch.randn(3, 16, device="xla")
        >>> gate_up = torch.randn(4, 64, 16, device="xla")
        >>> down = torch.randn(4, 16, 32, device="xla")
        >>> weights, experts = choose_experts(torch.randn(3, 4, device="xla"), top_k=2)
        >>> fused_experts(x, weights, experts, gate_up, down).shape
        torch.Size([3, 16])
    """
    if isinstance(activation, str):
        if activation not in _ACTIVATIONS:
            raise ValueError(
                f"fused_experts: expected an activation of {', '.join(_ACTIVATIONS)}, or a "
                f"function, but got {activation!r}"
            )
        activation = _ACTIVATIONS[activation]
    (num_tokens, top_k), num_experts = experts.shape, gate_up.shape[0]
    is_scaled = gate_up_scale is not None
    if is_scaled != (down_scale is not None) or (is_scaled and transposed):
        raise ValueError(
            "fused_experts: expected scales of both weights, and none if they are transposed"
        )
    of_gate_up, of_down = (None, None) if input_scales is None else input_scales
    result_dtype = x.dtype
    if torch.is_autocast_enabled(x.device.type):
        result_dtype = torch.get_autocast_dtype(x.device.type)
        x, gate_up_bias, down_bias = (
            _cast(tensor, result_dtype) for tensor in (x, gate_up_bias, down_bias)
        )
        if not is_scaled:
            gate_up, down = gate_up.to(result_dtype), down.to(result_dtype)
    is_mx = is_scaled and gate_up_scale.dtype != torch.float32
    inner = gate_up.shape[2 if transposed else 1] // 2
    product = torch.ops.xla_gpu.grouped_matmul if transposed else torch.ops.xla_gpu.grouped_linear
    given = (x, weights, gate_up, down, gate_up_bias, down_bias)
    is_recorded = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in given)

    flat = experts.flatten().int()
    order, position, ranges = torch.ops.xla_gpu.group_rows(flat, num_experts)
    token = order if top_k == 1 else order // top_k
    if is_mx:
        rows = x.index_select(0, token)
        both = mx_grouped_linear(rows, gate_up, gate_up_scale, ranges)
    elif is_scaled:
        numbers, scales = quantize_inputs(x, gate_up_scale.shape[2], of_gate_up)
        numbers, scales = numbers.index_select(0, token), scales.index_select(0, token)
        both = scaled_grouped_linear(numbers, gate_up, scales, gate_up_scale, ranges, x.dtype)
    else:
        both = product(gather_rows(x, token, position), gate_up, ranges)
    if gate_up_bias is not None:
        groups = flat.index_select(0, order).clamp(max=num_experts - 1)
        both = both + rows_of_groups(gate_up_bias, groups, ranges)
    if gate_rows is None or gate_rows == inner:
        gate, up = both.chunk(2, dim=-1)
    else:
        parts = both.unflatten(-1, (inner // gate_rows, 2, gate_rows))
        gate, up = parts[:, :, 0].flatten(1), parts[:, :, 1].flatten(1)
    activated = activation(gate, up)
    weights = weights.float()
    if is_scaled or not (is_recorded or transposed):
        position = position.view(num_tokens, top_k)
        if is_mx:
            result = mx_grouped_linear_sum(activated, down, down_scale, ranges, position, weights)
        elif is_scaled:
            numbers, scales = quantize_inputs(activated, down_scale.shape[2], of_down)
            result = scaled_grouped_linear_sum(
                numbers, down, scales, down_scale, ranges, position, weights, x.dtype
            )
        else:
            result = torch.ops.xla_gpu.grouped_linear_sum(
                activated, down, ranges, position, weights
            )
        if down_bias is None:
            return result
        result = result.float()
    else:
        products = gather_rows(product(activated, down, ranges), position, order)
        products = products.unflatten(0, (num_tokens, top_k)).float()
        result = (products * weights[..., None]).sum(1)
    if down_bias is not None:
        is_chosen = experts[..., None] == torch.arange(num_experts, device=x.device)
        of_experts = (weights[..., None] * is_chosen).sum(1)
        result = result + of_experts @ down_bias.float()
    return result.to(result_dtype)
