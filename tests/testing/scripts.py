"""Scripts that need a process of their own, and are not about what an import does."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile


def run_script(
    code: str, timeout: float | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs `python -P -c code`, with more environment variables, and captures what it writes.

    In a target of wheel_tests, the process is forked from one that has imported torch_xla
    (bazel/pytest/forked.py), and has used no device. That saves three seconds of processor time,
    but variables that are read by imports, such as PYTHONPATH, have no effect.
    """
    command, variables = [sys.executable, "-P", "-c", code], os.environ | environment
    server = variables.pop("SCRIPT_SERVER", None)
    if server is None:
        return subprocess.run(
            command, env=variables, capture_output=True, text=True, timeout=timeout
        )
    request = json.dumps({"code": code, "environment": variables}).encode()
    with (
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
        socket.socket(fileno=os.dup(int(server))) as asks,
    ):
        socket.send_fds(asks, [request], [out.fileno(), err.fileno()])
        process = int(asks.recv(64))
        is_late = not select.select([asks], [], [], timeout)[0]
        if is_late:
            os.kill(process, signal.SIGKILL)
        status = int(asks.recv(64))
        if is_late:
            raise subprocess.TimeoutExpired(command, timeout)
        for file in (out, err):
            file.seek(0)
        return subprocess.CompletedProcess(command, status, out.read(), err.read())


def run_program(
    path: str | os.PathLike[str], *arguments: object, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs `python path arguments…`, as run_script runs code."""
    argv = [os.fspath(path), *map(str, arguments)]
    code = f"import runpy, sys\nsys.argv = {argv}\nrunpy.run_path(sys.argv[0], run_name='__main__')"
    return run_script(code, **environment)
