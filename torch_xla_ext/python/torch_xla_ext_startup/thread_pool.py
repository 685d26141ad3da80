"""Let a process be forked after PyTorch has computed with several threads.

GNU's OpenMP keeps PyTorch's threads for the next operation. A forked process does not have them,
but waits for them forever in its first large operation, of 32,768 elements or more. vLLM forks its
engine by default, which then hung if the program had computed something on the CPU before.
"""

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

import torch

_SOFT_PAUSE = 1  # omp_pause_soft of OpenMP 5.0: end the threads, and keep all settings


def end_before_forks() -> None:
    """End the forking thread's pool before each fork; its next operation makes another one."""
    path = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    end: Callable[[int], int] | None = getattr(
        ctypes.CDLL(str(path)), "omp_pause_resource_all", None
    )
    if end is not None:
        os.register_at_fork(before=lambda: end(_SOFT_PAUSE))
