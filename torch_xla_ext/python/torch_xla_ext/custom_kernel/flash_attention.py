"""Compute torch.ops.xla.flash_attention without a TPU: with cuDNN or PyTorch operations."""

import torch
import torch_xla

from xla_kernels.attention import cudnn


def flash_attention(
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
    """Compute dense attention, as upstream's documentation defines it.

    On XLA:GPU, cuDNN computes calls without segment ids and `ab` if `served_by_cudnn`, and never
    stores the logits. All other calls use PyTorch operations in float32, which store all logits.

    Args:
        q: [batch_size, num_heads, q_seq_len, head_dim].
        k, v: [batch_size, num_heads, kv_seq_len, head_dim].
        causal: query i sees keys 0 to i.
        q_segment_ids, kv_segment_ids: [batch_size, q_seq_len] and [batch_size, kv_seq_len]; a query
            sees the keys of its own segment. The result for a query that sees no key is the mean of
            the values.
        sm_scale: factor of the products of q and k.
        ab: the bias, [batch_size, num_heads, q_seq_len, kv_seq_len], added to the products of q and
            k before they are scaled.
        partition_spec, mesh: the sharding of the TPU kernel; ignored, because the tensors' own
            shardings apply here.
    """
    if (q_segment_ids is None) != (kv_segment_ids is None):
        raise ValueError("flash_attention: pass both q_segment_ids and kv_segment_ids, or neither")
    hidden = None
    if q_segment_ids is not None and kv_segment_ids is not None:
        hidden = (q_segment_ids.unsqueeze(-1) != kv_segment_ids.unsqueeze(-2)).unsqueeze(-3)
    if ab is None and hidden is None and served_by_cudnn(q, k, v):
        return cudnn.cudnn_attention(q, k, v, causal, sm_scale)
    return _by_torch(q, k, v, causal, hidden, sm_scale, ab)


def served_by_cudnn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> bool:
    """Return whether cuDNN computes the call.

    It does for float16 or bfloat16, a head_dim that is a multiple of 8 and at most 128 (256 on
    Hopper), and as many key heads as query heads.
    """
    if q.device.type != "xla" or torch_xla.runtime.device_type() != "CUDA":
        return False
    if q.dtype not in cudnn.DTYPES or {k.dtype, v.dtype} != {q.dtype}:
        return False
    if (q.dim(), k.dim()) != (4, 4) or k.shape != v.shape or 0 in (*q.shape, *k.shape):
        return False
    if q.shape[:2] != k.shape[:2] or q.shape[3] != k.shape[3]:
        return False
    head_dim = q.shape[3]
    return head_dim <= cudnn.max_head_dim and head_dim % cudnn.HEAD_DIM_MULTIPLE == 0


def _later(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Return the mask [q_seq_len, kv_seq_len] of keys that come after their queries."""
    rows = torch.arange(q.shape[-2], device=q.device).unsqueeze(-1)
    return rows < torch.arange(k.shape[-2], device=q.device)


def _by_torch(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,
    hidden: torch.Tensor | None,
    sm_scale: float,
    ab: torch.Tensor | None,
) -> torch.Tensor:
    logits = torch.einsum("...qd,...kd->...qk", q.float(), k.float())
    if ab is not None:
        logits = logits + ab
    logits = logits * sm_scale
    if causal:
        later = _later(q, k)
        hidden = later if hidden is None else hidden | later
    if hidden is not None:
        # Finite, as in upstream, so that the result for a query that sees no key is the values'
        # mean.
        logits = logits.masked_fill(hidden, -0.7 * torch.finfo(torch.float32).max)
    return torch.einsum("...qk,...kd->...qd", logits.softmax(-1), v.float()).to(q.dtype)
