"""torch_xla's own operators on the devices for which upstream has no kernel.

``torch_xla.experimental.custom_kernel`` has kernels for TPUs, as functions and as operators,
``torch.ops.xla.<name>``. With CPU and CUDA tensors upstream's operators return memory that nobody
has written to; with XLA tensors on a CPU or a GPU they ask for JAX. Here each of them runs a kernel
of this wheel, or torch's own operations, so that code for TPUs runs unchanged. On TPUs everything
is upstream's.

The functions are replaced when their module is imported (torch_xla_ext_plugin), which torch_xla
does not do by itself.
"""

import functools
from collections.abc import Callable
from types import ModuleType

import torch
import torch_xla

from torch_xla_ext import products, vllm_operators

# XLA's device types that are no TPUs, and torch's own.
_XLA_DEVICE_TYPES = ("CPU", "CUDA")
_DEVICE_TYPES = ("cpu", "cuda")
_LIBRARY = torch.library.Library("xla", "IMPL")

_Function = Callable[..., torch.Tensor]


def replace(module: ModuleType) -> None:
    """Replaces the functions of torch_xla.experimental.custom_kernel, once."""
    if getattr(module.paged_attention, "_torch_xla_ext", False):
        return
    vllm_operators.define(module.XLA_LIB, _is_ours)
    functions: dict[str, _Function] = {
        "flash_attention": _flash_attention,
        "gmm": products.gmm,
        "multi_queries_paged_attention": functools.partial(_multi_queries_paged_attention, module),
        "paged_attention": functools.partial(_paged_attention, module),
        "quantized_matmul_int8": _quantized_matmul_int8,
        "ragged_paged_attention": functools.partial(_ragged_paged_attention, module),
        "tgmm": products.tgmm,
    }
    for name, function in functions.items():
        setattr(module, name, _dispatching(getattr(module, name), function))
        # Upstream's implementation for XLA tensors calls the function that is replaced. It has to
        # run above autograd, too: below it, the gradient of what it calls is lost with a warning.
        if (operator := getattr(module, name + "_xla", None)) is not None:
            for key in ("CPU", "CUDA", "AutogradCPU", "AutogradCUDA", "AutogradXLA"):
                _LIBRARY.impl(name, operator, key)


def _is_ours(device: torch.device) -> bool:
    if device.type == "xla":
        return torch_xla.runtime.device_type() in _XLA_DEVICE_TYPES
    return device.type in _DEVICE_TYPES


def _dispatching(upstream: _Function, ours: _Function) -> _Function:
    """`ours` where there is no TPU. The first tensor says on what device it runs."""

    @functools.wraps(upstream)
    def function(*args: object, **kwargs: object) -> torch.Tensor:
        tensors = (v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor))
        first = next(tensors, None)
        called = upstream if first is None or not _is_ours(first.device) else ours
        return called(*args, **kwargs)

    function._torch_xla_ext = True

    return function


def _flash_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool = False,
    q_segment_ids: torch.Tensor | None = None,
    kv_segment_ids: torch.Tensor | None = None,
    sm_scale: float = 1.0,
    *,
    ab: torch.Tensor | None = None,
    partition_spec: object = None,
    mesh: object = None,
) -> torch.Tensor:
    """Dense attention by torch's operators, as upstream's documentation defines it.

    Args:
        q: [batch_size, num_heads, q_seq_len, head_dim].
        k, v: [batch_size, num_heads, kv_seq_len, head_dim].
        causal: query i sees keys 0 to i.
        q_segment_ids, kv_segment_ids: [batch_size, q_seq_len] and [batch_size, kv_seq_len]; a query
            sees the keys of its own segment.
        sm_scale: what the products of q and k are multiplied by.
        ab: [batch_size, num_heads, q_seq_len, kv_seq_len], added to the products before that.
        partition_spec, mesh: how a TPU's kernel is sharded. XLA shards these operators by itself.
    """
    if (q_segment_ids is None) != (kv_segment_ids is None):
        raise ValueError("flash_attention: give both q_segment_ids and kv_segment_ids, or neither")
    logits = torch.einsum("...qd,...kd->...qk", q.float(), k.float())
    if ab is not None:
        logits = logits + ab
    logits = logits * sm_scale
    hidden = None
    if q_segment_ids is not None and kv_segment_ids is not None:
        hidden = (q_segment_ids.unsqueeze(-1) != kv_segment_ids.unsqueeze(-2)).unsqueeze(-3)
    if causal:
        rows = torch.arange(q.shape[-2], device=q.device).unsqueeze(-1)
        later = rows < torch.arange(k.shape[-2], device=q.device)
        hidden = later if hidden is None else hidden | later
    if hidden is not None:
        # Finite, as upstream's: a query that sees no key gets the mean of the values.
        logits = logits.masked_fill(hidden, -0.7 * torch.finfo(torch.float32).max)
    return torch.einsum("...qk,...kd->...qd", logits.softmax(-1), v.float()).to(q.dtype)


