"""Run torch_xla's own operators on devices for which upstream has no kernel.

``torch_xla.experimental.custom_kernel`` has kernels for TPUs, as functions and as operators,
``torch.ops.xla.<name>``. With CPU and CUDA tensors, upstream's operators return uninitialized
memory; with XLA tensors on a CPU or a GPU they require JAX. Here each of them runs a kernel of this
wheel, or PyTorch operations, so that code for TPUs runs unchanged. On TPUs, upstream's functions
run.

When a program imports upstream's module, its functions are replaced and kernels are registered for
its operators (torch_xla_ext_startup.upstream_fixes). torch_xla itself does not import it.
"""

import functools
from collections.abc import Callable
from types import ModuleType

import torch
import torch_xla

from torch_xla_ext.custom_kernel import grouped_matmul
from torch_xla_ext.custom_kernel.flash_attention import flash_attention
from torch_xla_ext.registry.platforms import platform_of

_LIBRARY = torch.library.Library("xla", "IMPL")

_Function = Callable[..., torch.Tensor]


def function_of_any_device(original: _Function) -> _Function:
    """Return a replacement for a function of upstream's module that works without a TPU."""
    return _dispatching(original, _functions()[original.__name__])


def _functions() -> dict[str, _Function]:
    from torch_xla.experimental import custom_kernel as module

    return {
        "flash_attention": flash_attention,
        "gmm": grouped_matmul.gmm,
        "multi_queries_paged_attention": functools.partial(_multi_queries_paged_attention, module),
        "paged_attention": functools.partial(_paged_attention, module),
        "quantized_matmul_int8": _quantized_matmul_int8,
        "ragged_paged_attention": functools.partial(_ragged_paged_attention, module),
        "tgmm": grouped_matmul.tgmm,
    }


def register() -> None:
    """Register kernels, for devices other than TPUs, for the operators of upstream's module."""
    from torch_xla.experimental import custom_kernel as module

    for name in _functions():
        # Upstream's implementation for XLA tensors calls the replaced function. It must run above
        # autograd; below, the function's gradient is lost, with a warning.
        if (operator := getattr(module, name + "_xla", None)) is not None:
            for key in ("CPU", "CUDA", "AutogradCPU", "AutogradCUDA", "AutogradXLA"):
                _LIBRARY.impl(name, operator, key)


def _is_ours(device: torch.device) -> bool:
    """Return whether a device is a CPU or a GPU, of XLA or of PyTorch."""
    if device.type == "xla":
        return platform_of(torch_xla.runtime.device_type()) is not None
    return platform_of(device.type.upper()) is not None


def _dispatching(upstream: _Function, ours: _Function) -> _Function:
    """Return a function that runs `ours` unless its first tensor is on a TPU."""

    @functools.wraps(upstream)
    def function(*args: object, **kwargs: object) -> torch.Tensor:
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.Tensor):
                called = ours if _is_ours(value.device) else upstream
                return called(*args, **kwargs)
        return upstream(*args, **kwargs)

    return function


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
    """Run upstream's reference, which reads the lengths on the host."""
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
    """Run _multi_queries_paged_attention with one query per sequence.

    q is [batch_size, num_heads, head_dim].
    """
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
    """Run this wheel's kernel, or upstream's reference; `tuning` is for the TPU's kernel."""
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
    """Multiply by an int8 matrix; the last four arguments are for the TPU's kernel."""
    return grouped_matmul.quantized_matmul_int8(
        x, w, scalar, zero_point, quant_block_size, quantize_activation
    )
