"""Paged attention with prefill and decode tokens mixed in one call."""

import torch

from xla_kernels import Value, register_reference

from . import _paged, _paged_reference

__all__ = ["ragged_paged_attention"]

TARGET = "XlaGpuRaggedPagedAttention"
_NAME = "xla_gpu::ragged_paged_attention"
# The largest accepted logit of masked tokens in upstream's kernel. Beside any sensible logit, its
# probability is 0, as if the token were left out.
_MAX_MASK_VALUE = torch.finfo(torch.float16).min


def _check(
    kv_pages: torch.Tensor,
    sm_scale: float,
    sliding_window: int | None,
    soft_cap: float | None,
    mask_value: float | None,
    k_scale: float | None,
    v_scale: float | None,
    causal: bool,
    max_q_len: int | None,
    **others: Value,
) -> None:
    _paged.require_logit_options(_NAME, "sm_scale", sm_scale, sliding_window, soft_cap)
    if mask_value is not None and not mask_value <= _MAX_MASK_VALUE:
        raise ValueError(
            f"{_NAME}: mask_value must be None or at most {_MAX_MASK_VALUE}, so that masked tokens "
            f"have no weight, but is {mask_value}"
        )
    if not causal and sliding_window is not None:
        raise ValueError(
            f"{_NAME}: sliding_window must be None if causal is False, but is {sliding_window}"
        )
    if max_q_len is not None and max_q_len < 1:
        raise ValueError(f"{_NAME}: max_q_len must be None or at least 1, but is {max_q_len}")
    _paged.require_scales(_NAME, kv_pages, k_scale=k_scale, v_scale=v_scale)


def _attributes(
    sm_scale: float,
    sliding_window: int | None,
    soft_cap: float | None,
    k_scale: float | None,
    v_scale: float | None,
    causal: bool,
    q_is_float8: bool,
    max_q_len: int | None,
    **others: Value,
) -> dict[str, object]:
    return {
        "sm_scale": sm_scale,
        "sliding_window": sliding_window or 0,
        "soft_cap": soft_cap or 0.0,
        "k_scale": 1.0 if k_scale is None else k_scale,
        "v_scale": 1.0 if v_scale is None else v_scale,
        "causal": causal,
        "report_out_of_range": _paged.reports_out_of_range(),
        "q_is_float8": q_is_float8,
        "max_q_len": max_q_len or 0,
    }


register_reference(TARGET, _paged_reference.ragged_paged_attention)

_ARGUMENTS = (
    "(Tensor q, Tensor kv_pages, Tensor kv_lens, Tensor page_indices, Tensor cu_q_lens, "
    "Tensor num_seqs, float sm_scale=1.0, int? sliding_window=None, float? soft_cap=None, "
    "float? mask_value=None, float? k_scale=None, float? v_scale=None, Tensor? sinks=None, "
    "bool causal=True, Tensor? custom_mask=None, bool q_is_float8=False, int? max_q_len=None)"
)
_RULE = "_ (k g) _, _ _ (k 2) _, _, _ _, _, _, (k g), _ _ -> _ (k g) _"

