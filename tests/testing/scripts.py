"""Scripts that run in a separate process, but do not test imports."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from typing import IO


class Script:
    """A running script, with the interface of subprocess.Popen."""

    def __init__(
        self, server: int, code: str, environment: dict[str, str], stdout: IO, stderr: IO
    ) -> None:
        self.returncode: int | None = None
        self._answers, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request = json.dumps({"code": code, "environment": environment}).encode()
        files = [stdout.fileno(), stderr.fileno(), theirs.fileno()]
        with theirs, socket.socket(fileno=os.dup(server)) as asks:
            socket.send_fds(asks, [request], files)
        self.pid = int(self._answers.recv(64))

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._answers], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("a script", timeout)
            self.returncode = int(self._answers.recv(64))
            self._answers.close()
        return self.returncode

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start_script(
    code: str, stdout: IO, stderr: IO, **environment: str
) -> Script | subprocess.Popen:
    """Starts `python -P -c code`, with more environment variables.

    In a target of wheel_tests, the process is forked from one that has imported torch_xla
    (bazel/pytest/forked.py), and has used no device. That saves three seconds of processor time.
    But variables that are read during imports, such as PYTHONPATH, have no effect.
    """
    variables = os.environ | environment
    server = variables.pop("SCRIPT_SERVER", None)
    if server is not None:
        return Script(int(server), code, variables, stdout, stderr)
    command = [sys.executable, "-P", "-c", code]
    return subprocess.Popen(command, env=variables, stdout=stdout, stderr=stderr)


def run_script(
    code: str, timeout: float | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs a script as start_script starts it, and captures what it writes."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        script = start_script(code, out, err, **environment)
        try:
            status = script.wait(timeout)
        except subprocess.TimeoutExpired:
            script.kill()
            script.wait()
            raise
        for file in (out, err):
            file.seek(0)
        return subprocess.CompletedProcess(code, status, out.read(), err.read())


def program(path: str | os.PathLike[str], *arguments: object) -> str:
    """The code of a script that does the same as `python path arguments…`."""
    argv = [os.fspath(path), *map(str, arguments)]
    return f"import runpy, sys\nsys.argv = {argv}\nrunpy.run_path(sys.argv[0], run_name='__main__')"


def run_program(
    path: str | os.PathLike[str], *arguments: object, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs `python path arguments…`, as run_script runs code."""
    return run_script(program(path, *arguments), **environment)
