"""Multi-head latent attention with one query token per sequence and a paged cache."""

import torch

from xla_kernels import Value, register_reference

from . import _paged, _paged_reference

__all__ = ["mla_paged_attention"]

TARGET = "XlaGpuMlaPagedAttention"
_NAME = "xla_gpu::mla_paged_attention"


def _check(kv_cache: torch.Tensor, scale: float, kv_scale: float | None, **others: Value) -> None:
    _paged.require_logit_options(_NAME, "scale", scale, None, None)
    _paged.require_scales(_NAME, kv_cache, kv_scale=kv_scale)


def _attributes(scale: float, kv_scale: float | None, **others: Value) -> dict[str, object]:
    return {
        "scale": scale,
        "kv_scale": 1.0 if kv_scale is None else kv_scale,
        "report_out_of_range": _paged.reports_out_of_range(),
    }


register_reference(TARGET, _paged_reference.mla_paged_attention)

_ARGUMENTS = (
    "(Tensor query, Tensor kv_cache, Tensor block_tables, Tensor context_lens, float scale, "
    "float? kv_scale=None)"
)
_RULE = "s h _, _ _ _, s _, s -> s h _"

_paged.define_attention(
    _NAME,
    _ARGUMENTS,
    target=TARGET,
    check=_check,
    attributes=_attributes,
    query="query",
    sharding_rule=_RULE,
    lse_rule="s h",
)


def mla_paged_attention(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
    kv_scale: float | None = None,
    return_lse: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Compute latent attention, one query a sequence: ``torch.ops.xla_gpu.mla_paged_attention``.

    With `return_lse`, this calls ``torch.ops.xla_gpu.mla_paged_attention_with_lse``.

    All heads share one latent row per token: its 576 elements are the key, and the first 512 of
    them the value (DeepSeek-AI, "DeepSeek-V2", 2024). Before the call, multiply the queries by the
    key projections; after it, multiply the results by the value projections. Token j of sequence s
    is in row ``j % block_size`` of block ``block_tables[s, j // block_size]``. Products and sums
    are float32.

    As in `paged_attention`, only the kernel reads lengths and tables, and it handles invalid values
    in the same way.

    Args:
        query: [num_seqs, num_heads, 576], float16 or bfloat16.
        kv_cache: [num_blocks, block_size, 576], of the query's dtype or float8_e4m3fn; block_size
            is 8 to 256.
        block_tables: [num_seqs, max_blocks], int32.
        context_lens: [num_seqs], int32: each sequence's number of tokens. The result for 0 is
            zeros.
        scale: the factor of the query-key products.
        kv_scale: the factor of the elements of a float8_e4m3fn cache.
        return_lse: whether to also return the logarithm of the softmax's denominator.

    Returns:
        The attended values, [num_seqs, num_heads, 512], of the query's dtype. With `return_lse`, a
        tuple of these and float32 [num_seqs, num_heads]: ``log(sum(exp(logits)))``, -inf for a
        sequence without tokens. `merge_attention_states` accepts both.

    Raises:
        TypeError: a tensor has an unsupported or mismatched dtype.
        ValueError: the tensors are on different devices, a shape does not match, or a number is not
            supported.

    Example:
        >>> cache = torch.randn(6, 8, 576, dtype=torch.bfloat16, device="xla")
        >>> query = torch.randn(2, 16, 576, dtype=torch.bfloat16, device="xla")
        >>> tables = torch.tensor([[4, 2], [0, 0]], dtype=torch.int32, device="xla")
        >>> lengths = torch.tensor([11, 1], dtype=torch.int32, device="xla")
        >>> out = mla_paged_attention(query, cache, tables, lengths, scale=192**-0.5)
        >>> torch.equal(out[1].cpu(), cache[0, 0, :512].expand(16, 512).cpu())  # its only token
        True
    """
    attend = _paged.attention_operator("mla_paged_attention", return_lse)
    return attend(query, kv_cache, block_tables, context_lens, scale, kv_scale)
