"""Checkpoints of sharded states: the SPMD planners, and the CheckpointManager."""

import os
import signal
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.experimental.distributed_checkpoint as xc
import torch_xla.runtime as xr
from testing.scripts import run_script

os.environ.setdefault("CPU_NUM_DEVICES", "4")  # before the first device is made

# A run that trains for some steps, captured or not, on parameters that are sharded over `axes`.
TRAIN = """
import sys, warnings
import numpy as np, torch, torch_xla, torch_xla_ext
import torch.distributed as dist, torch.distributed.checkpoint as dcp
import torch_xla.distributed.spmd as xs, torch_xla.runtime as xr
import torch_xla.experimental.distributed_checkpoint as xc

warnings.simplefilter("ignore")
mode, folder, captured, axes = MODE
if axes:
    xr.use_spmd()
count = xr.global_runtime_device_count()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.Tanh(), torch.nn.Linear(6, 8)).to("xla")
if axes:
    mesh = xs.Mesh(np.arange(count), (2, count // 2)[-len(axes):] if axes[1:] else (count,), axes)
    for parameter in model.parameters():
        xs.mark_sharding(parameter, mesh, (*axes, None)[: parameter.dim()])
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, capturable=True)

def step(x):
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()

if captured:
    step = torch_xla_ext.capture(step)
train = lambda steps: [step(torch.arange(16.).view(2, 8).to("xla")) for _ in range(steps)]
train(3 if mode == "save" else 1)
state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}
if mode == "save":
    dcp.save(state, checkpoint_id=folder, planner=xc.SPMDSavePlanner(), no_dist=True)
else:
    state["epoch"] = 0
    dcp.load(state, checkpoint_id=folder, planner=xc.SPMDLoadPlanner(), no_dist=True)
    assert state["epoch"] == 3
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
print([round(loss.item(), 5) for loss in train(3)])
"""


def train(devices: int, *mode: object) -> str:
    code = TRAIN.replace("MODE", repr(mode))
    done = run_script(code, timeout=100, CPU_NUM_DEVICES=str(devices))
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("saved", "loaded"),
    [
        pytest.param((4, False, ("fsdp", "model")), (2, True, ("fsdp",)), id="lazy to captured"),
        pytest.param((2, True, ("fsdp",)), (1, False, ()), id="captured to one device"),
    ],
)
def test_restored_on_other_devices(
    tmp_path: Path, saved: tuple[int, bool, tuple], loaded: tuple[int, bool, tuple]
) -> None:
    before = train(saved[0], "save", str(tmp_path), *saved[1:])
    assert train(loaded[0], "load", str(tmp_path), *loaded[1:]) == before


@pytest.fixture(scope="module")
def meshes() -> list[xs.Mesh]:
    xr.use_spmd()
    assert xr.global_runtime_device_count() == 4
    turned = xs.Mesh(np.array([2, 0, 3, 1]), (2, 2), ("a", "b"))
    return [xs.Mesh(np.arange(4), (4,), ("a",)), xs.Mesh(np.arange(4), (2, 2), ("a", "b")), turned]


# The mesh and the partition spec: over all devices, some axes, axes in a different order, and none.
SPECS = [
    (0, ("a", None)),
    (1, ("b", "a")),
    (1, ("a", None)),
    (2, (None, "b")),
    (1, (("b", "a"), None)),
    None,
]


def on_devices(
    values: dict[str, torch.Tensor], meshes: list[xs.Mesh], spec: tuple | None
) -> dict[str, torch.Tensor]:
    result = {name: value.to("xla") for name, value in values.items()}
    for value in result.values() if spec else ():
        xs.mark_sharding(value, meshes[spec[0]], spec[1])
    return result


def shardings(state: dict[str, torch.Tensor]) -> list[str]:
    return [torch_xla._XLAC._get_xla_sharding_spec(value) for value in state.values()]


