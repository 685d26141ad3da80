"""Sharding rules of PyTorch's operators, Triton's kernels, functions of TVM-FFI and cuda_kernel."""

import gc
import math
import os
import re
import sys
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from testing import programs  # before the first computation
from testing.spmd import sharded
from testing.ways import run_by

import torch_xla_ext
from torch_xla_ext import cuda_kernel, custom_call, run_torch_operator, triton_call, tvm_ffi_call
from torch_xla_ext.custom_call import Local
from torch_xla_ext.sharding import partitioned_call, tiling

os.environ.setdefault("CPU_NUM_DEVICES", "4")  # before the first device is made
sys.path.insert(0, str(Path(__file__).parents[1] / "launchers"))
import triton_kernels as kernels

ROWS = {"lazy": 8, "openxla": 32, "captured": 24}
TORCH, TVM = "XlaGpuTorchOperator", "tvm_ffi_call"
# The shapes that the operator's kernel for the CPU received.
seen: list[tuple[int, ...]] = []


@pytest.fixture(scope="module")
def line() -> xs.Mesh:
    xr.use_spmd()
    count = xr.global_runtime_device_count()
    return xs.Mesh(np.arange(count), (count,), ("x",))


@pytest.fixture(scope="module", autouse=True)
def operators(line: xs.Mesh) -> None:
    @torch.library.custom_op("test_launchers::shift", mutates_args=())
    def shift(x: torch.Tensor, by: int) -> torch.Tensor:
        seen.append(tuple(x.shape))
        return x + by

    @shift.register_fake
    def _(x: torch.Tensor, by: int) -> torch.Tensor:
        return torch.empty_like(x)

    @torch.library.custom_op("test_launchers::add_", mutates_args=("state",))
    def add_(state: torch.Tensor, x: torch.Tensor) -> None:
        seen.append(tuple(x.shape))
        state.add_(x)

    register = torch_xla_ext.register_torch_operator
    register("test_launchers::shift", sharding_rule="... -> ...")
    register("test_launchers::add_", sharding_rule="n _, n _ -> n _")
    register("aten::logsumexp", sharding_rule=lambda self, dim, keepdim: "n _ -> n")


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gathers are errors, unless a test expects them."""
    monkeypatch.setenv("TORCH_XLA_EXT_REFUSE_GATHERS", "1")


@pytest.fixture
def gathers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_XLA_EXT_REFUSE_GATHERS", "0")


def check(
    line: xs.Mesh,
    step: Callable,
    expected: Callable,
    *operands: torch.Tensor,
    target: str = TORCH,
    collectives: tuple[str, ...] = (),
    spec: tuple | None = None,
) -> str:
    """Compares with PyTorch. The first operand is sharded, and its value is pending."""
    spec = spec or ("x", *[None] * (operands[0].dim() - 1))
    first = sharded(operands[0], line, spec)
    rest = [sharded(each, line, None) for each in operands[1:]]
    with programs.compiled() as compiled:
        result = step(first * 2, *rest)
        result = (result + 1).cpu()
    torch.testing.assert_close(result, expected(operands[0] * 2, *operands[1:]) + 1)
    program = compiled.with_target(target)
    assert [each.split()[0] for each in programs.collectives(program)] == list(collectives)
    part = [
        size // 4 if axis == "x" else size
        for size, axis in zip(operands[0].shape, spec, strict=True)
    ]
    call = next(text for text in program.splitlines() if f'target="{target}' in text)
    assert f"f32[{','.join(map(str, part))}]" in call
    return call


@pytest.mark.parametrize("way", ["lazy", "openxla", "captured"])
def test_a_registered_operator(line: xs.Mesh, way: str) -> None:
    seen.clear()
    x = torch.randn(ROWS[way], 6)
    check(
        line,
        run_by(way, lambda x: torch.ops.test_launchers.shift(x, 3), fullgraph=True),
        lambda x: x + 3,
        x,
    )
    assert set(seen) == {(ROWS[way] // 4, 6)}
    check(
        line,
        run_by(way, lambda x: torch.logsumexp(x, 1), fullgraph=True),
        lambda x: x.logsumexp(1),
        x,
    )


@pytest.mark.parametrize("way", ["lazy", "openxla", "captured"])
def test_an_operator_in_place(line: xs.Mesh, way: str) -> None:
    seen.clear()
    state, x = torch.randn(ROWS[way], 6), torch.randn(ROWS[way], 6)
    on_xla, other = sharded(state, line, ("x", None)), sharded(x, line, None)

    def step(state: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        torch.ops.test_launchers.add_(state, x * 2)
        return state.sum()

    function = run_by(way, step, fullgraph=True)
    with programs.compiled() as compiled:
        for i in range(2):
            total = function(on_xla, other)
            torch_xla.sync()
            torch.testing.assert_close(on_xla.cpu(), state + (i + 1) * 2 * x)
            torch.testing.assert_close(total.cpu(), on_xla.cpu().sum())
    assert set(seen) == {(ROWS[way] // 4, 6)}
    for program in compiled:
        assert "all-gather" not in str(programs.collectives(program)) or TORCH not in program


def test_one_call_of_an_operator(line: xs.Mesh) -> None:
    x, y = torch.randn(8, 16), torch.randn(16)
    run = run_torch_operator
    check(
        line,
        lambda x: run("aten::sum.dim_IntList", x, [1], sharding_rule="n t -> n; sum t"),
        lambda x: x.sum(1),
        x,
        spec=(None, "x"),
        collectives=("all-reduce",),
    )
    check(  # a tensor, a list of them, and two results
        line,
        lambda x: run("aten::topk", x, 3, sharding_rule="n _ -> n _, n _")[0],
        lambda x: x.topk(3)[0],
        x,
    )
    check(
        line,
        lambda x, y: run("aten::cat", [x, y], 1, sharding_rule="n _, n _ -> n _"),
        lambda x, y: torch.cat([x, y], 1),
        x,
        x + 1,
    )
    check(
        line,
        lambda x, y: run("aten::mv", x, y, sharding_rule="n t, t -> n; sum t"),
        torch.mv,
        x,
        y,
        spec=(None, "x"),
        collectives=("all-reduce",),
    )
    # The rule is part of a cached call.
    for rule, kinds in (("n m -> n m", ()), ("_ m -> _ m", ("all-gather",))):
        operand = sharded(x, line, ("x", None))
        with programs.compiled() as compiled, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            os.environ["TORCH_XLA_EXT_REFUSE_GATHERS"] = "0"
            result = run("aten::tanh", operand * 1, sharding_rule=rule).cpu()
        torch.testing.assert_close(result, x.tanh())
        found = programs.collectives(compiled.with_target(TORCH))
        assert tuple(each.split()[0] for each in found) == kinds


@pytest.mark.usefixtures("gathers")
def test_a_size_among_an_operators_arguments(line: xs.Mesh) -> None:
    """The size is the same on each device, which contradicts the rule's result."""
    x = torch.randn(8, 1)
    operand = sharded(x, line, ("x", None))
    with pytest.warns(UserWarning, match=r"inputs\[0\], .* is gathered .*: the kernel refuses"):
        result = run_torch_operator(
            "aten::expand_copy", operand * 1, [8, 5], sharding_rule="n _ -> n _"
        ).cpu()
    assert torch.equal(result, x.expand(8, 5))