def _multi_queries_paged_attention(
    module: ModuleType,
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    lengths: torch.Tensor,
    page_indices: torch.Tensor,
    effective_q_lens: torch.Tensor,
    num_kv_pages_per_compute_block: int,
    num_queries_per_compute_block: int,
    use_kernel: bool = True,
    attn_logits_soft_cap: float | None = None,
) -> torch.Tensor:
    """Upstream's own reference. It reads the lengths on the host."""
    return module._multi_queries_paged_attention_nonkernel(
        q, k_pages, v_pages, lengths, page_indices, effective_q_lens.cpu(), attn_logits_soft_cap
    )


def _paged_attention(
    module: ModuleType,
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    lengths: torch.Tensor,
    page_indices: torch.Tensor,
    pages_per_compute_block: int,
    megacore_mode: str | None = None,
    attn_logits_soft_cap: float | None = None,
) -> torch.Tensor:
    """The same of one query a sequence: q is [batch_size, num_heads, head_dim]."""
    ones = torch.ones(q.shape[0], dtype=torch.int32)
    attended = module._multi_queries_paged_attention_nonkernel(
        q.unsqueeze(1), k_pages, v_pages, lengths, page_indices, ones, attn_logits_soft_cap
    )
    return attended.squeeze(1)


def _ragged_paged_attention(
    module: ModuleType,
    q: torch.Tensor,
    kv_pages: torch.Tensor,
    kv_lens: torch.Tensor,
    page_indices: torch.Tensor,
    cu_q_lens: torch.Tensor,
    num_seqs: torch.Tensor,
    *,
    sm_scale: float = 1.0,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    mask_value: float | None = None,
    k_scale: float | None = None,
    v_scale: float | None = None,
    use_kernel: bool = True,
    **tuning: int | None,
) -> torch.Tensor:
    """The kernel of this wheel, or upstream's reference. `tuning` is about the TPU's kernel."""
    tensors = (q, kv_pages, kv_lens, page_indices, cu_q_lens, num_seqs)
    if use_kernel:
        return torch.ops.xla_gpu.ragged_paged_attention(
            *tensors, sm_scale, sliding_window, soft_cap, mask_value, k_scale, v_scale
        )
    return module._ragged_paged_attention_nonkernel(
        *tensors,
        k_scale,
        v_scale,
        sm_scale=sm_scale,
        sliding_window=sliding_window,
        soft_cap=soft_cap,
        mask_value=module.DEFAULT_MASK_VALUE if mask_value is None else mask_value,
    )


def _quantized_matmul_int8(
    x: torch.Tensor,
    w: torch.Tensor,
    scalar: torch.Tensor,
    zero_point: torch.Tensor | None = None,
    quant_block_size: torch.Tensor | None = None,
    quantize_activation: bool = False,
    batch_block_size: int | None = None,
    out_block_size: int | None = None,
    in_block_size: int | None = None,
    vmem_limit_bytes: int | None = None,
) -> torch.Tensor:
    """The last four are about the TPU's kernel."""
    return products.quantized_matmul_int8(
        x, w, scalar, zero_point, quant_block_size, quantize_activation
    )
