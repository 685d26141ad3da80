"""Programs on four devices under SPMD give right numbers, or an error of one sentence."""

import os

import numpy as np
import pytest
import torch
import torch_xla
import torch_xla.core.xla_builder as xb
import torch_xla.core.xla_model as xm
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from testing.scripts import run_script
from torch_xla.core import xla_op_registry

os.environ.setdefault("CPU_NUM_DEVICES", "4")  # before the first device is made


@pytest.fixture(scope="module")
def mesh() -> xs.Mesh:
    xr.use_spmd()
    assert xr.global_runtime_device_count() == 4
    return xs.Mesh(np.arange(4), (4,), ("x",))


@pytest.mark.parametrize("rows", [6, 12])
def test_compiled_chunks_of_a_batch(mesh: xs.Mesh, rows: int) -> None:
    """XLA chooses the chunks' shardings when it computes them, again in each call.

    A program for another sharding did not start, and later waits did not end.
    """

    def loss_of(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ weight.t()).sum()

    def step(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        total = 0
        for chunk in x.chunk(2):
            loss = loss_of(chunk, weight)
            loss.backward()
            total = total + loss.detach()
        return total

    compiled = torch.compile(step, backend="openxla")
    x, weight = torch.randn(rows, 6), torch.randn(16, 6, requires_grad=True)
    x_on_devices = x.to("xla")
    xs.mark_sharding(x_on_devices, mesh, ("x", None))
    weight_on_devices = weight.detach().to("xla").requires_grad_()
    for _ in range(3):
        total = compiled(x_on_devices, weight_on_devices)
        torch_xla.sync()
        torch.testing.assert_close(total.cpu(), step(x, weight))
    torch.testing.assert_close(weight_on_devices.grad.cpu(), weight.grad)
    torch_xla._XLAC._xla_wait_device_ops([])


@pytest.mark.parametrize("first", [("x", None), (None, "x"), (None, None)])
@pytest.mark.parametrize("second", [("x", None), (None, "x"), (None, None)])
@pytest.mark.parametrize("is_computed", [False, True])
def test_marked_again(mesh: xs.Mesh, first: tuple, second: tuple, is_computed: bool) -> None:
    values = torch.arange(64.0).view(8, 8)
    tensor = values.to("xla")
    if is_computed:
        tensor = tensor * 1
        torch_xla.sync()  # the program may not have started when the next line runs
    xs.mark_sharding(tensor, mesh, first)
    before = tensor + 1  # still to be computed
    if first not in (second, (None, None)):
        with pytest.raises(RuntimeError, match=r"has the sharding {devices=.*clear_sharding"):
            xs.mark_sharding(tensor, mesh, second)
        xs.clear_sharding(tensor)
    xs.mark_sharding(tensor, mesh, second)
    expected = values.to("xla")
    xs.mark_sharding(expected, mesh, second)
    spec = torch_xla._XLAC._get_xla_sharding_spec
    assert spec(tensor) == spec(expected)
    assert torch.equal((tensor * 2).cpu(), values * 2)
    assert torch.equal(before.cpu(), values + 1)


def test_clear_of_a_pending_tensor(mesh: xs.Mesh) -> None:
    """XLA refused the program: "Sharding instruction must have a sharding attribute"."""
    values = torch.arange(64.0).view(8, 8)
    tensor = values.to("xla") + 1
    xs.mark_sharding(tensor, mesh, ("x", None))
    before = tensor * 2
    xs.clear_sharding(tensor)
    after = tensor * 3
    torch_xla.sync()
    assert torch.equal(before.cpu(), (values + 1) * 2)
    assert torch.equal(after.cpu(), (values + 1) * 3)


def test_marks_in_a_compiled_function(mesh: xs.Mesh, capfd: pytest.CaptureFixture) -> None:
    """XLA has chosen the shardings of the values that the function marks."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        columns, rows = x * 2, x.cos()
        if x.device.type == "xla":
            xs.mark_sharding(columns, mesh, (None, "x"))
            xs.mark_sharding(rows, mesh, ("x", None))
        return columns + 1, columns @ rows

    torch._dynamo.reset()
    compiled = torch.compile(function, backend="openxla")
    for _ in range(3):
        x = torch.randn(8, 8)
        on_devices = x.to("xla")
        xs.mark_sharding(on_devices, mesh, ("x", None))
        for found, expected in zip(compiled(on_devices), function(x), strict=True):
            torch.testing.assert_close(found.cpu(), expected)
    assert "Backend compiler exception" not in capfd.readouterr().err


def test_mark_of_a_tensor_on_the_host(mesh: xs.Mesh) -> None:
    with pytest.raises(RuntimeError, match=r"shape \[4, 4\] is on cpu: move it") as error:
        xs.mark_sharding(torch.ones(4, 4), mesh, ("x", None))
    assert "\n" not in str(error.value)


LATE = """
import numpy as np, torch, torch_xla, torch_xla.distributed.spmd as xs, torch_xla.runtime as xr
if {count}:
    xr.global_runtime_device_count()
    torch.manual_seed(0)
    torch.ones(2, device=torch_xla.device())
else:
    x = torch.ones(8, 4).to("xla")
xr.use_spmd()
xr.use_spmd()
y = torch.arange(8.0).to("xla")
xs.mark_sharding(y, xs.Mesh(np.arange(4), (4,), ("x",)), ("x",))
print(y.sum().item())
device = torch_xla.device()
print(device, ((torch.ones(4).to(device) + torch.arange(4.0, device="xla")) * 3).sum().item())
torch_xla.sync()
try:
    torch.ones(2, device="xla:1")
except Exception as error:
    print(error)
"""


@pytest.mark.parametrize("count", [True, False])
def test_use_spmd_after_a_device_was_used(count: bool) -> None:
    code = LATE.format(count=count)
    done = run_script(code, timeout=60, CPU_NUM_DEVICES="4", XLA_USE_SPMD="0")
    if count:
        # https://github.com/pytorch/xla/issues/8973
        total, sums, error = done.stdout.splitlines()
        assert (total, sums) == ("28.0", "xla:0 30.0"), done.stderr
        assert error.startswith("there is no device xla:1: after use_spmd()")
    else:
        last = done.stderr.rstrip().splitlines()[-1]
        assert last.startswith("RuntimeError: use_spmd() comes too late") and done.returncode == 1


def test_devices_under_spmd(mesh: xs.Mesh) -> None:
    assert torch_xla._XLAC._xla_device_kind("xla:0") not in ("", "SPMD")
    assert isinstance(torch_xla._XLAC._xla_get_device_attributes("xla:0"), dict)
    if xr.device_type() != "CPU":
        info = xm.get_memory_info("xla:0")
        assert 0 < info["bytes_used"] <= info["peak_bytes_used"] < info["bytes_limit"]
    else:
        with pytest.raises(RuntimeError, match=r"^get_memory_info: XLA does not report .* CPU:0"):
            xm.get_memory_info("xla:0")
    for ask in (
        lambda: torch.ones(2, device="xla:1"),
        lambda: torch.ones(2).to("xla:1"),
        lambda: xm.get_memory_info("xla:1"),
    ):
        with pytest.raises((IndexError, RuntimeError), match="no device xla:1: after use_spmd"):
            ask()


def test_reading_inside_a_manual_region(mesh: xs.Mesh) -> None:
    tensor = torch.arange(16.0).view(4, 4).to("xla")
    xs.mark_sharding(tensor, mesh, ("x", None))
    part = xs.enable_manual_sharding(tensor, ("x", None), mesh=mesh).global_tensor * 2
    with pytest.raises(RuntimeError, match="pass it to disable_manual_sharding first"):
        part.cpu()
    part = xs.enable_manual_sharding(tensor, ("x", None), mesh=mesh).global_tensor * 2
    whole = xs.disable_manual_sharding(part, ("x", None), (4, 4), mesh=mesh).global_tensor
    assert torch.equal(whole.cpu(), torch.arange(16.0).view(4, 4) * 2)


def test_text_of_a_failed_check(mesh: xs.Mesh) -> None:
    """The check's message follows the C++ stack, which is left out."""
    tensor = torch.ones(8, 4).to("xla")
    xs.mark_sharding(tensor, mesh, ("x", None))
    shards = torch_xla._XLAC._get_local_shards([tensor])[0]
    data, devices = map(list, zip(*shards[:-1], strict=True))
    with pytest.raises(RuntimeError, match="Shards must be provided for all local") as error:
        torch_xla._XLAC._load_local_shards(tensor, data, devices)
    assert "stack trace" not in str(error.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8, torch.bool], ids=str)
