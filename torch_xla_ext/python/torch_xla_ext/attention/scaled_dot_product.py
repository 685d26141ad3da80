"""Run ``torch.nn.functional.scaled_dot_product_attention`` on XLA:GPU with cuDNN.

On XLA devices, PyTorch composes the operator from matmuls and a softmax, which keep all logits in
memory. Here it calls cuDNN's attention, forward and backward, if cuDNN computes the same result. A
single query (a decoding step) uses two 16-bit matmuls (one_query.py). Other calls run PyTorch's
composed operations.
"""

import contextlib
import math
from collections.abc import Iterator

import torch
import torch_xla
from torch._C import DispatchKey
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from torch_xla_ext.attention.one_query import attention_of_one_query
from xla_kernels.attention import cudnn
from xla_kernels.replacement import temporarily_replaced

_LIBRARY = torch.library.Library("aten", "IMPL")
_OPERATOR = torch.ops.aten.scaled_dot_product_attention.default
# The types that are served: torch's own, and those of torch.compile's traces.
_TENSORS = (torch.Tensor, torch.nn.Parameter, FakeTensor, FunctionalTensor)
_is_installed = False


def install() -> None:
    """Register the operator for XLA tensors once there is a client; later calls do nothing."""
    global _is_installed
    if not _is_installed:
        _is_installed = True
        cudnn.look_at_gpu()
        _LIBRARY.impl(_OPERATOR, _attention, "AutogradXLA")


@contextlib.contextmanager
def in_graphs_of_own_tensors() -> Iterator[None]:
    """Within a block, make torch.compile trace this operator for PyTorch's own tensors, too.

    PyTorch would otherwise choose a CPU or CUDA kernel, which XLA cannot run.
    """
    keys = [DispatchKey.AutogradCPU, DispatchKey.AutogradCUDA, DispatchKey.CPU, DispatchKey.CUDA]
    kernels = _OPERATOR.py_kernels | dict.fromkeys(keys, _attention)
    try:
        with temporarily_replaced(_OPERATOR, "py_kernels", kernels):
            _OPERATOR._dispatch_cache.clear()
            yield
    finally:
        _OPERATOR._dispatch_cache.clear()


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    if dropout_p == 0 and _is_supported(query, key, value, enable_gqa):
        if _is_one_query(query, key, value, attn_mask, is_causal):
            scale = 1 / math.sqrt(query.shape[3]) if scale is None else scale
            return attention_of_one_query(query, key, value, attn_mask, scale)
        if _is_fused(query, key, value, attn_mask, is_causal):
            return _fused(query, key, value, attn_mask, is_causal, scale)
    is_xlas = query.device.type == "xla"
    with contextlib.nullcontext() if is_xlas else sdpa_kernel(SDPBackend.MATH):
        return _OPERATOR.decompose(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )


def _is_supported(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, enable_gqa: bool
) -> bool:
    """Return whether cuDNN or one_query.py computes the same as PyTorch, whatever the mask."""
    if torch_xla.runtime.device_type() != "CUDA" or not _allows_fused_kernels():
        return False
    if type(query) not in _TENSORS:  # a subclass may compute anything
        return False
    if query.dtype not in cudnn.DTYPES or {key.dtype, value.dtype} != {query.dtype}:
        return False
    if query.dim() not in (3, 4) or {key.dim(), value.dim()} != {query.dim()}:
        return False
    if key.shape != value.shape or 0 in (*query.shape, *key.shape):
        return False
    *batch, num_heads, _, head_dim = (1, *query.shape)[-4:]
    *key_batch, num_kv_heads, _, key_head_dim = (1, *key.shape)[-4:]
    if batch != key_batch or head_dim != key_head_dim:
        return False
    return num_heads == num_kv_heads or (enable_gqa and num_heads % num_kv_heads == 0)


def _is_fused(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    is_causal: bool,
) -> bool:
    """Return whether cuDNN computes the same as PyTorch, and as fast.

    cuDNN's dropout has one seed for all calls in a program, and the mask's gradient costs another
    matmul. A single query (a decoding step) does not need a fused kernel.
    """
    head_dim = query.shape[-1]
    if query.shape[-2] == 1 or head_dim > cudnn.max_head_dim:
        return False
    if head_dim % cudnn.HEAD_DIM_MULTIPLE:
        return False
    return mask is None or _is_fused_mask(query, key, value, mask, is_causal)


def _is_fused_mask(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, is_causal: bool
) -> bool:
    if is_causal or mask.requires_grad or mask.dim() > 4 or mask.device != query.device:
        return False
    if mask.dtype not in (torch.bool, torch.float32, query.dtype):
        return False
    trains = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    # cuDNN's gradients with a bias need even lengths.
    return not (trains and (query.shape[-2] % 2 or key.shape[-2] % 2))


def _is_one_query(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    is_causal: bool,
) -> bool:
    if torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value)):
        return False
    # A single causal query sees only the first key, so one_query.py does not serve it.
    if query.dim() != 4 or query.shape[2] != 1 or is_causal:
        return False
    whole = (*query.shape[:3], key.shape[2])
    return mask is None or (
        mask.dim() == 4
        and mask.device == query.device
        and all(size in (1, wanted) for size, wanted in zip(mask.shape, whole, strict=True))
    )


def _allows_fused_kernels() -> bool:
    """Return False within ``torch.nn.attention.sdpa_kernel(SDPBackend.MATH)``."""
    backends = torch.backends.cuda
    return (
        backends.flash_sdp_enabled()
        or backends.mem_efficient_sdp_enabled()
        or backends.cudnn_sdp_enabled()
    )


def _fused(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    is_causal: bool,
    scale: float | None,
) -> torch.Tensor:
    if query.dim() == 3:
        mask = None if mask is None else mask.reshape((1,) * (4 - mask.dim()) + mask.shape)
        inputs = (tensor.unsqueeze(0) for tensor in (query, key, value))
        return _fused(*inputs, mask, is_causal, scale).squeeze(0)
    scale = 1 / math.sqrt(query.shape[3]) if scale is None else scale
    if mask is None:
        return cudnn.cudnn_attention(query, key, value, is_causal, scale)
    sees = mask if mask.dtype == torch.bool else mask > -math.inf
    lowest = 0.7 * torch.finfo(query.dtype).min
    if mask.dtype == torch.bool:
        bias = torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, lowest)
    else:
        bias = mask.clamp(min=lowest).to(query.dtype)
    sizes = (1,) * (4 - bias.dim()) + bias.shape
    bias = bias.reshape(sizes).expand(*sizes[:2], query.shape[2], key.shape[2])
    result = cudnn.cudnn_attention(query, key, value, False, scale, bias)
    # A query that sees no key: 0, as in PyTorch.
    return result.masked_fill(~sees.any(-1, keepdim=True), 0)
