"""The CUDA kernels of kv_cache_update, without XLA, against torch.

Needs a GPU, any torch with CUDA, and PAGED_KERNELS, the library that Bazel builds as
//benchmarks:libpaged_kernels.so; and `pytest --noconftest`, since conftest.py asks for the wheel.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from kernel_library import KernelLibrary

pytestmark = pytest.mark.skipif(
    "PAGED_KERNELS" not in os.environ or not torch.cuda.is_available(),
    reason="needs PAGED_KERNELS and a GPU",
)

F8 = torch.float8_e4m3fn
CACHES = [torch.float16, torch.bfloat16, torch.float32, F8]


@pytest.fixture(scope="module")
def library() -> KernelLibrary:
    return KernelLibrary(os.environ["PAGED_KERNELS"])


def randn(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, device="cuda").to(dtype)


def update(
    library: KernelLibrary,
    tokens: list[torch.Tensor],
    slots: torch.Tensor,
    caches: list[torch.Tensor],
    results: list[torch.Tensor] | None = None,
    scales: tuple[float, float] = (1.0, 1.0),
) -> None:
    names = ["key_cache", "value_cache"] if len(caches) == 2 else ["kv_pages"]
    arrays = {"key": tokens[0], "value": tokens[1], "slot_mapping": slots}
    for name, cache, result in zip(names, caches, results or caches, strict=True):
        arrays |= {name: cache, f"result {name}": result}
    target = "XlaGpuKvCacheUpdate" if len(caches) == 2 else "XlaGpuKvPagesUpdate"
    parameters = {"key_scale": scales[0], "value_scale": scales[1], "report_out_of_range": False}
    library.bind(target, arrays, parameters)()
    torch.cuda.synchronize()


def scaled(x: torch.Tensor, scale: float, dtype: torch.dtype) -> torch.Tensor:
    if dtype != F8:
        return x.to(dtype)
    return (x.float() / scale).clamp(-448, 448).to(F8)


def as_bytes(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(torch.uint8)


@pytest.mark.parametrize("pages", [False, True])
@pytest.mark.parametrize(("dtype", "cache"), [(t, c) for t in CACHES[:3] for c in (t, F8)], ids=str)
@pytest.mark.parametrize(
    ("tokens", "heads", "head_dim"), [(333, 8, 128), (333, 3, 20), (333, 1, 7), (4001, 16, 256)]
)
def test_update(
    library: KernelLibrary,
    tokens: int,
    heads: int,
    head_dim: int,
    dtype: torch.dtype,
    cache: torch.dtype,
    pages: bool,
) -> None:
    blocks, size = tokens // 8, 16
    key, value = (randn(tokens, heads, head_dim, dtype=dtype) * 100 for _ in range(2))
    key[0, 0, :2] = torch.tensor([1e4, -1e4], dtype=dtype)
    slots = torch.randperm(blocks * size, device="cuda")[:tokens]
    slots[5], slots[9], slots[11] = -1, blocks * size, -(2**31)
    slots = slots.to(torch.int32 if head_dim == 20 else torch.int64)
    scales = (0.5, 3.0) if cache == F8 else (1.0, 1.0)
    shape = (blocks, size, 2 * heads if pages else heads, head_dim)
    caches = [randn(*shape, dtype=cache) for _ in range(1 if pages else 2)]
    expected = [c.clone() for c in caches]
    keep = (slots >= 0) & (slots < blocks * size)
    for i, (x, scale) in enumerate(zip((key, value), scales, strict=True)):
        flat = expected[0 if pages else i].view(torch.uint8 if cache == F8 else cache)
        flat = flat.view(blocks * size, -1, head_dim)
        new = scaled(x, scale, cache)[keep]
        where = slice(i, None, 2) if pages else slice(None)
        flat[slots[keep].long(), where] = new.view(flat.dtype) if cache == F8 else new
    update(library, [key, value], slots, caches, scales=scales)
    for got, want in zip(caches, expected, strict=True):
        assert torch.equal(as_bytes(got), as_bytes(want))


def test_update_refuses_other_results(library: KernelLibrary) -> None:
    tokens = [randn(4, 2, 64, dtype=torch.bfloat16) for _ in range(2)]
    caches = [randn(2, 8, 2, 64, dtype=torch.bfloat16) for _ in range(2)]
    slots = torch.arange(4, device="cuda")
    with pytest.raises(RuntimeError, match=r"result 1 \(value_cache\): expected the buffer of"):
        update(library, tokens, slots, caches, [caches[0], caches[1].clone()])