_paged.define_attention(
    _NAME,
    _ARGUMENTS,
    target=TARGET,
    check=_check,
    attributes=_attributes,
    query="q",
    sharding_rule=_RULE,
    lse_rule="_ (k g)",
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
    sinks: torch.Tensor | None = None,
    causal: bool = True,
    custom_mask: torch.Tensor | None = None,
    return_lse: bool = False,
    q_scale: float | torch.Tensor | None = None,
    max_q_len: int | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Compute causal attention of all new tokens: ``torch.ops.xla_gpu.ragged_paged_attention``.

    With `return_lse`, this calls ``torch.ops.xla_gpu.ragged_paged_attention_with_lse``.

    The arguments up to `v_scale` are those of torch_xla's operator for TPUs,
    ``torch.ops.xla.ragged_paged_attention``, which calls this operator on a CPU or GPU
    (torch_xla_ext.custom_kernel).

    Sequence s, of the first ``num_seqs[0]``, has the rows ``cu_q_lens[s]`` to ``cu_q_lens[s + 1] -
    1`` of `q`: the last of its ``kv_lens[s]`` tokens, whose keys and values are already in the
    pages. In a page, the keys of kv head g are head ``2 * g``, and its values head ``2 * g + 1``.
    Results of rows that belong to no sequence are zeros. Products and sums are in float32.

    Only the kernel reads lengths and tables, so one compiled program serves all values. Invalid
    values are never followed: num_seqs and lengths are clamped to the tensors' sizes, the rows of a
    sequence to its last ``kv_lens[s]``, and tokens in a page that is not in
    [0, total_num_pages) are masked. If `cu_q_lens` decreases, the results of the affected rows are
    undefined. With TORCH_XLA_EXT_REPORT_OUT_OF_RANGE=1 in the environment, the kernel prints each
    invalid value.

    Args:
        q: [max_num_batched_tokens, num_q_heads, head_dim], float16, bfloat16, float32, or
            float8_e4m3fn, which is converted to bfloat16; head_dim is 64, 96, 128, 192 or 256.
        kv_pages: [total_num_pages, page_size, 2 * num_kv_heads, head_dim], of the dtype of `q` or
            float8_e4m3fn; page_size is 8 to 256, num_kv_heads divides num_q_heads.
        kv_lens: [max_num_seqs], int32.
        page_indices: [max_num_seqs, pages_per_seq], int32.
        cu_q_lens: [max_num_seqs + 1], int32.
        num_seqs: [1], int32.
        sm_scale: the factor of the query-key products.
        sliding_window: attend only to this many last tokens, including the query's own, at least 1;
            None for all tokens.
        soft_cap: logits become ``soft_cap * tanh(logits / soft_cap)``; None for no cap.
        mask_value: the logit of masked tokens in upstream's kernel. Here masked tokens have no
            weight at all, so only None and values of at most -65504 are accepted.
        k_scale, v_scale: the factors of the elements of float8_e4m3fn pages.
        sinks: [num_q_heads], float32: logits without a value, one per head, in the
            softmax's denominator (Xiao et al., "Efficient Streaming Language Models with Attention
            Sinks", 2023; learned, as in gpt-oss).
        causal: if False, all rows of a sequence attend to all of its tokens, as in encoders and
            cross-attention. Then a sequence may have more rows than tokens, and `sliding_window`
            must be None.
        custom_mask: [max_num_batched_tokens, mask_words], int32, mask_words 1 to 64: the new tokens
            of its sequence that a row attends to, as for draft trees (Miao et al., "SpecInfer",
            2024). New token j has bit ``j % 32`` of ``custom_mask[row, j // 32]``; a bit of 0 hides
            it, in addition to `causal`. Tokens for which there is no bit are not hidden.
        return_lse: whether to also return the logarithm of the softmax's denominator.
        q_scale: the factor of the elements of a float8_e4m3fn `q`: a number, or a float32 tensor
            [num_q_heads], with which the scaled `q` is rounded to bfloat16.
        max_q_len: a promise that no sequence has more rows in `q` than this, which saves kernel
            launches: 1 if all sequences decode. Results of longer sequences are undefined. None
            makes no promise.

    Returns:
        The attended values, with the shape and dtype of `q`; bfloat16 for float8_e4m3fn. With
        `return_lse`, a tuple of these and float32 [max_num_batched_tokens, num_q_heads]:
        ``log(sum(exp(logits)))``, including the sink; -inf for rows without tokens.
        `merge_attention_states` accepts both.

    Raises:
        TypeError: a tensor has an unsupported or mismatched dtype.
        ValueError: the tensors are on different devices, a shape does not match, or a number is not
            supported.

    Example:
        >>> def i32(values): return torch.tensor(values, dtype=torch.int32, device="xla")
        >>> q = torch.randn(8, 4, 64, dtype=torch.bfloat16, device="xla")
        >>> kv_pages = torch.randn(6, 16, 2, 64, dtype=torch.bfloat16, device="xla")
        >>> # A prompt of 3 tokens, a decode step after 20 tokens, and 4 unused rows.
        >>> lengths, tables = i32([3, 21, 0]), i32([[5, 0], [1, 4], [0, 0]])
        >>> rows, count = i32([0, 3, 4, 0]), i32([2])
        >>> out = ragged_paged_attention(q, kv_pages, lengths, tables, rows, count, sm_scale=0.125)
        >>> torch.equal(out[0].cpu(), kv_pages[5, 0, 1].expand(4, 64).cpu())  # sees itself alone
        True
        >>> out[4:].any().item()
        False
    """
    # With one factor for each head, the query's elements are no longer float8 values.
    q_is_float8 = (
        q is not None
        and q.dtype == _paged.QUANTIZED_DTYPE
        and not isinstance(q_scale, torch.Tensor)
    )
    q, sm_scale = _paged.widened_query(_NAME, q, sm_scale, q_scale, "q_scale")
    attend = _paged.attention_operator("ragged_paged_attention", return_lse)
    return attend(
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
        sinks,
        causal,
        custom_mask,
        q_is_float8,
        max_q_len,
    )
