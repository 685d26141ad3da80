"""Calls whose operands are results of other operations: XLA propagates shardings to them.

Only inputs and parameters are marked, as in any recipe for several devices.
"""

import os
import random
import struct
import warnings

import numpy as np
import pytest
import torch
import torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from testing import programs  # before the first computation
from testing.spmd import sharded
from testing.ways import run_by
from testing.xla import register_host_kernels

from torch_xla_ext import custom_call, define_operator, ops

os.environ.setdefault("CPU_NUM_DEVICES", "4")  # before the first device is made


@pytest.fixture(scope="module", autouse=True)
def num_devices() -> int:
    xr.use_spmd()
    torch_xla.device()
    register_host_kernels("TestCopy", "TestMatrixVector")
    define_operator(
        "test_propagation::matrix_vector(Tensor a, Tensor b) -> Tensor",
        target="TestMatrixVector",
        results=lambda a, b: [(a.shape[:1], a.dtype)],
        payload=lambda a, b: struct.pack("qq", *a.shape),
        sharding_rule="n t, t -> n; sum t",
    )
    define_operator(
        "test_propagation::eight_rows(Tensor a) -> Tensor",
        target="TestCopy",
        check=_check_eight_rows,
        results=lambda a: [(a.shape, a.dtype)],
        payload=lambda a: a.numel().to_bytes(8, "little"),
        sharding_rule="n m -> n m",
    )
    define_operator(
        "test_propagation::by_size(Tensor a) -> Tensor",
        target="TestCopy",
        results=lambda a: [(a.shape, a.dtype)],
        payload=lambda a: a.numel().to_bytes(8, "little"),
        sharding_rule=lambda a: "_ m -> _ m" if a.shape[0] == 1 else "n _ -> n _",
    )
    return xr.global_runtime_device_count()


def _check_eight_rows(a: torch.Tensor) -> None:
    if a.shape[0] % 8:
        raise ValueError(f"eight_rows: a must have a multiple of 8 rows, but has {a.shape[0]}")


@pytest.fixture
def line(num_devices: int) -> xs.Mesh:
    return xs.Mesh(np.arange(num_devices), (num_devices,), ("x",))