def test_any_and_all_over_shards(mesh: xs.Mesh, dtype: torch.dtype) -> None:
    """XLA:CPU refused such an all-reduce of numbers, and XLA:GPU ended the process."""
    x = torch.zeros(8, 3, dtype=dtype)
    x[1:6, 0], x[:, 1] = 2, 3
    on_devices = x.to("xla")
    xs.mark_sharding(on_devices, mesh, ("x", None))
    for function in (torch.any, torch.all):
        for dims in ((), (0,), (1,), (0, True)):
            torch.testing.assert_close(function(on_devices, *dims).cpu(), function(x, *dims))


def test_reductions_that_xla_does_not_know(mesh: xs.Mesh) -> None:
    """XLA:CPU refused such an all-reduce, and XLA:GPU ended the process."""

    def hypotenuse(x: xb.Op) -> xb.Op:
        scalar = xb.mkshape("f32", ())
        computation = xb.create_computation(
            "hypotenuse", lambda a, b: (a * a + b * b).sqrt(), (scalar, scalar)
        )
        return x.reduce(xb.Op.scalar(x.builder(), 0.0, "f32"), computation, [0])

    x = torch.randn(8, 3, 2)
    on_devices = x.to("xla")
    xs.mark_sharding(on_devices, mesh, ("x", None, None))
    found = xla_op_registry.register("hypotenuse", hypotenuse)(on_devices)
    torch.testing.assert_close(found.cpu(), x.norm(dim=0))
    product = torch.view_as_real(torch.view_as_complex(on_devices).prod(0))
    torch.testing.assert_close(
        product.cpu(), torch.view_as_real(torch.view_as_complex(x).prod(0)), rtol=1e-4, atol=1e-5
    )


UNSYNCED = """
import torch, torch_xla
import torch_xla.runtime as xr
from torch_xla.experimental.fori_loop import while_loop
xr.use_spmd()
x = torch.ones(3, device="xla")
for _ in range(6):  # from the third value on, reading one computes all that is pending
    x = x + 1
    x.sum().item()
start = torch.tensor(0, device="xla"), x
print(while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), start)[1].tolist())
"""


def test_a_loop_is_traced_while_reading_computes_all() -> None:
    """Comparing two traces read a value, and with it computed what depends on placeholders."""
    done = run_script(UNSYNCED, timeout=60, CPU_NUM_DEVICES="4")
    assert done.stdout == "[56.0, 56.0, 56.0]\n", done.stderr
