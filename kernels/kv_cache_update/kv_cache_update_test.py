"""XlaGpuKvCacheUpdate and XlaGpuKvPagesUpdate, bit for bit."""

import pytest
import torch
from testing.paged import FP8
from testing.xla import XLAC

from torch_xla_ext.ops import kv_cache_update, kv_pages_update, rope_kv_pages_update

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
for_each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def written(
    cache: torch.Tensor, new: torch.Tensor, slots: torch.Tensor, scale: float = 1
) -> torch.Tensor:
    """A copy of `cache`, [pages, page_size, heads, head_dim], with the tokens in their slots."""
    result = cache.clone()
    rows = result.view(torch.uint8).flatten(0, 1)
    if cache.dtype == FP8:
        new = (new.float() / scale).clamp(-448, 448)
    new = new.to(cache.dtype).contiguous().view(torch.uint8)
    for token, slot in enumerate(slots.tolist()):
        if 0 <= slot < len(rows):
            rows[slot] = new[token]
    return result


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.cpu().contiguous().view(torch.uint8)


def check(
    device: torch.device | str,
    tokens: int,
    heads: int,
    head_dim: int,
    page_size: int,
    dtype: torch.dtype,
    cache_dtype: torch.dtype | None = None,
    slot_dtype: torch.dtype = torch.int64,
    scales: tuple[float | None, float | None] = (None, None),
) -> None:
    num_pages = tokens // page_size + 2
    key, value = (torch.randn(2, tokens, heads, head_dim) * 20).to(dtype)
    slots = torch.randperm(num_pages * page_size)[:tokens].to(slot_dtype)
    if tokens > 3:
        slots[torch.randperm(tokens)[:3]] = torch.tensor(
            [-1, num_pages * page_size, -(2**31)], dtype=slot_dtype
        )
    shape = (num_pages, page_size, heads, head_dim)
    caches = [torch.randn(shape).to(cache_dtype or dtype) for _ in range(2)]
    keys = written(caches[0], key, slots, scales[0] or 1)
    values = written(caches[1], value, slots, scales[1] or 1)
    inputs = [x.to(device) for x in (key, value, slots)]

    results = [cache.to(device, copy=True) for cache in caches]
    kv_cache_update(*inputs, *results, *scales)
    assert torch.equal(bits(results[0]), bits(keys))
    assert torch.equal(bits(results[1]), bits(values))

    def combined(keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        stacked = torch.stack([keys.view(torch.uint8), values.view(torch.uint8)], dim=3)
        return stacked.flatten(2, 3).view(keys.dtype)

    pages = combined(*caches).to(device, copy=True)
    kv_pages_update(*inputs, pages, *scales)
    assert torch.equal(bits(pages), bits(combined(keys, values)))


@pytest.mark.parametrize("slot_dtype", [torch.int32, torch.int64], ids=str)
@for_each_dtype
def test_tokens_go_to_their_slots(
    device: torch.device, dtype: torch.dtype, slot_dtype: torch.dtype
) -> None:
    check(device, 37, 2, 64, 16, dtype, slot_dtype=slot_dtype)
    check("cpu", 37, 2, 64, 16, dtype, slot_dtype=slot_dtype)


@pytest.mark.parametrize(
    ("tokens", "heads", "head_dim", "page_size"),
    [
        (1, 1, 64, 8),
        (5, 3, 96, 13),
        (64, 8, 128, 16),
        (9, 2, 7, 1),
        (4, 1, 1, 3),
        (300, 4, 256, 32),
        (333, 3, 20, 16),
        (1100, 8, 256, 16),  # more than kManyVectors of kv_cache_update.cu
    ],
)
@for_each_dtype
def test_shapes_of_caches(
    device: torch.device, tokens: int, heads: int, head_dim: int, page_size: int, dtype: torch.dtype
) -> None:
    check(device, tokens, heads, head_dim, page_size, dtype)


@for_each_dtype
def test_quantized_cache(device: torch.device, dtype: torch.dtype) -> None:
    check(device, 40, 2, 64, 16, dtype, FP8)
    check(device, 40, 2, 64, 16, dtype, FP8, scales=(0.25, 2.0))


def test_quantization_rounds_to_even_and_saturates(device: torch.device) -> None:
    values = torch.tensor([0.0, -0.0, 1.0625, 1.1875, 447.0, 464.0, 1e9, -1e9, 2**-10, 3 * 2**-10])
    values = torch.cat([values, torch.tensor([float("inf"), float("-inf"), float("nan")])])
    key = torch.zeros(1, 1, 16)
    key[0, 0, : len(values)] = values
    cache = torch.zeros(1, 8, 1, 16).to(FP8).to(device)
    other = torch.zeros(1, 8, 1, 16).to(FP8).to(device)
    kv_cache_update(key.to(device), key.to(device), torch.tensor([2]).to(device), cache, other)
    row = cache.cpu().float()[0, 2, 0, : len(values)]
    expected = [0, -0.0, 1, 1.25, 448, 448, 448, -448, 0, 2**-8, 448, -448]
    assert row[:-1].tolist() == expected
    assert row[-1].isnan()


def test_no_tokens_and_no_cache(device: torch.device) -> None:
    caches = [torch.ones(2, 8, 1, 64, device=device) for _ in range(2)]
    empty = torch.zeros(0, 1, 64, device=device)
    kv_cache_update(empty, empty, torch.zeros(0, dtype=torch.int64, device=device), *caches)
    assert caches[0].cpu().sum() == 2 * 8 * 64
    none = [torch.zeros(0, 8, 1, 64, device=device) for _ in range(2)]
    token = torch.ones(1, 1, 64, device=device)
    kv_cache_update(token, token, torch.tensor([0], device=device), *none)
    assert none[0].cpu().numel() == 0


def test_one_slot_twice(device: torch.device) -> None:
    caches = [torch.zeros(1, 8, 1, 64, device=device) for _ in range(2)]
    key = torch.stack([torch.full((1, 64), x) for x in (1.0, 2.0)]).to(device)
    kv_cache_update(key, key, torch.tensor([3, 3], device=device), *caches)
    for cache in caches:
        assert cache.cpu()[0, 3].unique().tolist() in ([1.0], [2.0])


# shards, query_heads, kv_heads, head_dim, rotary_dim
Shape = tuple[int, int, int, int, int]


def rotation_inputs(
    tokens: int, rotary_dim: int, num_slots: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Positions, slots, of which two do not exist, and the cosines and sines of 50 positions."""
    angles = torch.rand(50, rotary_dim // 2) * 6
    slots = torch.randperm(num_slots)[:tokens]
    slots[[3, 7]] = torch.tensor([-1, num_slots])
    cos_sin = torch.cat([angles.cos(), angles.sin()], dim=-1).to(dtype)
    return torch.randint(50, (tokens,)), slots, cos_sin


@pytest.mark.parametrize("cache_dtype", [None, FP8], ids=str)
@pytest.mark.parametrize(
    "shape", [(1, 4, 1, 128, 128), (2, 3, 2, 64, 32), (4, 2, 1, 14, 6), (1, 1, 1, 2, 2)]
)
@for_each_dtype
def test_rotation(
    device: torch.device, shape: Shape, dtype: torch.dtype, cache_dtype: torch.dtype | None
) -> None:
    tokens, page_size = 21, 8
    shards, query_heads, kv_heads, head_dim, rotary_dim = shape
    qkv = torch.randn(tokens, shards, query_heads + 2 * kv_heads, head_dim).to(dtype)
    positions, slots, cos_sin = rotation_inputs(tokens, rotary_dim, 5 * page_size, dtype)
    pages = torch.randn(5, page_size, 2 * shards * kv_heads, head_dim).to(cache_dtype or dtype)
    scales = (None, None) if cache_dtype is None else (0.5, 2.0)

    cos, sin = (half[:, None, None] for half in cos_sin.float()[positions].chunk(2, dim=-1))
    rotated, rest = qkv.float().split([rotary_dim, head_dim - rotary_dim], dim=-1)
    x, y = rotated.chunk(2, dim=-1)
    rotated = torch.cat([x * cos - y * sin, y * cos + x * sin, rest], dim=-1).to(dtype)
    keys = rotated[:, :, query_heads : query_heads + kv_heads].flatten(1, 2)
    values = qkv[:, :, query_heads + kv_heads :].flatten(1, 2)
    expected = torch.stack(
        [
            written(pages[:, :, i::2], new, slots, scales[i] or 1)
            for i, new in enumerate((keys, values))
        ],
        dim=3,
    ).flatten(2, 3)

    for place in (device, "cpu"):
        inputs = [x.to(place) for x in (qkv, positions, slots, cos_sin)]
        updated = pages.to(place, copy=True)
        query = rope_kv_pages_update(*inputs, updated, *scales)
        tolerances = {"rtol": 1e-2, "atol": 1e-5}  # where a number is rounded to the other side
        whole = rotated[:, :, :query_heads].flatten(1, 2)
        torch.testing.assert_close(query.cpu(), whole, **tolerances)
        assert torch.equal(bits(updated[:, :, 1::2]), bits(expected[:, :, 1::2]))
        if cache_dtype is None:
            torch.testing.assert_close(updated.cpu(), expected, **tolerances)
        else:
            steps = bits(updated).int() - bits(expected).int()
            assert steps.abs().max() <= 1


@pytest.mark.parametrize("adds_one", [False, True])
@pytest.mark.parametrize(
    "shape", [(1, 4, 1, 128, 128), (2, 3, 2, 96, 32), (1, 2, 1, 320, 320), (2, 1, 1, 14, 6)]
)
@for_each_dtype
def test_norms_of_heads(
    device: torch.device, shape: Shape, dtype: torch.dtype, adds_one: bool
) -> None:
    """The norms, before the rotation, equal vLLM's RMSNorm and GemmaRMSNorm."""
    tokens, page_size, epsilon = 21, 8, 0.1
    shards, query_heads, kv_heads, head_dim, rotary_dim = shape
    heads = [query_heads, kv_heads, kv_heads]
    qkv = torch.randn(tokens, shards, sum(heads), head_dim).to(dtype)
    qkv[5] *= 100
    norms = [torch.randn(head_dim).to(dtype) for _ in range(2)]
    positions, slots, cos_sin = rotation_inputs(tokens, rotary_dim, 5 * page_size, dtype)
    pages = torch.randn(5, page_size, 2 * shards * kv_heads, head_dim).to(dtype)

    *parts, values = qkv.split(heads, dim=2)
    for i, weight in enumerate(norms):
        x = parts[i].float()
        x = x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + epsilon)
        x = x * (1 + weight.float()) if adds_one else x.to(dtype) * weight
        parts[i] = x.to(dtype)
    normed = torch.cat([*parts, values], dim=2)

    for place in (device, "cpu"):
        inputs = [x.to(place) for x in (positions, slots, cos_sin)]
        expected_pages, updated = (pages.to(place, copy=True) for _ in range(2))
        expected = rope_kv_pages_update(normed.to(place), *inputs, expected_pages)
        query = rope_kv_pages_update(
            qkv.to(place),
            *inputs,
            updated,
            query_norm=norms[0].to(place),
            key_norm=norms[1].to(place),
            norm_epsilon=epsilon,
            norm_adds_one=adds_one,
        )
        # A number may be rounded to the other side up to three times.
        step = torch.finfo(dtype).eps
        tolerances = {"rtol": 4 * step, "atol": 16 * step}
        torch.testing.assert_close(query.cpu(), expected.cpu(), **tolerances)
        torch.testing.assert_close(updated.cpu(), expected_pages.cpu(), **tolerances)
        assert torch.equal(bits(updated[:, :, 1::2]), bits(expected_pages[:, :, 1::2]))


def test_norms_of_a_quantized_cache(device: torch.device) -> None:
    qkv, weight = torch.full((1, 1, 3, 64), 5.0), torch.full((64,), 3.0)
    zero = torch.zeros(1, dtype=torch.int64, device=device)
    cos_sin = torch.cat([torch.ones(1, 32), torch.zeros(1, 32)], dim=-1).to(device)
    pages = torch.zeros(1, 8, 2, 64).to(FP8).to(device)
    norms = {"query_norm": weight.to(device), "key_norm": (weight / 4).to(device)}
    query = rope_kv_pages_update(qkv.to(device), zero, zero, cos_sin, pages, 0.5, 2.0, **norms)
    torch.testing.assert_close(query.cpu(), torch.full((1, 1, 64), 3.0))
    assert pages.cpu().float()[0, 0].unique(dim=1).flatten().tolist() == [1.5, 2.5]


def test_positions_out_of_range(device: torch.device) -> None:
    qkv = torch.ones(2, 1, 3, 4, device=device)
    cos_sin = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]], device=device)
    slots = torch.tensor([-1, -1], device=device)
    pages = torch.zeros(1, 8, 2, 4, device=device)
    positions = torch.tensor([-5, 9], device=device)
    query = rope_kv_pages_update(qkv, positions, slots, cos_sin, pages)
    assert query.cpu()[:, 0].tolist() == [[1, 1, 1, 1], [-1, -1, 1, 1]]


