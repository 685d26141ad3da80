"""The CUDA kernels of paged_attention, without XLA, against float64.

Needs a GPU, any torch with CUDA, and PAGED_KERNELS, the library that Bazel builds as
//benchmarks:libpaged_kernels.so; and `pytest --noconftest`, since conftest.py asks for the wheel.
"""

import math
import os
import random
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))
from kernel_library import KernelLibrary
from testing.paged import FP8, TOLERANCES, assert_lse_close, attention_and_lse, relative_error

pytestmark = pytest.mark.skipif(
    "PAGED_KERNELS" not in os.environ or not torch.cuda.is_available(),
    reason="needs PAGED_KERNELS and a GPU",
)


@pytest.fixture(scope="module")
def library() -> KernelLibrary:
    return KernelLibrary(os.environ["PAGED_KERNELS"])


def workspace_floats(num_heads: int, num_kv_heads: int, head_dim: int) -> int:
    """The workspace's size, as torch.ops.xla_gpu.paged_attention chooses it."""
    return 512 * (2 * min(num_heads // num_kv_heads, 16) * (head_dim + 2) + 2) + 4


@dataclass
class Case:
    contexts: list[int]
    dtype: torch.dtype = torch.bfloat16
    cache: torch.dtype | None = None  # dtype unless given
    num_kv_heads: int = 2
    group: int = 4
    head_dim: int = 128
    block_size: int = 16
    window: int = 0
    soft_cap: float = 0.0
    alibi: bool = False
    workspace: int | None = None
    magnitude: float = 1.0  # of the queries
    sinks: bool = False


def randn(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, device="cuda").to(dtype)


class Inputs:
    """Random operands. Tokens that the kernel must not read are NaN."""

    def __init__(self, case: Case, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.case = case
        cache = case.cache or case.dtype
        size = case.block_size
        num_heads = case.num_kv_heads * case.group
        used = [-(-n // size) for n in case.contexts]
        max_blocks = max(*used, 1) + 1
        num_blocks = sum(used) + 3
        shape = (num_blocks, size, case.num_kv_heads, case.head_dim)
        self.query = (
            randn(len(case.contexts), num_heads, case.head_dim, dtype=torch.float32)
            .mul_(case.magnitude)
            .to(case.dtype)
        )
        keys, values = (randn(*shape, dtype=torch.float32) for _ in range(2))
        order = torch.randperm(num_blocks, device="cuda")
        self.tables = torch.full(
            (len(used), max_blocks), 0x7F7F7F7F, dtype=torch.int32, device="cuda"
        )
        free = torch.ones(num_blocks, size, dtype=torch.bool, device="cuda")
        begin = 0
        for i, (count, n) in enumerate(zip(used, case.contexts, strict=True)):
            blocks = order[begin : begin + count]
            self.tables[i, :count] = blocks.to(torch.int32)
            begin += count
            low = max(0, n - case.window) if case.window else 0
            positions = torch.arange(low, n, device="cuda")
            free[blocks[positions // size], positions % size] = False
        keys[free], values[free] = math.nan, math.nan
        self.keys, self.values = keys.to(cache), values.to(cache)
        self.lens = torch.tensor(case.contexts, dtype=torch.int32, device="cuda")
        self.slopes = torch.rand(num_heads, device="cuda") if case.alibi else None
        self.sinks = torch.randn(num_heads, device="cuda") * 4 if case.sinks else None
        fp8 = cache == FP8
        self.parameters = dict(
            scale=case.head_dim**-0.5,
            sliding_window=case.window,
            soft_cap=case.soft_cap,
            key_scale=0.7 if fp8 else 1.0,
            value_scale=1.3 if fp8 else 1.0,
            report_out_of_range=False,
        )
        floats = case.workspace
        if floats is None:
            floats = workspace_floats(num_heads, case.num_kv_heads, case.head_dim)
        self.workspace = torch.empty(floats, device="cuda")

    def run(self, library: KernelLibrary, lse: torch.Tensor | None = None) -> torch.Tensor:
        out = torch.full_like(self.query, math.nan)
        if lse is None:
            lse = torch.empty(0, out.shape[1], device="cuda")
        self.workspace.fill_(math.nan)
        arrays = {
            "query": self.query,
            "key_cache": self.keys,
            "value_cache": self.values,
            "block_tables": self.tables,
            "context_lens": self.lens,
            "alibi_slopes": self.slopes,
            "sinks": self.sinks,
            "out": out,
            "lse": lse,
            "workspace": self.workspace,
        }
        library.bind("XlaGpuPagedAttention", arrays, self.parameters)()
        torch.cuda.synchronize()
        return out

    def reference(self) -> torch.Tensor:
        return self.reference_with_lse()[0]

    def reference_with_lse(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the results in float64, from the header's definition."""
        case, p = self.case, self.parameters
        num_blocks, size = self.keys.shape[:2]
        out = torch.zeros_like(self.query, dtype=torch.float64)
        lse = torch.full_like(out[..., 0], -math.inf)
        if self.sinks is not None:
            lse[:] = self.sinks.double()
        for i in range(len(self.query)):
            n = min(max(int(self.lens[i]), 0), self.tables.shape[1] * size)
            if n == 0:
                continue
            positions = torch.arange(n, device="cuda")
            blocks = self.tables[i].long()[positions // size]
            present = (blocks >= 0) & (blocks < num_blocks)
            rows = blocks.clamp(0, num_blocks - 1), positions % size
            out[i], lse[i] = attention_and_lse(
                self.query[i : i + 1],
                *(cache[rows].float().double() for cache in (self.keys, self.values)),
                scale=p["scale"] * p["key_scale"],
                sliding_window=case.window or None,
                soft_cap=case.soft_cap or None,
                alibi_slopes=self.slopes,
                present=present,
                sinks=self.sinks,
            )
        return out * p["value_scale"], lse


def check(library: KernelLibrary, inputs: Inputs) -> torch.Tensor:
    out, (expected, expected_lse) = inputs.run(library), inputs.reference_with_lse()
    error = relative_error(out, expected)
    assert error <= TOLERANCES[inputs.case.dtype], (error, inputs.case)
    # Each row is compared: a norm of all rows would hide a wrong head or sequence.
    rows = (out.double() - expected).norm(dim=-1)
    limits = 4 * TOLERANCES[inputs.case.dtype] * expected.norm(dim=-1)
    assert (rows <= limits).all(), (rows / limits, inputs.case)
    lse = torch.full(out.shape[:2], math.nan, device="cuda")
    again = inputs.run(library, lse)
    assert torch.equal(out.view(torch.int16), again.view(torch.int16)), "not deterministic"
    assert_lse_close(lse, expected_lse)
    return out


TYPES = [
    (torch.bfloat16, None), (torch.float16, None), (torch.bfloat16, FP8), (torch.float16, FP8),
]  # fmt: skip


@pytest.mark.parametrize("head_dim", [64, 96, 128, 192, 256])
@pytest.mark.parametrize("group", [1, 4, 9, 16, 40])
@pytest.mark.parametrize(("dtype", "cache"), TYPES, ids=str)
def test_every_kernel(
    library: KernelLibrary, dtype: torch.dtype, cache: torch.dtype | None, group: int, head_dim: int
) -> None:
    contexts = [1, 15, 16, 17, 0, 700, 33, 64]
    case = Case(contexts, dtype, cache, head_dim=head_dim, group=group)
    check(library, Inputs(case))


def random_case(generator: random.Random) -> Case:
    dtype, cache = generator.choice(TYPES)
    kind = generator.choice(["short", "long", "mixed"])
    longest = {"short": 100, "long": 9000, "mixed": 3000}[kind]
    count = generator.randint(1, 40 if kind == "short" else 8)
    contexts = [generator.randint(0, longest) for _ in range(count)]
    return Case(
        contexts,
        dtype,
        cache,
        num_kv_heads=generator.choice([1, 2, 3, 5, 8, 20]),
        group=generator.choice([1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 64]),
        head_dim=generator.choice([64, 96, 128, 192, 256]),
        block_size=generator.choice([8, 16, 24, 32, 56, 64, 128, 256, 13]),
        window=generator.choice([0, 0, 1, 7, 100, 1000]),
        soft_cap=generator.choice([0.0, 0.0, 5.0, 50.0]),
        alibi=generator.random() < 0.3,
        sinks=generator.random() < 0.5,
        workspace=generator.choice([None, None, None, 0, 1, 5000, 50000]),
    )


@pytest.mark.parametrize("seed", range(80))
def test_random_cases(library: KernelLibrary, seed: int) -> None:
    check(library, Inputs(random_case(random.Random(seed)), seed))


@pytest.mark.parametrize("head_dim", [64, 96, 128, 192, 256])
@pytest.mark.parametrize("group", [1, 4, 9, 16, 40])
@pytest.mark.parametrize(("dtype", "cache"), TYPES, ids=str)
def test_every_cluster_kernel(
    library: KernelLibrary, dtype: torch.dtype, cache: torch.dtype | None, group: int, head_dim: int
) -> None:
    """There are so few sequences that each has a thread block cluster, on GPUs that support
    them."""
    check(library, Inputs(Case([1500, 0], dtype, cache, head_dim=head_dim, group=group)))


@pytest.mark.parametrize("context", [0, 1, 15, 31, 32, 33, 1023, 1024, 1025, 4096, 8191])
@pytest.mark.parametrize(
    "options", [{}, {"window": 1000}, {"soft_cap": 5.0, "alibi": True}, {"sinks": True}], ids=str
)
def test_one_sequence(library: KernelLibrary, options: dict, context: int) -> None:
    check(library, Inputs(Case([context], num_kv_heads=8, **options)))


@pytest.mark.parametrize("block_size", [8, 13, 24, 128, 256])
@pytest.mark.parametrize("cache", [None, FP8], ids=str)
@pytest.mark.parametrize("window", [0, 100])
def test_one_sequence_block_sizes(
    library: KernelLibrary, window: int, cache: torch.dtype | None, block_size: int
) -> None:
    check(library, Inputs(Case([2345], cache=cache, block_size=block_size, window=window)))


# An H200 has room for 14 clusters (UseClusters in launch.cuh).
@pytest.mark.parametrize("kv_heads", [1, 5, 6, 7, 8, 14, 15, 20])
@pytest.mark.parametrize("sequences", [1, 2, 3])
def test_around_the_choice_of_kernels(
    library: KernelLibrary, sequences: int, kv_heads: int
) -> None:
    for longest in (1000, 16_368, 16_369, 40_000):  # with a free block 16,384, and one more
        check(library, Inputs(Case([longest, 1, 300][:sequences], num_kv_heads=kv_heads)))


@pytest.mark.parametrize("cache", [None, FP8], ids=str)
def test_one_long_context(library: KernelLibrary, cache: torch.dtype | None) -> None:
    check(library, Inputs(Case([131_072], num_kv_heads=8, cache=cache)))


@pytest.mark.parametrize("contexts", [[700], [700, 5000, 3] * 8])
def test_inputs_of_the_kernel_before(library: KernelLibrary, contexts: list[int]) -> None:
    """The kernels may start before earlier work on the stream has ended."""
    inputs, others = (Inputs(Case(contexts, num_kv_heads=4), seed) for seed in (0, 1))
    others.keys, others.values = (
        t[torch.randperm(len(t), device="cuda")].nan_to_num() for t in (inputs.keys, inputs.values)
    )
    others.lens.sub_(1)
    names = ["query", "keys", "values", "tables", "lens"]
    pairs = [(getattr(inputs, name), getattr(others, name).clone()) for name in names]
    out = torch.full_like(inputs.query, math.nan)
    arrays = {
        "query": inputs.query,
        "key_cache": inputs.keys,
        "value_cache": inputs.values,
        "block_tables": inputs.tables,
        "context_lens": inputs.lens,
        "out": out,
        "lse": torch.empty(0, out.shape[1], device="cuda"),
        "workspace": inputs.workspace,
    }
    call = library.bind("XlaGpuPagedAttention", arrays, inputs.parameters)
    old = [mine.clone() for mine, _ in pairs]
    results = torch.full((2, *out.shape), math.nan, dtype=out.dtype, device="cuda")
    side = torch.cuda.Stream()

    def steps() -> None:
        for result, sources in zip(results, (old, [new for _, new in pairs]), strict=True):
            for (mine, _), source in zip(pairs, sources, strict=True):
                torch.add(source, 0, out=mine)  # a kernel
            call()
            result.copy_(out)
            out.zero_()  # a memset in front of the next call
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                inputs.workspace.fill_(math.nan)
            torch.cuda.current_stream().wait_stream(side)
            call()

    steps()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        steps()
    direct = results.clone()
    for _ in range(3):
        results.fill_(math.nan)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(results.view(torch.int16), direct.view(torch.int16))
    assert torch.equal(results[1], out)
    expected = inputs.reference()
    assert relative_error(results[1], expected) <= TOLERANCES[inputs.case.dtype]
    for (mine, _), source in zip(pairs, old, strict=True):
        mine.copy_(source)
    assert relative_error(results[0], inputs.reference()) <= TOLERANCES[inputs.case.dtype]


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("floats", [0, 1, 10_000, 100_000, None])
def test_any_workspace(library: KernelLibrary, floats: int | None, sinks: bool) -> None:
    case = Case([0, 5000, 17, 4096], num_kv_heads=8, workspace=floats, sinks=sinks)
    check(library, Inputs(case))


def test_long_contexts(library: KernelLibrary) -> None:
    check(library, Inputs(Case([131072, 0, 200_001], num_kv_heads=1)))


def test_many_sequences(library: KernelLibrary) -> None:
    generator = random.Random(1)
    check(library, Inputs(Case([generator.randint(0, 50) for _ in range(700)])))


def test_no_context_gives_zeros(library: KernelLibrary) -> None:
    assert (Inputs(Case([0, 0, 0])).run(library) == 0).all()


def test_large_and_small_queries(library: KernelLibrary) -> None:
    """The queries are out of float16's range; the fp8 kernel computes in float16."""
    for magnitude in (1e-30, 1e-3, 30.0):
        check(library, Inputs(Case([300, 20], cache=FP8, magnitude=magnitude)))
    check(library, Inputs(Case([1, 1], cache=FP8, magnitude=1e30)))


def test_nan_stays_nan(library: KernelLibrary) -> None:
    inputs = Inputs(Case([500, 40]))
    inputs.query[0, 3] = math.nan
    out = inputs.run(library)
    assert out[0, 3].isnan().all()
    assert not out[0, :3].isnan().any()
    assert not out[1].isnan().any()


def test_shared_blocks(library: KernelLibrary) -> None:
    inputs = Inputs(Case([640, 640, 640]))
    inputs.tables[1, :20] = inputs.tables[0, :20]
    inputs.tables[2] = inputs.tables[0]
    check(library, inputs)


@pytest.mark.parametrize("workspace", [None, 0])
@pytest.mark.parametrize("kv_heads", [2, 8])
def test_device_data_out_of_range(
    library: KernelLibrary, kv_heads: int, workspace: int | None
) -> None:
    inputs = Inputs(Case([300, 200, 100, 64], num_kv_heads=kv_heads, workspace=workspace))
    inputs.lens.copy_(torch.tensor([-5, 2**31 - 1, 100, 64]))
    num_blocks = len(inputs.keys)
    inputs.keys.nan_to_num_()
    inputs.values.nan_to_num_()
    inputs.tables[2, 0], inputs.tables[2, 3] = -1, num_blocks
    inputs.tables[3] = 2**31 - 1
    out = check(library, inputs)
    assert (out[0] == 0).all()
    assert (out[3] == 0).all()


def test_report_out_of_range(library: KernelLibrary, capfd: pytest.CaptureFixture) -> None:
    inputs = Inputs(Case([300, 200]))
    inputs.lens[0] = -5
    inputs.tables[1, 2] = -7
    inputs.parameters["report_out_of_range"] = True
    inputs.run(library)
    text = capfd.readouterr().out
    assert "context_lens[0] = -5 is not in [0, 320]" in text
    assert f"block_tables[1][2] = -7 is not in [0, {len(inputs.keys)})" in text


def test_cache_of_more_than_2_31_elements(library: KernelLibrary) -> None:
    inputs = Inputs(Case([100, 50], num_kv_heads=8))
    num_blocks = 2**31 // inputs.keys[0].numel() + 100
    large = [
        torch.empty(num_blocks, *t.shape[1:], dtype=t.dtype, device="cuda")
        for t in (inputs.keys, inputs.values)
    ]
    used = inputs.tables < len(inputs.keys)
    moved = torch.where(used, num_blocks - 1 - inputs.tables, inputs.tables)
    for to, small in zip(large, (inputs.keys, inputs.values), strict=True):
        to[num_blocks - len(small) :] = small.flip(0)
    inputs.keys, inputs.values, inputs.tables = *large, moved.to(torch.int32)
    check(library, inputs)


def test_refused_calls(library: KernelLibrary) -> None:
    def message(case: Case) -> str:
        with pytest.raises((TypeError, ValueError)) as error:
            Inputs(case).run(library)
        return str(error.value)

    assert "head_dim" in message(Case([4], head_dim=80))
    mixed = Case([4], dtype=torch.bfloat16, cache=torch.float16)
    assert "operand 1 (key_cache): expected dtype BF16" in message(mixed)
