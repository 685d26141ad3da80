"""Reference implementations, which can replace a kernel to bisect a wrong result."""

import atexit
import contextlib
import os
import sys
from collections.abc import Iterator
from contextvars import ContextVar

import torch_xla

from xla_kernels import kernel_symbols, references

ENVIRONMENT = "TORCH_XLA_EXT_USE_REFERENCE"

# The targets of the open blocks, one entry for each block. Each thread and each task of asyncio has
# its own blocks.
_in_use: ContextVar[tuple[str, ...]] = ContextVar("references in use", default=())
# The targets that the environment variable names, for the whole process.
_everywhere = frozenset(
    filter(None, (name.strip() for name in os.environ.get(ENVIRONMENT, "").split(",")))
)


def _count_blocks(count: int) -> None:
    """Change C++'s count of open use_reference blocks; while it is not 0, C++ asks Python."""
    torch_xla._XLAC._xla_add_reference_blocks(count)


def _warn_of_unknown_names() -> None:
    """Warn about names without a reference; at exit, because a program may register one late."""
    for name in sorted(_everywhere - {"*"} - set(references.names())):
        print(f"{ENVIRONMENT} had no effect for {name!r}: {_missing_text(name)}", file=sys.stderr)


if _everywhere:
    _count_blocks(1)
    atexit.register(_warn_of_unknown_names)


def replacement(target: str) -> references.Reference | None:
    """Return the reference of `target` if it currently replaces the kernel, else None."""
    in_use = _in_use.get()
    if not in_use and not _everywhere:
        return None
    plain = target.partition("#")[0]  # an older registration of the target
    named = plain in in_use or plain in _everywhere
    if not named and "*" not in _everywhere:
        return None
    function = references.reference(plain)
    if function is None and named:
        raise ValueError(_missing_text(plain))
    return function


def _missing_text(target: str) -> str:
    text = f"custom call {target!r}: there is no reference implementation that could take its place"
    text += kernel_symbols.did_you_mean(target, references.names())
    return text + "; give one to torch_xla_ext.debug.register_reference"


@contextlib.contextmanager
def use_reference(*targets: str) -> Iterator[None]:
    """In a block, replace this thread's calls of `targets` by their reference implementations.

    The block applies when calls are traced. Arguments are checked as for the kernel. The
    environment variable TORCH_XLA_EXT_USE_REFERENCE, read at import, does the same for the whole
    process: names separated by commas, or `*` for all targets that have a reference. If a name has
    none when the process ends, this is reported on standard error.

    Raises:
        ValueError: immediately, if a target has no reference.
    """
    for target in targets:
        if references.reference(target) is None:
            raise ValueError(_missing_text(target))
    _in_use.set((*_in_use.get(), *targets))
    _count_blocks(1)
    try:
        yield
    finally:
        _count_blocks(-1)
        left = list(_in_use.get())
        for target in targets:
            if target in left:
                left.remove(target)
        _in_use.set(tuple(left))
