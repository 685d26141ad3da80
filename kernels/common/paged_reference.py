"""Compute paged attention with PyTorch operations, for torch_xla_ext.debug.use_reference.

All tokens of a table are gathered and masked, and all rows are computed for each sequence, so this
is only suitable for small problems.
"""

from collections.abc import Mapping, Sequence

import torch

Inputs = Sequence[torch.Tensor | None]
Attributes = Mapping[str, float]


def _gather(
    cache: torch.Tensor, pages: torch.Tensor, num_heads: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows of `pages`, float32 [num_heads, tokens, head_dim], and whether they exist."""
    page_size = cache.shape[1]
    present = (pages >= 0) & (pages < cache.shape[0])
    rows = cache.float()[torch.where(present, pages, 0).long()].flatten(0, 1)
    present = present.repeat_interleave(page_size)
    rows = torch.where(present[:, None, None], rows, 0)
    return rows.repeat_interleave(num_heads // rows.shape[1], dim=1).transpose(0, 1), present


def _attend(
    query: torch.Tensor,
    position: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    present: torch.Tensor,
    scale: float,
    attributes: Attributes,
    slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute attention of query [rows, num_heads, head_dim], at position [rows], in float32.

    Args:
        present: [tokens] or [rows, tokens]: whether a token is attended to.

    Returns:
        The attended values, and the logarithms of the softmax's denominators, [rows, num_heads].
    """
    distance = torch.arange(keys.shape[1], device=query.device) - position[:, None]
    visible = present & (distance <= 0)
    if attributes["sliding_window"] > 0:
        visible = visible & (distance > -attributes["sliding_window"])
    # Unused rows of a cache may have any value, including NaN.
    used = visible.any(dim=0)[None, :, None]
    keys, values = torch.where(used, keys, 0), torch.where(used, values, 0)
    logits = torch.einsum("qhd,hkd->hqk", query.float(), keys) * scale
    if attributes["soft_cap"] > 0:
        logits = attributes["soft_cap"] * torch.tanh(logits / attributes["soft_cap"])
    if slopes is not None:
        logits = logits + slopes[:, None, None] * distance
    logits = torch.where(visible, logits, float("-inf"))
    if sinks is not None:
        logits = torch.cat([logits, sinks[:, None, None].expand(-1, len(query), 1)], dim=-1)
    weights = logits.softmax(dim=-1)[..., : keys.shape[1]]
    weights = torch.where(visible, weights, 0)  # also where nothing is visible
    attended = torch.einsum("hqk,hkd->qhd", weights, values)
    return attended, logits.logsumexp(dim=-1).transpose(0, 1)


def _results(
    result: torch.Tensor, lse: torch.Tensor, outputs: Sequence[object]
) -> list[torch.Tensor]:
    """Return the results, with the requested rows of `lse`, and a workspace."""
    _, (lse_shape, _), (workspace, dtype) = outputs
    return [result, lse[: lse_shape[0]], torch.zeros(workspace, dtype=dtype, device=result.device)]


def paged_attention(
    inputs: Inputs, outputs: Sequence[object], attributes: Attributes
) -> list[torch.Tensor]:
    query, key_cache, value_cache, tables, lengths, slopes, sinks = inputs
    num_heads = query.shape[1]
    limit = tables.shape[1] * key_cache.shape[1]
    rows = []
    for s in range(query.shape[0]):
        keys, present = _gather(key_cache, tables[s], num_heads)
        values, _ = _gather(value_cache, tables[s], num_heads)
        position = lengths[s : s + 1].clamp(0, limit) - 1
        scale = attributes["scale"] * attributes["key_scale"]
        rows.append(
            _attend(
                query[s : s + 1], position, keys, values, present, scale, attributes, slopes, sinks
            )
        )
    result = torch.cat([attended for attended, _ in rows]) if rows else query
    lse = torch.cat([lse for _, lse in rows]) if rows else query.float()[..., 0]
    result = (result * attributes["value_scale"]).to(query.dtype)
    return _results(result, lse, outputs)


def unmasked(
    mask: torch.Tensor | None, first_new: torch.Tensor, num_tokens: int
) -> torch.Tensor | bool:
    """Return the tokens that a custom mask shows, [rows, tokens], from `first_new` on."""
    if mask is None:
        return True
    new = torch.arange(num_tokens, device=mask.device) - first_new
    has_bit = (new >= 0) & (new < 32 * mask.shape[1])
    bit = torch.where(has_bit, new, 0)
    words = mask[:, (bit // 32).long()]
    return ~has_bit | ((words >> (bit % 32)) & 1).bool()


def ragged_paged_attention(
    inputs: Inputs, outputs: Sequence[object], attributes: Attributes
) -> list[torch.Tensor]:
    q, kv_pages, kv_lens, page_indices, ends, num_seqs, sinks, mask = inputs
    num_heads, limit = q.shape[1], page_indices.shape[1] * kv_pages.shape[1]
    row = torch.arange(q.shape[0], device=q.device)
    result = torch.zeros_like(q, dtype=torch.float32)
    lse = torch.full_like(result[..., 0], float("-inf"))
    if sinks is not None:
        lse = sinks.expand_as(lse)
    for s in range(kv_lens.shape[0]):
        kv_len = kv_lens[s].clamp(0, limit)
        begin = ends[s].clamp(0, q.shape[0])
        end = torch.maximum(ends[s + 1].clamp(0, q.shape[0]), begin)
        position = row - end + kv_len
        if not attributes["causal"]:
            position = (kv_len - 1).expand_as(row)
        mine = (row >= begin) & (row < end) & (position >= 0) & (num_seqs[0] > s)
        keys, present = _gather(kv_pages[:, :, 0::2], page_indices[s], num_heads)
        values, _ = _gather(kv_pages[:, :, 1::2], page_indices[s], num_heads)
        position = torch.where(mine, position, -1)  # which sees nothing
        present = present & unmasked(mask, kv_len - (end - begin), keys.shape[1])
        scale = attributes["sm_scale"] * attributes["k_scale"]
        attended, own_lse = _attend(
            q, position, keys, values, present, scale, attributes, sinks=sinks
        )
        result = result + attended
        lse = torch.where(mine[:, None], own_lse, lse)
    result = (result * attributes["v_scale"]).to(q.dtype)
    return _results(result, lse, outputs)


def mla_paged_attention(
    inputs: Inputs, outputs: Sequence[object], attributes: Attributes
) -> list[torch.Tensor]:
    query, cache, tables, lengths = inputs
    limit = tables.shape[1] * cache.shape[1]
    options = {"sliding_window": 0, "soft_cap": 0}
    rows = []
    for s in range(query.shape[0]):
        keys, present = _gather(cache.unsqueeze(2), tables[s], query.shape[1])
        position = lengths[s : s + 1].clamp(0, limit) - 1
        scale = attributes["scale"] * attributes["kv_scale"]
        values = keys[..., :512]
        rows.append(_attend(query[s : s + 1], position, keys, values, present, scale, options))
    result = torch.cat([attended for attended, _ in rows]) if rows else query[..., :512]
    lse = torch.cat([lse for _, lse in rows]) if rows else query.float()[..., 0]
    result = (result * attributes["kv_scale"]).to(query.dtype)
    return _results(result, lse, outputs)