def test_rotation_refuses_other_shapes(device: torch.device) -> None:
    qkv, slots = torch.ones(2, 2, 3, 4, device=device), torch.tensor([0, 1], device=device)
    pages, cos_sin = torch.zeros(1, 8, 4, 4, device=device), torch.ones(3, 4, device=device)
    with pytest.raises(ValueError, match="kv_pages: expected 2"):
        rope_kv_pages_update(qkv, slots, slots, cos_sin, pages[:, :, :2])
    with pytest.raises(ValueError, match=r"cos_sin: expected .* of at most head_dim, 4"):
        rope_kv_pages_update(qkv, slots, slots, torch.ones(3, 6, device=device), pages)
    norm = torch.ones(4, device=device)
    with pytest.raises(ValueError, match="query_norm and key_norm must be given together"):
        rope_kv_pages_update(qkv, slots, slots, cos_sin, pages, query_norm=norm)
    with pytest.raises(ValueError, match=r"\(key_norm\): expected dimension 0 to be 4"):
        norms = {"query_norm": norm, "key_norm": norm[:2]}
        rope_kv_pages_update(qkv, slots, slots, cos_sin, pages, **norms)


@pytest.mark.parametrize(
    "target", ["XlaGpuKvCacheUpdate", "XlaGpuKvPagesUpdate", "XlaGpuRopeKvPagesUpdate"]
)
def test_kernels_are_registered(target: str) -> None:
    for platform in ("Host", "CUDA"):
        assert target in XLAC._xla_registered_custom_call_targets(platform)
