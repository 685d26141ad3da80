"""When a process is lost, the others raise an exception within a bounded time.

The test uses CPUs, XLA's coordinator and a kernel that waits forever, as a collective on a GPU
waits for data from a lost process.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch_xla
from testing.xla import XLAC, register_host_kernels

# Seconds without a heartbeat until a process counts as lost; and seconds until a process that no
# exception has reached is ended.
HEARTBEAT, PATIENCE = 4, 6
# Seconds for everything else, on a loaded machine too.
MORE = 60


def program(rank: int, count: int, how: str) -> None:
    """The program of one of several processes; `how` is the function in which it waits."""
    register_host_kernels("TestForever")
    x = torch.ones(2, device="xla")
    x.cpu()
    port = os.environ["XLA_COORDINATOR_PORT"]
    XLAC._ensure_xla_coordinator_initialized(rank, count, "localhost", port)
    Path(f"{rank}.started").touch()
    if how == "lost":
        time.sleep(300)
    try:
        result = XLAC._xla_gpu_custom_call([x], b"", [[2]], [torch.float32], "TestForever")[0]
        if how == "read":
            result.cpu()
        elif how == "sync":
            torch_xla.sync(wait=True)
        elif how == "steps":
            for _ in range(100):
                torch_xla.sync()
                result = result * x
        time.sleep(300)
    except RuntimeError as error:
        print("told:", error, file=sys.stderr)
        # Every later computation fails at once, with the same text.
        try:
            (x + 1).cpu()
        except RuntimeError as again:
            assert str(again) == str(error)
            sys.exit(3)


def main() -> None:
    """Forks a process for each argument, which is faster than starting it, and kills "lost".

    Prints how the others have ended: the status, or minus the signal, and their output.
    """
    hows = sys.argv[1:]
    running = {}
    for rank, how in enumerate(hows):
        process = os.fork()
        if process == 0:
            os.dup2(os.open(f"{rank}.txt", os.O_WRONLY | os.O_CREAT), 2)
            program(rank, len(hows), how)
            return  # and out of Python as always
        running[process] = rank
    end = time.monotonic() + MORE
    while not all(Path(f"{rank}.started").exists() for rank in running.values()):
        if time.monotonic() > end:
            break
        time.sleep(0.1)
    for process, rank in running.items():
        if hows[rank] == "lost":
            os.kill(process, signal.SIGKILL)
    end = time.monotonic() + HEARTBEAT + PATIENCE + MORE
    ended = {}
    while running:
        process, status = os.waitpid(-1, os.WNOHANG)
        if process:
            ended[running.pop(process)] = os.waitstatus_to_exitcode(status)
        elif time.monotonic() > end:
            for process in running:
                os.kill(process, signal.SIGKILL)
            end += MORE
        else:
            time.sleep(0.1)
    results = [
        (ended[rank], Path(f"{rank}.txt").read_text())
        for rank, how in enumerate(hows)
        if how != "lost"
    ]
    print(json.dumps(results))


def run(folder: Path, hows: tuple[str, ...]) -> list[tuple[int, str]]:
    """Runs main() with these arguments in a separate process."""
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    environ = {
        **os.environ,
        "HOST_KERNELS": str(Path(os.environ["HOST_KERNELS"]).absolute()),
        "PYTHONPATH": os.pathsep.join(str(Path(path).absolute()) for path in sys.path if path),
        "XLA_COORDINATOR_PORT": str(port),
        "DIST_SERVICE_HEARTBEAT_INTERVAL_IN_SEC": "1",
        "DIST_SERVICE_MAX_MISSING_HEARTBEATS": str(HEARTBEAT),
        "TORCH_XLA_EXT_EXIT_TIMEOUT": str(PATIENCE),
    }
    command = [sys.executable, "-P", Path(__file__).absolute(), *hows]
    output = subprocess.run(command, cwd=folder, env=environ, stdout=subprocess.PIPE).stdout
    return json.loads(output)


ANOTHER, COORDINATOR = ("read", "lost", "steps"), ("lost", "sync", "sleep")


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, ...], list[tuple[int, str]]]:
    """The ends of both tests' processes, which run at the same time because they mostly wait."""
    cases = (ANOTHER, COORDINATOR)
    folders = [tmp_path_factory.mktemp("lost") for _ in cases]
    with ThreadPoolExecutor() as threads:
        return dict(zip(cases, threads.map(run, folders, cases), strict=True))


def test_another_than_the_coordinators(ended: dict) -> None:
    for status, error in ended[ANOTHER]:
        assert status == 3, error
        assert "told: rank 1 is lost, and this process cannot continue without it: restart" in error
        assert "--max-restarts" in error and "stopped sending heartbeats" in error


def test_the_coordinators(ended: dict) -> None:
    (status, error), (untold_status, untold_error) = ended[COORDINATOR]
    assert status == 3, error
    assert "told: rank 0, or the connection to it, is lost, and this process" in error
    # It waits where no exception can reach it.
    assert untold_status == 1, untold_error
    assert "torch_xla_ext: this process exits: rank 0, or the connection to it," in untold_error


if __name__ == "__main__":
    main()
