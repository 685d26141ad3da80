"""A program that cannot be compiled raises its error each time, and changes no other tensors."""

import contextlib
import ctypes
import mmap
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch_xla
from testing.scripts import run_script
from torch_xla.core.xla_builder import create_placeholder_tensor


def unknown(x: torch.Tensor) -> torch.Tensor:
    """Makes a call to an unknown target, for which upstream does not check."""
    shape, dtype = [list(x.shape)], [x.dtype]
    call = torch_xla._XLAC._xla_custom_call
    return call([x], "NoSuchTarget", shape, dtype, False, "", 1, {})[0]


def test_a_failed_sync() -> None:
    """In upstream torch_xla the second sync() fails with "Check failed: tensor_data"."""
    on_host = torch.randn(4, 4)
    x = on_host.to("xla")
    failing, other = unknown(x), x + 1
    updated = x.clone()
    updated += 2
    for _ in range(3):
        with pytest.raises(ValueError, match="NoSuchTarget"):
            torch_xla.sync()
    torch.testing.assert_close(other.cpu(), on_host + 1)
    with pytest.raises(RuntimeError, match="NoSuchTarget"):
        failing.cpu()
    with pytest.raises(RuntimeError, match="NoSuchTarget"):
        (failing + other).sum().item()
    del failing
    torch_xla.sync()
    torch.testing.assert_close(updated.cpu(), on_host + 2)
    torch.testing.assert_close(other.cpu(), on_host + 1)
    torch.testing.assert_close(x.cpu(), on_host)


def test_in_place() -> None:
    """Tensors to which the failed value was written raise its error; others keep their values."""
    on_host = torch.randn(4)
    x, y = on_host.to("xla"), (on_host * 2).to("xla")
    torch_xla.sync()
    y.mul_(3)
    x += unknown(x)
    with pytest.raises(ValueError, match="NoSuchTarget"):
        torch_xla.sync()
    with pytest.raises(RuntimeError, match="NoSuchTarget"):
        x.cpu()
    torch.testing.assert_close(y.cpu(), on_host * 6)
    x.copy_(on_host)
    torch_xla.sync()
    torch.testing.assert_close((x + y).cpu(), on_host * 7)


def test_a_clone_keeps_its_own_value() -> None:
    """The clone must not share its source's buffer, which the source's next value overwrites."""
    on_host = torch.randn(4)
    x = on_host.to("xla")
    torch_xla.sync()
    clone = x.clone()
    failing = unknown(x)
    with pytest.raises(ValueError, match="NoSuchTarget"):
        torch_xla.sync()
    del failing
    torch_xla.sync()
    clone += 1
    torch_xla.sync()
    torch.testing.assert_close(clone.cpu(), on_host + 1)
    torch.testing.assert_close(x.cpu(), on_host)


STORED = """
import os, shutil
from pathlib import Path
import torch, torch_xla, torch_xla.runtime as xr
folder = Path(os.environ["FOLDER"])
xr.initialize_cache(str(folder))
x = torch.arange(4.0).to("xla")
y = x * 3
programs = sorted(folder.glob("*"))
for program in programs:
    program.unlink()
    (program / "file").mkdir(parents=True)
try:
    torch_xla.sync()
    assert not programs
except RuntimeError as error:
    assert programs and "cannot remove" in str(error), error
    for program in programs:
        shutil.rmtree(program)
    torch_xla.sync()
assert y.tolist() == [0, 3, 6, 9]
assert sorted(folder.glob("*"))
"""


def test_a_stored_program_that_cannot_be_read(tmp_path: Path) -> None:
    """The second process finds a folder instead of the stored program."""
    for _ in range(2):
        done = run_script(STORED, FOLDER=str(tmp_path / "cache"))
        assert done.returncode == 0, done.stderr


@contextlib.contextmanager
def memory_mappings(number: int) -> Iterator[None]:
    """Makes as many memory mappings as hundreds of compiled programs need."""
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    private, size = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, number * mmap.PAGESIZE
    start = libc.mmap(None, ctypes.c_size_t(size), mmap.PROT_READ, private, -1, ctypes.c_long(0))
    try:
        for page in range(0, number, 2):  # every second page is a mapping of its own
            address = ctypes.c_void_p(start + page * mmap.PAGESIZE)
            assert libc.mprotect(address, ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
        yield
    finally:
        libc.munmap(ctypes.c_void_p(start), ctypes.c_size_t(size))


def test_a_failed_read_of_an_index() -> None:
    """In upstream torch_xla the process ends: x[i] holds the GIL, which is not taken again."""
    x, i = torch.arange(4).to("xla"), torch.tensor(0, device="xla")
    with pytest.raises(RuntimeError, match="NoSuchTarget"):
        x[unknown(i)]
    with pytest.raises(RuntimeError):
        x[create_placeholder_tensor(i.shape, i.dtype)]


def test_too_many_programs() -> None:
    """XLA:CPU dies at the limit of mappings. Before that, sync() fails."""

    def compile_programs(start: int) -> None:
        for size in range(start, start + 20):
            x = torch.arange(size).to("xla")
            assert (x + 1).sum().item() == size * (size + 1) // 2

    limit = int(Path("/proc/sys/vm/max_map_count").read_text())
    compile_programs(100)
    with (
        memory_mappings(limit * 15 // 16 - Path("/proc/self/maps").read_text().count("\n")),
        pytest.raises(RuntimeError, match=r"set XLA_COMPILATION_CACHE_SIZE=200"),
    ):
        compile_programs(200)
    compile_programs(300)
