"""Compile the programs of captured steps in several threads."""

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
import torch_xla

from torch_xla_ext import xla_options

_MOST_THREADS = 16
_current = threading.local()


class Compiler:
    """Threads that compile programs.

    Args:
        num_threads: how many programs are compiled at the same time.

    """

    def __init__(self, num_threads: int) -> None:
        self._threads = ThreadPoolExecutor(num_threads, "xla_compile")
        self._started: dict[bytes, Future[None]] = {}  # by the programs' keys

    def start(self, results: Sequence[torch.Tensor], key: bytes) -> Future[None] | None:
        """Compile the program that computes tensors, with this thread's compiler options.

        Args:
            results: the tensors, which may be freed after this call.
            key: the program's key in torch_xla's cache.

        Returns:
            A future that ends when the program is compiled; None if it is compiled already.
        """
        if key not in self._started:
            lowered = torch_xla._XLAC._xla_capture_lower(results, key)
            if lowered is None:
                return None
            options = xla_options.current()
            self._started[key] = self._threads.submit(self._compile, lowered, options)
        return self._started[key]

    @staticmethod
    def _compile(lowered: object, options: bytes) -> None:
        with xla_options.exactly(options):
            lowered.compile()

    def wait(self) -> None:
        """Wait for all programs, and raise the error of the first that could not be compiled."""
        self._threads.shutdown()
        for future in self._started.values():
            future.result()

    def cancel(self) -> None:
        """Wait for the programs that are being compiled, and compile no others."""
        self._threads.shutdown(cancel_futures=True)


def current() -> Compiler | None:
    """Return the compiler of this thread's block."""
    return getattr(_current, "compiler", None)


@contextlib.contextmanager
def parallel_compilation(num_threads: int | None = None) -> Iterator[None]:
    """In a block, compile the programs that captured steps prepare at the same time.

    For example::

        step = torch_xla_ext.capture(step, max_captures=len(sizes))
        with torch_xla_ext.parallel_compilation():
            for size in sizes:
                step.prepare(torch.zeros(size, device="xla"))

    `prepare` then returns when the step has been traced, and another thread compiles it. The block
    ends when all programs are compiled; a step that is called in the block waits for its program.

    Args:
        num_threads: how many programs are compiled at the same time. XLA also compiles a program's
            kernels in threads. The default is the number of processors, but 16 at most.

    Raises:
        ValueError: num_threads is less than 1.
        Exception: at the end of the block, the error of the first program that could not be
            compiled. A call of its step raises the error again.
    """
    if num_threads is None:
        num_threads = min(len(os.sched_getaffinity(0)), _MOST_THREADS)
    if num_threads < 1:
        raise ValueError(f"num_threads must be at least 1, but is {num_threads}")
    before, compiler = current(), Compiler(num_threads)
    _current.compiler = compiler
    try:
        yield
    except BaseException:
        compiler.cancel()
        raise
    finally:
        _current.compiler = before
    compiler.wait()
