"""The command `vllm`, in a process that is forked from one that has imported it (installed.py)."""

import os
import socket
import subprocess
from pathlib import Path

from testing.scripts import Script, start_script

MODULE = "vllm.entrypoints.cli.main"


def start(arguments: list[str], log: Path, **environment: str) -> Script | subprocess.Popen:
    """Starts the command in a new process group.

    The engine's process is forked, which is faster, unless the server's process has used CUDA.
    """
    code = (
        f"import os, runpy, sys\nos.setsid()\nsys.argv = {['vllm', *arguments]}\n"
        f"runpy.run_module({MODULE!r}, run_name='__main__', alter_sys=True)"
    )
    if os.environ["PJRT_DEVICE"] == "CPU":
        environment = {"VLLM_WORKER_MULTIPROC_METHOD": "fork"} | environment
    with log.open("w") as out:
        return start_script(code, out, out, **environment)


def free_port() -> int:
    """A port that no process of this machine uses."""
    with socket.socket() as listener:
        listener.bind(("", 0))
        return listener.getsockname()[1]
