"""Paged attention with one query token per sequence: the decode step of a language model."""

import torch

from xla_kernels import Value, register_reference

from . import _paged, _paged_reference

__all__ = ["paged_attention"]

TARGET = "XlaGpuPagedAttention"
_NAME = "xla_gpu::paged_attention"


def _check(
    key_cache: torch.Tensor,
    scale: float,
    sliding_window: int | None,
    soft_cap: float | None,
    key_scale: float | None,
    value_scale: float | None,
    **others: Value,
) -> None:
    _paged.require_logit_options(_NAME, "scale", scale, sliding_window, soft_cap)
    _paged.require_scales(_NAME, key_cache, key_scale=key_scale, value_scale=value_scale)


def _attributes(
    scale: float,
    sliding_window: int | None,
    soft_cap: float | None,
    key_scale: float | None,
    value_scale: float | None,
    **others: Value,
) -> dict[str, object]:
    return {
        "scale": scale,
        "sliding_window": sliding_window or 0,
        "soft_cap": soft_cap or 0.0,
        "key_scale": 1.0 if key_scale is None else key_scale,
        "value_scale": 1.0 if value_scale is None else value_scale,
        "report_out_of_range": _paged.reports_out_of_range(),
    }


register_reference(TARGET, _paged_reference.paged_attention)

_ARGUMENTS = (
    "(Tensor query, Tensor key_cache, Tensor value_cache, Tensor block_tables, "
    "Tensor context_lens, float scale, int? sliding_window=None, float? soft_cap=None, "
    "Tensor? alibi_slopes=None, float? key_scale=None, float? value_scale=None, "
    "Tensor? sinks=None)"
)
_RULE = "s (k g) _, _ _ k _, _ _ k _, s _, s, (k g), (k g) -> s (k g) _"

_paged.define_attention(
    _NAME,
    _ARGUMENTS,
    target=TARGET,
    check=_check,
    attributes=_attributes,
    query="query",
    sharding_rule=_RULE,
    lse_rule="s (k g)",
)


def paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    alibi_slopes: torch.Tensor | None = None,
    key_scale: float | None = None,
    value_scale: float | None = None,
    sinks: torch.Tensor | None = None,
    return_lse: bool = False,
    query_scale: float | torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Compute attention, one query per sequence: ``torch.ops.xla_gpu.paged_attention``.

    With `return_lse`, this calls ``torch.ops.xla_gpu.paged_attention_with_lse``.

    Token j of sequence s is in row ``j % block_size`` of block ``block_tables[s, j //
    block_size]``; the query is that of the last token. Query head h uses kv head ``h // (num_heads
    // num_kv_heads)``. Products and sums are in float32.

    Only the kernel reads lengths and tables, so one compiled program serves all values. Invalid
    values are never followed: a length is clamped to [0, max_blocks * block_size], and tokens in a
    block that is not in [0, num_blocks) are masked. With TORCH_XLA_EXT_REPORT_OUT_OF_RANGE=1 in the
    environment, the kernel prints each invalid value.

    Args:
        query: [num_seqs, num_heads, head_dim], float16, bfloat16, float32, or float8_e4m3fn, which
            is converted to bfloat16; head_dim is 64, 96, 128, 192 or 256.
        key_cache, value_cache: [num_blocks, block_size, num_kv_heads, head_dim], of the query's
            dtype or float8_e4m3fn; block_size is 8 to 256, num_kv_heads divides num_heads.
        block_tables: [num_seqs, max_blocks], int32.
        context_lens: [num_seqs], int32: each sequence's number of tokens. The result for 0 is
            zeros.
        scale: the factor of the query-key products, usually 1 / sqrt(head_dim).
        sliding_window: attend only to this many last tokens, at least 1; None for all tokens.
        soft_cap: logits become ``soft_cap * tanh(logits / soft_cap)``; None for no cap.
        alibi_slopes: [num_heads], float32: ``alibi_slopes[h] * (j - (context_len - 1))`` is added
            to the logit of token j (Press et al., "Train Short, Test Long", 2022).
        key_scale, value_scale: the factors of the elements of a float8_e4m3fn cache.
        sinks: [num_heads], float32: logits without a value, one per head, in the
            softmax's denominator (Xiao et al., "Efficient Streaming Language Models with Attention
            Sinks", 2023; learned, as in gpt-oss).
        return_lse: whether to also return the logarithm of that denominator.
        query_scale: the factor of the elements of a float8_e4m3fn query: a number, or a float32
            tensor [num_heads], with which the scaled query is rounded to bfloat16.

    Returns:
        The attended values, with the query's shape and dtype; bfloat16 for float8_e4m3fn. With
        `return_lse`, a tuple of these and float32 [num_seqs, num_heads]: ``log(sum(exp(logits)))``,
        including the sink; -inf for a sequence without tokens. `merge_attention_states` accepts
        both.

    Raises:
        TypeError: a tensor has an unsupported or mismatched dtype.
        ValueError: the tensors are on different devices, a shape does not match, or a number is not
            supported.

    Example:
        >>> cache = torch.randn(2, 6, 8, 1, 64, dtype=torch.bfloat16, device="xla")
        >>> query = torch.randn(2, 4, 64, dtype=torch.bfloat16, device="xla")
        >>> tables = torch.tensor([[4, 2], [0, 0]], dtype=torch.int32, device="xla")
        >>> lengths = torch.tensor([11, 1], dtype=torch.int32, device="xla")
        >>> out = paged_attention(query, cache[0], cache[1], tables, lengths, scale=0.125)
        >>> torch.equal(out[1].cpu(), cache[1, 0, 0].expand(4, 64).cpu())  # its only token's value
        True
    """
    query, scale = _paged.widened_query(_NAME, query, scale, query_scale)
    attend = _paged.attention_operator("paged_attention", return_lse)
    return attend(
        query,
        key_cache,
        value_cache,
        block_tables,
        context_lens,
        scale,
        sliding_window,
        soft_cap,
        alibi_slopes,
        key_scale,
        value_scale,
        sinks,
    )