@pytest.fixture
def grid(num_devices: int) -> xs.Mesh:
    return xs.Mesh(np.arange(num_devices), (2, num_devices // 2), ("x", "y"))


def gathers(program: str) -> list[str]:
    return [each for each in programs.collectives(program) if each.startswith("all-gather")]


# Each way has its own shapes, because a program of equal shapes would not be compiled again.
ROWS = {"lazy": 8, "openxla": 32, "captured": 24}


@pytest.mark.parametrize("way", ["lazy", "openxla", "captured"])
def test_a_pending_operand(line: xs.Mesh, num_devices: int, way: str) -> None:
    weight = torch.randn(16, 16)
    w = sharded(weight, line, None)

    def step(x: torch.Tensor) -> torch.Tensor:
        h = x @ w
        return ops.simple_add(torch.tanh(h), h)

    function = run_by(way, step, fullgraph=True)
    with programs.compiled() as compiled:
        for _ in range(2):
            x = torch.randn(ROWS[way], 16)
            result = function(sharded(x, line, ("x", None))).cpu()
            h = x @ weight
            torch.testing.assert_close(result, h.tanh() + h)
    program = compiled.with_target("XlaGpuSimpleAdd")
    assert programs.collectives(program) == []
    assert (
        f"f32[{ROWS[way] // num_devices},16]" in program and f"f32[{ROWS[way]},16]" not in program
    )


def test_sharding_from_the_results_consumer(line: xs.Mesh, num_devices: int) -> None:
    """The operands are not marked, but the result is."""
    x = torch.randn(8, 16)
    operand = sharded(x, line, None)
    with programs.compiled() as compiled:
        result = ops.simple_add(operand * 2, operand)
        xs.mark_sharding(result, line, ("x", None))
        torch_xla.sync()
    torch.testing.assert_close(result.cpu(), x * 3)
    program = compiled.with_target("XlaGpuSimpleAdd")
    assert programs.collectives(program) == []
    assert f"(f32[{8 // num_devices},16]" in program


@pytest.mark.parametrize("shards_parameters", [False, True])
@pytest.mark.parametrize("way", ["lazy", "captured"])
def test_a_training_step(line: xs.Mesh, way: str, shards_parameters: bool) -> None:
    """The batch is marked, and the parameters in FSDP; only parameters are gathered.

    XLA gathers the smaller tensor, so the batch is larger than the parameters, as in practice.
    """
    torch.manual_seed(0)
    weights = [torch.randn(32, 16) / 4, torch.randn(16, 32) / 4]
    spec = ("x", None) if shards_parameters else None
    parameters = [sharded(weight, line, spec).requires_grad_() for weight in weights]
    expected = [weight.clone().requires_grad_() for weight in weights]

    def loss_of(x: torch.Tensor, on: list[torch.Tensor]) -> torch.Tensor:
        hidden = x @ on[0].t()
        hidden = ops.simple_add(torch.tanh(hidden), hidden)
        return (ops.simple_add(hidden @ on[1].t(), x) ** 2).mean()

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = loss_of(x, parameters)
        grads = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for parameter, grad in zip(parameters, grads, strict=True):
                parameter.sub_(grad)
        return loss.detach()

    function = run_by(way, step, fullgraph=True)
    with programs.compiled() as compiled:
        for _ in range(3):
            x = torch.randn(960, 16)
            loss = function(sharded(x, line, ("x", None)))
            torch_xla.sync()
            want = loss_of(x, expected)
            grads = torch.autograd.grad(want, expected)
            with torch.no_grad():
                for parameter, grad in zip(expected, grads, strict=True):
                    parameter.sub_(grad)
            torch.testing.assert_close(loss.cpu(), want.detach())
    for parameter, other in zip(parameters, expected, strict=True):
        torch.testing.assert_close(parameter.detach().cpu(), other.detach())
    steps = [text for text in compiled if 'custom_call_target="XlaGpuSimpleAdd' in text]
    assert steps
    for program in steps:
        found = {each.split()[1].partition("{")[0] for each in gathers(program)}
        assert found <= {"f32[32,16]", "f32[16,32]"}
        assert shards_parameters or not found
        assert "f32[960,32]" not in program  # all activations of the batch


def matrix_vector(way: str, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    def step(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.ops.test_propagation.matrix_vector(a * 1, b) + 1

    return run_by(way, step, fullgraph=True)(a, b)


@pytest.mark.parametrize("way", ["lazy", "openxla", "captured"])
@pytest.mark.parametrize(
    "spec", [(None, "x"), (None, ("x", "y")), ("x", "y"), ("y", "x"), ("x", None)], ids=str
)
def test_sums(grid: xs.Mesh, num_devices: int, spec: tuple, way: str) -> None:
    a, b = torch.randn(ROWS[way], 16), torch.randn(16)
    operands = sharded(a, grid, spec), sharded(b, grid, None)
    with programs.compiled() as compiled:
        result = matrix_vector(way, *operands).cpu()
    torch.testing.assert_close(result, a @ b + 1)
    parts = [{"x": 2, "y": num_devices // 2, None: 1, ("x", "y"): num_devices}[s] for s in spec]
    program = compiled.with_target("TestMatrixVector")
    kinds = [each.split()[0] for each in programs.collectives(program)]
    # Another program reads the result as a whole.
    assert kinds == ["all-reduce"] * (parts[1] > 1)
    assert f"f32[{ROWS[way] // parts[0]},{16 // parts[1]}]" in program


def test_a_part_that_the_kernel_refuses(line: xs.Mesh) -> None:
    a = torch.randn(8, 6)
    with pytest.warns(UserWarning, match="refuses a device's part: eight_rows: a must have a mult"):
        result = torch.ops.test_propagation.eight_rows(sharded(a, line, ("x", None))).cpu()
    assert torch.equal(result, a)
    a = torch.randn(32, 6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = torch.ops.test_propagation.eight_rows(sharded(a, line, ("x", None))).cpu()
    assert torch.equal(result, a)


def test_a_rule_that_depends_on_the_call(line: xs.Mesh) -> None:
    for a, spec in ((torch.randn(1, 8), (None, "x")), (torch.randn(8, 3), ("x", None))):
        operand = sharded(a, line, spec)
        with programs.compiled() as compiled:
            assert torch.equal(torch.ops.test_propagation.by_size(operand * 1).cpu(), a)
        assert programs.collectives(compiled.with_target("TestCopy")) == []


def test_a_manual_region_within_a_program(line: xs.Mesh) -> None:
    """Inside the region, each device has the traced part; outside, XLA divides the call."""
    a = torch.randn(8, 6)
    spec = ("x", None)
    part = xs.enable_manual_sharding(sharded(a, line, spec) * 2, spec, mesh=line).global_tensor
    part = ops.simple_add(part, part)
    whole = xs.disable_manual_sharding(part, spec, (8, 6), mesh=line).global_tensor
    assert torch.equal(ops.simple_add(whole, whole).cpu(), a * 8)


def test_calls_that_differ_only_in_their_rule(line: xs.Mesh) -> None:
    a = torch.randn(8, 8)
    operand = sharded(a, line, ("x", None))
    found = []
    for rule in ("n m, n m -> n m", "_ m, _ m -> _ m"):
        with programs.compiled() as compiled, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            (result,) = custom_call(
                "XlaGpuSimpleAdd", [operand * 1, operand], [operand], sharding_rule=rule
            )
            assert torch.equal(result.cpu(), a * 2)
        found.append(bool(programs.collectives(compiled.with_target("XlaGpuSimpleAdd"))))
    assert found == [False, True]


def test_random_programs(line: xs.Mesh, grid: xs.Mesh) -> None:
    """Random tensors are marked, also with sizes that the mesh does not divide."""
    rng = random.Random(5)
    for _ in range(40):
        torch.manual_seed(rng.randrange(10**6))
        mesh = rng.choice([line, grid])
        axes = [None, *mesh.axis_names]
        rows, columns = rng.choice([4, 6, 8, 12]), rng.choice([4, 5, 8, 12])

        def mark(tensor: torch.Tensor, mesh: xs.Mesh = mesh, axes: list = axes) -> torch.Tensor:
            spec = [rng.choice(axes) for _ in tensor.shape]
            if len(set(spec) - {None}) < len(spec) - spec.count(None) or not rng.randrange(3):
                return tensor  # an axis twice, or no mark
            if all(
                axis is None or size % mesh.mesh_shape[mesh.axis_names.index(axis)] == 0
                for axis, size in zip(spec, tensor.shape, strict=True)
            ):
                xs.mark_sharding(tensor, mesh, tuple(spec))
            return tensor

        values = [torch.randn(rows, columns) for _ in range(2)]
        tensors = [mark(value.to("xla")) for value in values]
        for _ in range(rng.randrange(1, 5)):
            kind = rng.choice(["add", "product", "vector", "transpose"])
            if kind == "add":
                i, j = rng.randrange(len(values)), len(values) - 1
                if values[i].shape != values[j].shape:
                    continue
                values.append(values[i] + values[j])
                tensors.append(mark(ops.simple_add(tensors[i], tensors[j] * 1)))
            elif kind == "transpose":
                values.append(values[-1].t().contiguous())
                tensors.append(mark(tensors[-1].t().contiguous()))
            elif kind == "product":
                other = torch.randn(values[-1].shape[1], values[-1].shape[1])
                values.append(values[-1] @ other)
                tensors.append(mark(tensors[-1] @ mark(other.to("xla"))))
            else:
                other = torch.randn(values[-1].shape[1])
                sums = torch.ops.test_propagation.matrix_vector(tensors[-1], mark(other.to("xla")))
                values.append(values[-1] * (values[-1] @ other).unsqueeze(1))
                tensors.append(mark(tensors[-1] * sums.unsqueeze(1)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for value, tensor in zip(values, tensors, strict=True):
                torch.testing.assert_close(tensor.cpu(), value, atol=1e-4, rtol=1e-4)
