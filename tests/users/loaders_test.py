"""torch_xla's loaders raise what their threads raise, and shard batches of all ranks."""

import collections
import threading
import traceback
from collections.abc import Iterator
from typing import NamedTuple

import pytest
import torch
import torch_xla
import torch_xla.core.xla_model as xm
from testing.scripts import run_script
from torch.utils.data import DataLoader, Dataset
from torch_xla.distributed.parallel_loader import MpDeviceLoader, ParallelLoader


class Data(Dataset):
    """Ten samples, of which one raises."""

    def __init__(self, error: BaseException | None = None, at: int = 5) -> None:
        self.error, self.at = error, at

    def __len__(self) -> int:
        return 10

    def __getitem__(self, i: int) -> torch.Tensor:
        if i == self.at and self.error is not None:
            raise self.error
        return torch.tensor([float(i)])


class BrokenLoader:
    """A loader whose __iter__ raises."""

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[torch.Tensor]:
        raise OSError("no data")


def batches(loader: object, **options: object) -> tuple[int, BaseException | None]:
    """The number of batches, and what ends the loop."""
    count = 0
    try:
        for _ in MpDeviceLoader(loader, torch_xla.device(), **options):
            count += 1
    except BaseException as error:
        return count, error
    return count, None


# With a worker only the first sample: a worker sends tensors by a socket in the temporary folder,
# whose path is too long for one in Bazel's sandbox.
@pytest.mark.parametrize(("at", "workers"), [(0, 0), (5, 0), (9, 0), (0, 1)])
def test_an_exception_in_a_dataset(at: int, workers: int) -> None:
    data = DataLoader(Data(ValueError("broken"), at), batch_size=2, num_workers=workers)
    count, error = batches(data)
    assert count == at // 2
    assert type(error) is ValueError and "broken" in str(error)
    text = "".join(traceback.format_exception(error))
    assert "in __getitem__" in text


def test_the_exception_itself_whatever_its_type() -> None:
    for original in (KeyError("x"), KeyboardInterrupt(), SystemExit(3), MemoryError("m")):
        assert batches(DataLoader(Data(original), batch_size=2)) == (2, original)


def test_a_loader_that_cannot_begin() -> None:
    count, error = batches(BrokenLoader())
    assert count == 0 and isinstance(error, OSError)


def test_an_exception_while_a_batch_is_copied() -> None:
    """The thread that reads ends, too, though nobody takes its batches any more."""
    data = DataLoader([{"x": torch.ones(2)}] * 100)
    loader = ParallelLoader(data, [torch_xla.device()], input_sharding={"y": None})
    with pytest.raises(KeyError, match="missing from input_sharding"):
        next(loader.per_device_loader(torch_xla.device()))
    loader.close()


@pytest.mark.parametrize("sharding", [["x"], {"x": ["x"]}, []])
def test_shardings_that_are_lists(sharding: object) -> None:
    _, error = batches(DataLoader([{"x": torch.ones(2)}]), input_sharding=sharding)
    assert isinstance(error, TypeError) and "each key; got list" in str(error)


def test_without_an_exception() -> None:
    loader = MpDeviceLoader(DataLoader(Data(), batch_size=2), torch_xla.device())
    for _ in range(2):
        assert torch.cat([batch.cpu() for batch in loader]).view(-1).tolist() == list(range(10))


def test_a_loop_within_a_loop() -> None:
    loader = MpDeviceLoader(DataLoader(Data(), batch_size=2), torch_xla.device())
    count = threading.active_count()
    outer = [(batch[0].item(), len(list(loader))) for batch in loader]
    assert outer == [(i, 5) for i in range(0, 10, 2)]
    for _ in range(5):  # what is not read to its end does not stay
        next(iter(loader))
    assert threading.active_count() <= count + 2 * 2