def test_rules_that_are_refused(line: xs.Mesh) -> None:
    register = torch_xla_ext.register_torch_operator
    with pytest.raises(ValueError, match=r"one sharding_rule cannot fit all overloads, aten::c"):
        register("aten::clamp", sharding_rule="... -> ...")
    with pytest.raises(ValueError, match=r"bernoulli has random results, .* with the same shard"):
        register("aten::bernoulli", sharding_rule=lambda self, generator: "... -> ...")
    x = sharded(torch.randn(8, 6), line, ("x", None))
    with pytest.raises(NotImplementedError, match=r"bernoulli has random results, .* devices; use"):
        run_torch_operator("aten::bernoulli", x.sigmoid())
    with pytest.raises(ValueError, match=r"'n -> n' has 1 dimensions for operand inputs\[0\]"):
        run_torch_operator("aten::tanh", x, sharding_rule="n -> n")
    with pytest.raises(ValueError, match=r"add_scaled: sharding_rule .* has 1 operands, but"):
        triton_call(
            kernels.add_scaled, x, x, 48, 0.5, aliases=["state_ptr"], BLOCK=16, grid=3,
            sharding_rule="n _ -> n _",
        )  # fmt: skip


def test_a_triton_kernel(line: xs.Mesh) -> None:
    x, weight = torch.randn(8, 100), torch.randn(100)

    def step(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        (result,) = triton_call(
            kernels.rms_norm,
            *(x, weight),
            outputs=[x],
            columns=100,
            epsilon=0.5,
            BLOCK=128,
            grid=lambda args: args["x_ptr"].shape[:1],
            sharding_rule="n _, _ -> n _",
        )
        return result

    expected = lambda x, weight: torch.nn.functional.rms_norm(x, (100,), weight, 0.5)  # noqa: E731
    call = check(line, step, expected, x, weight)
    assert "f32[2,100]" in call and "f32[8,100]" not in call
    check(line, torch_xla_ext.capture(step), expected, torch.randn(16, 100), weight)


def test_triton_numbers_that_depend_on_the_part(line: xs.Mesh) -> None:
    """With numbers for the whole tensor, the kernels would exceed a part's buffers."""
    state, x = torch.randn(400), torch.randn(400)

    def add(state: torch.Tensor, x: torch.Tensor, n: object, grid: object) -> torch.Tensor:
        return triton_call(
            kernels.add_scaled,
            *(state, x, n, 0.5),
            aliases=["state_ptr"],
            BLOCK=64,
            grid=grid,
            sharding_rule="n, n -> n",
        )[0]

    def by_block(args: dict) -> int:
        return -(-args["n"] // args["BLOCK"])

    results, of_part = [], lambda args: args["state_ptr"].numel()
    check(line, lambda s, x: add(s, x, of_part, by_block), lambda s, x: s + x / 2, state, x)
    # Each of them is 50 for the whole tensor.
    for n in (50, lambda args: 50, lambda args: args["state_ptr"].numel() // 8 // 12 * 12 + 2):
        results.append(add(sharded(state, line, ("x",)) * 1, x.to("xla"), n, by_block).cpu())
    for result, n in zip(results, (50, 50, 14), strict=True):
        torch.testing.assert_close(result, state + x / 2 * (torch.arange(100) < n).repeat(4))
    call = {"outputs": {"y_ptr": x}, "sharding_rule": "n -> n", "n": of_x}
    check(line, lambda x: triton_call(kernels.guessed, x, grid=1, **call)[0], lambda x: x * 2, x)
    check(
        line, lambda x: triton_call(kernels.tuned, x, grid=by_block, **call)[0], lambda x: x + 1, x
    )


def test_the_tensors_of_a_call_are_not_kept(line: xs.Mesh) -> None:
    x = sharded(torch.randn(400), line, ("x",))
    call = {"outputs": {"y_ptr": x}, "sharding_rule": "n -> n", "n": of_x}
    kept = weakref.ref(x)
    results = [
        triton_call(kernels.guessed, x, grid=1, **call)[0].cpu(),
        run_torch_operator("aten::tanh", x, sharding_rule="n -> n").cpu(),
    ]
    del x, call, results
    gc.collect()
    assert kept() is None


def of_x(args: dict) -> int:
    return args["x_ptr"].numel()


def test_tritons_own_launch(line: xs.Mesh) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        kernels.guessed[(1,)](x, y, of_x, sharding_rule="n, n -> n")
        return y

    check(line, step, lambda x: x * 2, torch.randn(800))


@pytest.mark.usefixtures("gathers")
def test_a_part_that_a_function_refuses(line: xs.Mesh) -> None:
    def grid(args: dict) -> int:
        if args["x_ptr"].numel() < 100:
            raise ValueError("at least 100 elements")
        return 1

    x = torch.randn(200)
    call = {"outputs": {"y_ptr": x}, "sharding_rule": "n -> n", "n": of_x}
    with pytest.warns(UserWarning, match="refuses a device's part: at least 100 elements"):
        result = triton_call(kernels.guessed, sharded(x, line, ("x",)), grid=grid, **call)[0].cpu()
    assert torch.equal(result, x * 2)


def test_the_rule_of_a_registration(line: xs.Mesh) -> None:
    """`local` computes a part's payload: its number of elements."""
    path = os.environ["HOST_KERNELS"]
    register = torch_xla_ext.register_custom_call
    register("OfRegistration", path, symbol="TestCopy", platform="Host", sharding_rule="n _ -> n _")

    def payload(x: object) -> bytes:
        return math.prod(x.shape).to_bytes(8, "little")

    def step(x: torch.Tensor, **options: object) -> torch.Tensor:
        local = Local(lambda inputs, outputs: {"payload": payload(inputs[0])})
        return custom_call("OfRegistration", [x], [x], payload=payload(x), local=local, **options)[
            0
        ]

    x = torch.randn(8, 6)
    check(line, step, lambda x: x, x, target="OfRegistration")
    rule = {"sharding_rule": "_ n -> _ n"}
    check(
        line, lambda x: step(x, **rule), lambda x: x, x.repeat(1, 2), target="OfR", spec=(None, "x")
    )
    with pytest.raises(RuntimeError, match="dimension 1, of 12, is one that each device needs"):
        step(sharded(x.repeat(1, 2), line, (None, "x"))).cpu()


def test_a_function_of_tvm_ffi(line: xs.Mesh) -> None:
    tvm_ffi = pytest.importorskip("tvm_ffi")
    got = []

    def fill(x: object, count: int, out: object) -> None:
        x, out = torch.from_dlpack(x), torch.from_dlpack(out)
        got.append((tuple(x.shape), count))
        out.copy_(x * 3)

    function = tvm_ffi.convert(fill)

    def step(x: torch.Tensor) -> torch.Tensor:
        return tvm_ffi_call(
            function,
            x,
            lambda args: args[0].shape[0] * args[2].shape[1],
            outputs={2: x},
            sharding_rule="n _ -> n _",
        )[0]

    check(line, step, lambda x: x * 3, torch.randn(8, 6), target=TVM)
    assert set(got) == {((2, 6), 12)}
    got.clear()
    plain = lambda x: tvm_ffi_call(function, x, 48, outputs=[x], sharding_rule="n _ -> n _")[0]  # noqa: E731
    check(line, plain, lambda x: x * 3, torch.randn(8, 6), target=TVM)
    assert set(got) == {
        ((2, 6), 48)
    }  # the caller states that the payload is the same on each device


SCALED = """
__global__ void scaled(const float* x, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = x[i] * 2;
}"""


def scaled(x: torch.Tensor) -> torch.Tensor:
    kernel = cuda_kernel(SCALED, "scaled", reference=lambda x, n: x[:, : n // x.shape[0]] * 2)
    return kernel[lambda args: (-(-args["n"] // 8),), 8](
        x, lambda args: args[0].size, outputs=[x], sharding_rule="n m -> n m"
    )[0]


def test_the_reference_of_a_cuda_kernel(line: xs.Mesh) -> None:
    x = torch.randn(8, 6)
    with programs.compiled() as compiled:
        result = (scaled(sharded(x, line, ("x", None))) + 1).cpu()
    assert torch.equal(result, x * 2 + 1)
    (program,) = [each for each in compiled if "multiply" in each]
    assert programs.collectives(program) == [] and "f32[2,6]" in program


def launch_of_parts(call: Callable, *operands: int) -> tuple[object, str, str]:
    """The launch on each device when these operands are divided along their first dimension."""
    before = set(partitioned_call._calls)
    result = call()
    (name,) = set(partitioned_call._calls) - before
    shardings = []
    for i, array in enumerate(partitioned_call._calls[name].operands.values()):
        rest = len(array.shape) - 1
        rows = tiling.Tiling((4, *[1] * rest), ((0, 1, 2, 3), *[()] * rest))
        shardings.append(tiling.write(rows) if i in operands else None)
    divided = partitioned_call._divide(name, shardings, None)
    del result
    grid = re.search(r"grid = array<i32: ([\d, ]*)>", divided.payload)[1]
    return divided, grid, re.search(r'parameters = "([^"]*)"', divided.payload)[1]


@pytest.mark.usefixtures("on_a_gpu")
def test_the_launch_of_a_cuda_kernel(line: xs.Mesh) -> None:
    x = torch.zeros(8, 6, device="xla")
    divided, grid, words = launch_of_parts(lambda: scaled(x), 0)
    assert (divided.operand_shapes, list(divided.result_shapes)) == ([(2, 6)], [(2, 6)])
    assert grid == "2, 1, 1" and words == "t0 r0 x0c000000"
    kernel = cuda_kernel(
        SCALED,
        "scaled",
        signature="(x: F32[a, b]) -> (out: F32[a, b])",
        arguments="x out x.size",
        grid=lambda args: (args["a"], 1),
        block=32,
    )
    divided, grid, words = launch_of_parts(lambda: kernel(x, sharding_rule="a b -> a b"), 0)
    assert grid == "2, 1, 1" and words == "t0 r0 x0c000000"
    # Calls that are alike are one, and cached ones depend on the rule.
    before = dict(partitioned_call._calls)
    kernel(x, sharding_rule="a b -> a b"), scaled(x)
    assert partitioned_call._calls == before
    kernel(x, sharding_rule="a _ -> a _")
    assert len(partitioned_call._calls) == len(before) + 1


@pytest.mark.usefixtures("on_a_gpu")
def test_the_launch_of_a_triton_kernel(line: xs.Mesh) -> None:
    x = torch.zeros(800, device="xla")

    def call(grid: object) -> list[torch.Tensor]:
        return triton_call(
            kernels.guessed, x, outputs={"y_ptr": x}, n=of_x, grid=grid, sharding_rule="n -> n"
        )

    divided, grid, words = launch_of_parts(lambda: call(lambda args: args["BLOCK"] // 8), 0)
    assert divided.operand_shapes == [(200,)]
    assert grid == "32, 1, 1" and words.startswith("t0 r0 xc8000000")  # BLOCK is 256
    before = len(partitioned_call._calls)
    call(lambda args: args["BLOCK"] // 8)
    assert len(partitioned_call._calls) == before
    call(128)  # as much for the whole
    assert len(partitioned_call._calls) == before + 1