@pytest.mark.parametrize("saved", SPECS)
def test_states_are_restored_with_any_sharding(
    tmp_path: Path, meshes: list[xs.Mesh], saved: tuple | None
) -> None:
    """The states include sizes that a mesh does not divide, and fewer rows than devices."""
    values = {
        f"{rows}x{columns} {dtype}": (torch.arange(rows * columns).view(rows, columns) + 1).to(
            dtype
        )
        for rows, columns in ((8, 4), (6, 5), (1, 7))
        for dtype in (torch.float32, torch.bfloat16)
    }
    state = on_devices(values, meshes, saved)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*(storage_meta|multidimensional indexing)")
        dcp.save(state, checkpoint_id=tmp_path, planner=xc.SPMDSavePlanner(), no_dist=True)
        for loaded in SPECS:
            zeros = {name: torch.zeros_like(value) for name, value in values.items()}
            state = on_devices(zeros, meshes, loaded)
            specs = shardings(state)
            dcp.load(state, checkpoint_id=tmp_path, planner=xc.SPMDLoadPlanner(), no_dist=True)
            for name, value in state.items():
                assert torch.equal(value.cpu(), values[name]), (name, loaded)
            assert not loaded or shardings(state) == specs


def test_tensors_that_a_checkpoint_cannot_fill(tmp_path: Path, meshes: list[xs.Mesh]) -> None:
    options = {"checkpoint_id": tmp_path, "no_dist": True}
    saved = on_devices({"w": torch.ones(4, 4)}, meshes, SPECS[0])
    dcp.save({**saved, "o": {1, 2}}, planner=xc.SPMDSavePlanner(), **options)
    for name, rows, error in (
        ("w", 8, "Size mismatch"),
        ("v", 4, "Missing key"),
        ("o", 4, "not a tensor"),
    ):
        state = on_devices({name: torch.zeros(rows, 4)}, meshes, SPECS[0])
        with pytest.raises(dcp.api.CheckpointException, match=error):
            dcp.load(state, planner=xc.SPMDLoadPlanner(), **options)
    state = {"o": None}
    dcp.load(state, planner=xc.SPMDLoadPlanner(), **options)
    assert state == {"o": {1, 2}}


@pytest.fixture(scope="module")
def process_group(meshes: list[xs.Mesh], tmp_path_factory: pytest.TempPathFactory) -> Iterator:
    store = dist.FileStore(str(tmp_path_factory.mktemp("store") / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("process_group")
@pytest.mark.filterwarnings("ignore:TypedStorage")
class TestManager:
    def test_values_of_the_call(
        self, tmp_path: Path, meshes: list[xs.Mesh], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        manager = xc.CheckpointManager(str(tmp_path), save_interval=1)
        saves = manager._save
        monkeypatch.setattr(manager, "_save", lambda *args: (time.sleep(0.3), saves(*args)))
        state = on_devices({"w": torch.ones(4, 4)}, meshes, SPECS[0])
        step, numbers = torch.tensor(3.0), np.array([3, 3])
        assert manager.save_async(7, {**state, "optimizer": [step], "numbers": numbers})
        step.add_(4)
        numbers += 4
        state["w"].add_(4)
        manager.join()
        assert manager.all_steps() == [7]
        restored = {**state, "optimizer": [torch.zeros(())], "numbers": None}
        manager.restore(7, restored)
        assert restored["optimizer"] == [torch.tensor(3.0)]
        assert restored["numbers"].tolist() == [3, 3]
        assert torch.equal(state["w"].cpu(), torch.ones(4, 4))

    def test_errors_of_background_checkpoints(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> None:
            raise OSError("the disk is full")

        manager = xc.CheckpointManager(str(tmp_path), 1, chkpt_on_preemption=False)
        monkeypatch.setattr(manager, "_save", fail)
        manager.save_async(0, {"n": torch.ones(1)})
        with pytest.raises(OSError, match="full"):
            manager.join()
        manager.join()
        manager.save_async(1, {"n": torch.ones(1)})
        manager._async_worker_pool.shutdown()
        with pytest.raises(OSError, match="full"):
            manager.save_async(2, {"n": torch.ones(1)})

    def test_preemption(self, tmp_path: Path) -> None:
        """SIGTERM triggers a checkpoint; a cluster sends it before it stops the machine."""
        manager = xc.CheckpointManager(str(tmp_path), save_interval=1000)
        state = {"w": torch.ones(2, device="xla")}
        assert not manager.save(1, state)
        os.kill(os.getpid(), signal.SIGTERM)
        end = time.monotonic() + 20
        step = 2
        while not manager.save(step, state) and time.monotonic() < end:
            time.sleep(0.05)
            step += 1
        assert manager.all_steps() == [step]
