"""Attention of prefill and decode tokens, mixed in one call, to a paged cache."""

import torch

from torch_xla_ext.debug import register_reference
from torch_xla_ext.operators import define_operator
from torch_xla_ext.operators.arguments import Value
from torch_xla_ext.ops import _paged, _paged_reference

__all__ = ["ragged_paged_attention"]

TARGET = "XlaGpuRaggedPagedAttention"
_NAME = "xla_gpu::ragged_paged_attention"
# A masked token's logit, in upstream's kernel. One of at most this has the probability 0 beside any
# sensible logit, which is what leaving the token out gives.
_MAX_MASK_VALUE = torch.finfo(torch.float16).min
# A context is split into parts of at least so many tokens; of sequences with one query the Hopper
# kernel makes at most so many parts. Their results are at most so many floats.
_MIN_PART_SIZE, _MAX_PARTS, _MAX_WORKSPACE_SIZE = 256, 64, 1 << 22
# Of the generic kernel: query rows of a tile, and as many thread blocks as any GPU runs at a time.
_TILE_ROWS, _MAX_BLOCKS = 64, 512


def _check(
    q: torch.Tensor,
    kv_pages: torch.Tensor,
    kv_lens: torch.Tensor,
    cu_q_lens: torch.Tensor,
    sm_scale: float,
    sliding_window: int | None,
    soft_cap: float | None,
    mask_value: float | None,
    k_scale: float | None,
    v_scale: float | None,
    **others: Value,
) -> None:
    if kv_pages.shape[2] % 2 != 0:
        raise ValueError(
            f"{_NAME}: kv_pages must have an even number of heads, dimension 2, keys and values in "
            f"turn, but has {kv_pages.shape[2]}"
        )
    _paged.require_attention(_NAME, "q", q, "kv_pages", kv_pages, kv_pages.shape[2] // 2)
    if cu_q_lens.shape[0] != kv_lens.shape[0] + 1:
        raise ValueError(
            f"{_NAME}: cu_q_lens must have the shape [max_num_seqs + 1], [{kv_lens.shape[0] + 1}], "
            f"but has {list(cu_q_lens.shape)}"
        )
    _paged.require_logit_options(_NAME, "sm_scale", sm_scale, sliding_window, soft_cap)
    if mask_value is not None and not mask_value <= _MAX_MASK_VALUE:
        raise ValueError(
            f"{_NAME}: mask_value must be None or at most {_MAX_MASK_VALUE}, by which masked "
            f"tokens take no part, but is {mask_value}"
        )
    _paged.require_scale(_NAME, "k_scale", k_scale, kv_pages)
    _paged.require_scale(_NAME, "v_scale", v_scale, kv_pages)


def _workspace(
    q: torch.Tensor,
    kv_pages: torch.Tensor,
    page_indices: torch.Tensor,
    **others: Value,
) -> dict[str, int]:
    """Counters, and where the kernels keep the parts of long contexts until they combine them.

    Any size is right: with 1, no context is split, and with less than this, some into fewer parts.
    """
    size = _generic_workspace(q, kv_pages, page_indices)
    if q.shape[2] == 128 and kv_pages.dtype == q.dtype:
        size = max(size, _hopper_workspace(q, kv_pages, page_indices))
    return {"workspace_size": size}


def _generic_workspace(q: torch.Tensor, kv_pages: torch.Tensor, page_indices: torch.Tensor) -> int:
    """Two parts for each thread block, each of the query rows of a tile and one kv head.

    They are a result, its maximum and its sum for each row, and 8 bytes more; beside them is a
    counter for each block.
    """
    num_tokens, num_q_heads, head_dim = q.shape
    max_num_seqs, pages_per_seq = page_indices.shape
    num_kv_heads = kv_pages.shape[2] // 2
    rows = num_tokens * (num_q_heads // num_kv_heads)
    max_parts = -(-pages_per_seq * kv_pages.shape[1] // _MIN_PART_SIZE)  # of a context
    if max_parts < 2:
        return 1
    part_size = 2 * num_kv_heads * min(rows, _TILE_ROWS) * (head_dim + 4)
    parts = min(
        (rows // _TILE_ROWS + max_num_seqs) * max_parts,
        _MAX_BLOCKS // num_kv_heads,
        (_MAX_WORKSPACE_SIZE - _MAX_BLOCKS) // max(part_size, 1),
    )
    return 1 if parts < 2 else _MAX_BLOCKS + parts * part_size


def _hopper_workspace(q: torch.Tensor, kv_pages: torch.Tensor, page_indices: torch.Tensor) -> int:
    """As many parts for each sequence.

    Of each part and query head a result, its maximum and its sum; beside them a counter of tiles,
    and one for each sequence and kv head.
    """
    _, num_q_heads, head_dim = q.shape
    max_num_seqs, pages_per_seq = page_indices.shape
    part_size = max_num_seqs * num_q_heads * (head_dim + 2)
    num_parts = min(
        _MAX_PARTS,
        _MAX_WORKSPACE_SIZE // max(part_size, 1),
        -(-pages_per_seq * kv_pages.shape[1] // _MIN_PART_SIZE),
    )
    if num_parts < 2:
        return 1
    num_counters = 1 + max_num_seqs * (kv_pages.shape[2] // 2)
    return -(-num_counters // 4) * 4 + num_parts * part_size  # parts are aligned to 16 bytes


def _attributes(
    sm_scale: float,
    sliding_window: int | None,
    soft_cap: float | None,
    k_scale: float | None,
    v_scale: float | None,
    **others: Value,
) -> dict[str, object]:
    return {
        "sm_scale": sm_scale,
        "sliding_window": sliding_window or 0,
        "soft_cap": soft_cap or 0.0,
        "k_scale": 1.0 if k_scale is None else k_scale,
        "v_scale": 1.0 if v_scale is None else v_scale,
        "report_out_of_range": _paged.reports_out_of_range(),
    }


register_reference(TARGET, _paged_reference.ragged_paged_attention)

define_operator(
    "xla_gpu::ragged_paged_attention(Tensor q, Tensor kv_pages, Tensor kv_lens, "
    "Tensor page_indices, Tensor cu_q_lens, Tensor num_seqs, float sm_scale=1.0, "
    "int? sliding_window=None, float? soft_cap=None, float? mask_value=None, "
    "float? k_scale=None, float? v_scale=None) -> Tensor",
    target=TARGET,
    check=_check,
    sizes=_workspace,
    attributes=_attributes,
)


def ragged_paged_attention(
    q: torch.Tensor,
    kv_pages: torch.Tensor,
    kv_lens: torch.Tensor,
    page_indices: torch.Tensor,
    cu_q_lens: torch.Tensor,
    num_seqs: torch.Tensor,
    sm_scale: float = 1.0,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    mask_value: float | None = None,
    k_scale: float | None = None,
    v_scale: float | None = None,
) -> torch.Tensor:
    """Causal attention of all new tokens: ``torch.ops.xla_gpu.ragged_paged_attention``.

    Arguments and meaning are those of torch_xla's operator for TPUs,
    ``torch.ops.xla.ragged_paged_attention``, whose calls on a CPU or GPU come here
    (torch_xla_ext.upstream).

    Sequence s, of the first ``num_seqs[0]``, has the rows ``cu_q_lens[s]`` to
    ``cu_q_lens[s + 1] - 1`` of `q`: the last of its ``kv_lens[s]`` tokens, whose keys and values
    are in the pages already. Of a page, kv head g's keys are head ``2 * g`` and its values head
    ``2 * g + 1``. Rows of no sequence give zeros. Products and sums are float32.

    Lengths and tables are read by the kernel only, so a compiled program serves any of them. What
    is out of range in them is never followed: num_seqs and lengths are clamped to what there is
    room for, the rows of a sequence to the last ``kv_lens[s]`` of them, and tokens in a page that
    is not in [0, total_num_pages) take no part. Where `cu_q_lens` decreases, it is not said which
    numbers the rows concerned get. The environment variable
    TORCH_XLA_EXT_REPORT_OUT_OF_RANGE=1 has each printed.

    Args:
        q: [max_num_batched_tokens, num_q_heads, head_dim], float16 or bfloat16; head_dim is 64, 96,
            128, 192 or 256.
        kv_pages: [total_num_pages, page_size, 2 * num_kv_heads, head_dim], of the dtype of `q` or
            float8_e4m3fn; page_size is 8 to 256, num_kv_heads divides num_q_heads.
        kv_lens: [max_num_seqs], int32.
        page_indices: [max_num_seqs, pages_per_seq], int32.
        cu_q_lens: [max_num_seqs + 1], int32.
        num_seqs: [1], int32.
        sm_scale: what the products of query and key are multiplied by.
        sliding_window: attend to the last so many tokens, the query's own included, at least 1;
            None for all.
        soft_cap: logits become ``soft_cap * tanh(logits / soft_cap)``; None for no cap.
        mask_value: the logit of masked tokens in upstream's kernel. Here they take no part, so that
            only values by which this is so are accepted: None, or at most -65504.
        k_scale, v_scale: what the elements of float8_e4m3fn pages are multiplied by.

    Returns:
        The attended values, of the shape and dtype of `q`.

    Raises:
        TypeError: a tensor has another dtype than these.
        ValueError: tensors differ in their device, a shape does not fit, or a number is one that
            the kernel does not support.

    Example:
        >>> def i32(values): return torch.tensor(values, dtype=torch.int32, device="xla")
        >>> q = torch.randn(8, 4, 64, dtype=torch.bfloat16, device="xla")
        >>> kv_pages = torch.randn(6, 16, 2, 64, dtype=torch.bfloat16, device="xla")
        >>> # A prompt of 3 tokens, a decode step after 20 tokens, and 4 rows that nobody uses.
        >>> lengths, tables = i32([3, 21, 0]), i32([[5, 0], [1, 4], [0, 0]])
        >>> rows, count = i32([0, 3, 4, 0]), i32([2])
        >>> out = ragged_paged_attention(q, kv_pages, lengths, tables, rows, count, sm_scale=0.125)
        >>> torch.equal(out[0].cpu(), kv_pages[5, 0, 1].expand(4, 64).cpu())  # sees itself alone
        True
        >>> out[4:].any().item()
        False
    """
    return torch.ops.xla_gpu.ragged_paged_attention(
        q,
        kv_pages,
        kv_lens,
        page_indices,
        cu_q_lens,
        num_seqs,
        sm_scale,
        sliding_window,
        soft_cap,
        mask_value,
        k_scale,
        v_scale,
    )