def test_shardings_that_name_fewer_axes_than_the_mesh() -> None:
    program = """
import os; os.environ["CPU_NUM_DEVICES"] = "4"
import numpy as np, torch, torch_xla, torch_xla.core.xla_model as xm, torch_xla.runtime as xr
import torch_xla.distributed.spmd as xs
xr.use_spmd()
describe = torch_xla._XLAC._get_xla_sharding_spec
for shape in [(4,), (4, 1), (1, 4), (2, 2), (2, 1, 2), (1, 2, 2)]:
    axes = ("a", "b", "c")[: len(shape)]
    for order in (np.arange(4), np.array([2, 0, 3, 1])):
        mesh = xs.Mesh(order, shape, axes)
        for spec in {(a,) for a in axes} | {(a, None) for a in axes} | {(axes[-1], axes[0])}:
            if len(set(spec)) < len(spec):
                continue
            x = torch.arange(8 * 8 ** (len(spec) - 1)).view([8] * len(spec))
            own = xm.send_cpu_data_to_device([x], torch_xla.device(), xs.ShardingSpec(mesh, spec))
            marked = x.to("xla")
            xs.mark_sharding(marked, mesh, spec)
            torch_xla.sync()
            assert torch.equal(own[0].cpu(), x), (shape, spec)
            assert torch.equal((own[0] + marked).cpu(), 2 * x), (shape, spec)
            if len(spec) == 1:
                assert describe(own[0]) == describe(marked), (shape, spec, describe(own[0]))
print("ok")
"""
    result = run_script(program)
    assert result.stdout == "ok\n", result.stderr


class Pair(NamedTuple):
    left: torch.Tensor
    right: object


def test_named_tuples_and_dicts_of_shardings() -> None:
    """The former became lists; the latter were an AttributeError."""
    x = torch.arange(4.0)
    data = [Pair(x, {"number": torch.tensor(3)})] * 4
    (batch,) = MpDeviceLoader(DataLoader(data, batch_size=4), torch_xla.device())
    assert batch.left.shape == (4, 4) and batch.right["number"].tolist() == [3] * 4
    device = torch_xla.device()
    sent = xm.send_cpu_data_to_device(
        {"a": x, "b": (x, Pair(x, x))}, device, {"a": None, "b": None}
    )
    assert sent["a"].tolist() == sent["b"][1].right.tolist() == x.tolist()
    assert type(sent["b"]) is tuple
    with pytest.raises(ValueError, match=r"has the keys \['a'\], so .*; got \['a', 'c'\]"):
        xm.send_cpu_data_to_device({"a": x, "c": x}, device, {"a": None})
    with pytest.raises(TypeError, match="input_sharding must be a ShardingSpec"):
        xm.send_cpu_data_to_device([x, x], device, [None, None])


def test_subclasses_of_dict() -> None:
    """They became dicts, so that a model's outputs lost their attributes."""
    batch = collections.OrderedDict(x=torch.arange(4.0), names=("a", "b"))
    batch.epoch = 3
    sent = xm.send_cpu_data_to_device(batch, torch_xla.device())
    assert type(sent) is collections.OrderedDict and sent.epoch == 3
    assert sent["x"].device.type == "xla" and sent["names"] == ("a", "b")
    assert batch["x"].device.type == "cpu"


WORKERS = """
import threading, torch, torch_xla
from torch.utils.data import DataLoader
(torch.ones(2, device="xla") + 1).tolist()
x = torch.ones(8, 8, device="xla")
for i in range(200):
    x = torch.sin(x @ x) * (i + 1)
computing = threading.Thread(target=torch_xla.sync)
computing.start()
# Numbers: for a tensor, a socket's name under Bazel's temporary folder is too long.
loader = DataLoader(range(8), batch_size=4, num_workers=2, collate_fn=sum, timeout=30)
print(sum(loader))
while computing.is_alive():
    print(sum(loader))
"""


def test_workers_are_forked_while_another_thread_compiles() -> None:
    """Workers seed PyTorch; a lock of the parent's other thread stays locked in them."""
    done = run_script(WORKERS, timeout=100)
    assert set(done.stdout.split()) == {"28"}, done.stderr
