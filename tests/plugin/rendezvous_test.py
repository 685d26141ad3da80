"""Processes that wait for each other at their ends: torch_xla_ext.plugin.rendezvous on the CPU."""

import socket
import tempfile
import time
from typing import IO

import pytest
import torch
import torch_xla
import torch_xla.core.xla_model as xm
from testing.scripts import start_script
from torch.distributed import HashStore
from torch_xla._internal import pjrt

from torch_xla_ext.plugin import rendezvous
from xla_kernels.plugin.errors import CudaRuntimeError
from xla_kernels.plugin.options import Processes

PROGRAM = """
import os, time
from torch_xla_ext.plugin import rendezvous
rendezvous.prepare(os.environ)
how = "{how}"
if how == "coordinated":
    import torch_xla
    torch_xla._XLAC._ensure_xla_coordinator_initialized(
        int(os.environ["RANK"]), 2, "localhost", os.environ["XLA_COORDINATOR_PORT"]
    )
    time.sleep({seconds})
if how == "raise":
    raise ValueError("as asked")
if how == "lost":
    os._exit(7)
"""


def free_ports() -> int:
    """The first of two consecutive ports that are free."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("", 0))
            port = first.getsockname()[1]
            try:
                second.bind(("", port + 1))
            except OSError:
                continue
            return port


class Process:
    """One of two processes."""

    def __init__(self, port: int, rank: int, seconds: float, how: str, **more: str) -> None:
        self._errors: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115
        environment = {
            "PJRT_DEVICE": "CPU",
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "localhost",
            "XLA_COORDINATOR_PORT": str(port),
            "TORCH_XLA_EXT_EXIT_TIMEOUT": "300",
            **more,
        }
        code = PROGRAM.format(how=how, seconds=seconds)
        self._script = start_script(code, self._errors, self._errors, **environment)

    def end(self) -> tuple[int, str]:
        """Waits for its end; returns its exit status and its output."""
        status = self._script.wait(500)
        with self._errors:
            self._errors.seek(0)
            return status, self._errors.read()


def test_they_wait_for_each_other() -> None:
    """Rank 0 ends last in one pair, rank 1 in the other. Both pairs sleep, and run together."""
    running = []
    for last in (0, 1):
        port = free_ports()
        running += [Process(port, rank, 6 * (rank == last), "coordinated") for rank in (0, 1)]
    assert [process.end() for process in running] == [(0, "")] * 4


@pytest.mark.parametrize("failing", [0, 1])
def test_a_failure_is_not_waited_for(failing: int) -> None:
    port = free_ports()
    hows = ["raise" if rank == failing else "end" for rank in (0, 1)]
    running = [Process(port, rank, 0, how) for rank, how in enumerate(hows)]
    ends = [process.end() for process in running]
    assert [status for status, _ in ends] == [1 - failing, failing]
    assert "ValueError: as asked" in ends[failing][1]
    assert f"rank {failing} has" in ends[1 - failing][1]


def test_a_lost_process() -> None:
    port = free_ports()
    running = [
        Process(port, 0, 0, "end", TORCH_XLA_EXT_EXIT_TIMEOUT="3"),
        Process(port, 1, 0, "lost", TORCH_XLA_EXT_EXIT_TIMEOUT="3"),
    ]
    ends = [process.end() for process in running]
    assert [status for status, _ in ends] == [0, 7]
    assert "rank 0: waited 3 s for rank 1 to end (TORCH_XLA_EXT_EXIT_TIMEOUT)" in ends[0][1]


def test_a_port_that_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        port = other.getsockname()[1]
        monkeypatch.setattr(rendezvous, "_prepared", set())
        environ = {"RANK": "0", "WORLD_SIZE": "2", "XLA_COORDINATOR_PORT": str(port)}
        with pytest.raises(CudaRuntimeError, match=f"XLA_COORDINATOR_PORT: port {port} cannot be"):
            rendezvous.prepare(environ)


def test_one_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "_prepared", set())
    environ = {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "XLA_COORDINATOR_PORT": str(free_ports()),
        "TORCH_XLA_EXT_START_TIMEOUT": "1",
    }
    with pytest.raises(
        CudaRuntimeError, match=r"rank 1 did not start within 1 s .*WORLD_SIZE is 2"
    ):
        rendezvous.prepare(environ)


def test_a_rank_0_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "_prepared", set())
    port = free_ports()
    environ = {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "XLA_COORDINATOR_PORT": str(port),
        "TORCH_XLA_EXT_START_TIMEOUT": "1",
    }
    with pytest.raises(CudaRuntimeError, match=f"rank 0, localhost:{port + 1}, cannot be reached"):
        rendezvous.prepare(environ)


def test_they_count_differently() -> None:
    store = HashStore()
    store.set("start/0", "3")
    with pytest.raises(CudaRuntimeError, match="WORLD_SIZE is 2 for rank 1, but 3 for rank 0"):
        rendezvous.meet(store, Processes(1, 2, 1, 2), 10)


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK must be at least 0 and less than WORLD_SIZE, 2"),
        (
            {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "1", "RANK": "0", "WORLD_SIZE": "2"},
            "LOCAL_RANK must be at least 0 and less than LOCAL_WORLD_SIZE, 1, but is 1",
        ),
        (
            {"LOCAL_WORLD_SIZE": "4", "RANK": "0", "WORLD_SIZE": "2"},
            "LOCAL_WORLD_SIZE, 4, is more than WORLD_SIZE, 2",
        ),
    ],
)
def test_wrong_counts(environ: dict[str, str], message: str) -> None:
    with pytest.raises(CudaRuntimeError, match=message):
        rendezvous.prepare(environ)


def test_one_process_needs_nothing() -> None:
    begin = time.monotonic()
    rendezvous.prepare({})
    assert time.monotonic() - begin < 1


@pytest.mark.parametrize(
    ("device", "count", "expected"), [("CUDA", "2", [(0, 1)]), ("CUDA", "1", []), ("CPU", "2", [])]
)
def test_one_process_on_each_host(
    monkeypatch: pytest.MonkeyPatch, device: str, count: str, expected: list[tuple[int, int]]
) -> None:
    """A single process on a host is still one of several for torch_xla's collectives."""
    calls: list[tuple[int, int]] = []
    monkeypatch.setattr(pjrt, "initialize_multiprocess", lambda *ranks: calls.append(ranks))
    for name, value in {
        "PJRT_DEVICE": device,
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": count,
        "LOCAL_WORLD_SIZE": "1",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch_xla, "device", lambda: torch.device("xla:0"))
    monkeypatch.setattr(xm, "set_replication", lambda device, devices: None)
    pjrt.initialize_singleprocess()
    assert calls == expected
