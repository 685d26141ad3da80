"""Set options of XLA's compiler for single programs, like `compiler_options` of jax.jit."""

import contextlib
from collections.abc import Iterator

import torch_xla

from torch_xla_ext.protobuf_wire_format import field

# Fields of XLA's CompileOptionsProto, of an entry of a map, and of OptionOverrideProto.
_OVERRIDES, _NAME, _VALUE, _TEXT = 7, 1, 2, 1


@contextlib.contextmanager
def compiler_options(**options: bool | int | float | str) -> Iterator[None]:
    """Compile programs on a GPU with options of XLA's compiler.

    The options apply to programs that this thread compiles in the block. They override XLA_FLAGS
    and outer blocks::

        with torch_xla_ext.compiler_options(xla_gpu_autotune_level=0):
            torch_xla.sync()

    The same operations with other options are a different program. A captured step keeps the
    options of its first call. On a CPU the options have no effect.

    Args:
        options: flags as in XLA_FLAGS, without dashes; for a flag with named choices, the name.

    Raises:
        RuntimeError: when a program is compiled, if the PJRT plugin does not know an option, or its
            value has a wrong type.
    """
    fields = b"".join(_override(name, str(value)) for name, value in options.items())
    with exactly(current() + fields):
        yield


def current() -> bytes:
    """Return this thread's options."""
    return torch_xla._XLAC._xla_compile_options()


@contextlib.contextmanager
def exactly(options: bytes) -> Iterator[None]:
    """Compile with exactly the options that `current` returned."""
    before = current()
    torch_xla._XLAC._xla_set_compile_options(options)
    try:
        yield
    finally:
        torch_xla._XLAC._xla_set_compile_options(before)


def _override(name: str, value: str) -> bytes:
    text = field(_TEXT, value.encode())
    return field(_OVERRIDES, field(_NAME, name.encode()) + field(_VALUE, text))
