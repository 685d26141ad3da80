"""A process that is lost is an exception in the others, in a bounded time.

On the CPU, with XLA's coordinator and a kernel that waits for ever: as one of a GPU does for what
the lost process was to send.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time

from testing.xla import XLAC, register_host_kernels

# Seconds without a heartbeat, and seconds after which a process ends that nobody could tell.
HEARTBEAT, PATIENCE = 4, 6
# For what comes besides: on a loaded machine too.
MORE = 40


def program() -> None:
    """What a process does; its arguments are how many there are, and what it waits in."""
    import torch
    import torch_xla

    rank, count, how = int(os.environ["RANK"]), int(sys.argv[1]), sys.argv[2]
    register_host_kernels("TestForever")
    x = torch.ones(2, device="xla")
    x.cpu()
    port = os.environ["XLA_COORDINATOR_PORT"]
    XLAC._ensure_xla_coordinator_initialized(rank, count, "localhost", port)
    print("started", flush=True)
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
        # Whatever is computed now fails at once, with the same text.
        try:
            (x + 1).cpu()
        except RuntimeError as again:
            assert str(again) == str(error)
            sys.exit(3)


def run(*hows: str) -> list[tuple[int, str]]:
    """Starts a process for each, and kills the lost one; returns how the others ended."""
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    environ = {
        **os.environ,
        "XLA_COORDINATOR_PORT": str(port),
        "DIST_SERVICE_HEARTBEAT_INTERVAL_IN_SEC": "1",
        "DIST_SERVICE_MAX_MISSING_HEARTBEATS": str(HEARTBEAT),
        "TORCH_XLA_EXT_EXIT_TIMEOUT": str(PATIENCE),
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-P", __file__, str(len(hows)), how],
            env={**environ, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, how in enumerate(hows)
    ]
    try:
        for process in processes:
            assert process.stdout.readline() == "started\n", process.communicate()[1]
        processes[hows.index("lost")].send_signal(signal.SIGKILL)
        end = time.monotonic() + HEARTBEAT + PATIENCE + MORE
        errors = [process.communicate(timeout=end - time.monotonic())[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [
        (process.returncode, error)
        for process, error, how in zip(processes, errors, hows, strict=True)
        if how != "lost"
    ]


def test_another_than_the_coordinators() -> None:
    for status, error in run("read", "lost", "steps"):
        assert status == 3, error
        assert "told: rank 1 is lost, and this process can not go on without: end it" in error
        assert "--max-restarts" in error and "stopped sending heartbeats" in error


def test_the_coordinators() -> None:
    (status, error), (untold_status, untold_error) = run("lost", "sync", "sleep")
    assert status == 3, error
    assert "told: rank 0, or the connection to it, is lost, and this process" in error
    # It waits where no exception can reach it.
    assert untold_status == 1, untold_error
    assert "torch_xla_ext: this process ends: rank 0, or the connection to it," in untold_error


if __name__ == "__main__":
    program()
