"""The names in functions' code: globals that it reads and assigns, and attributes."""

from __future__ import annotations

import dis
import types

_READS = ("LOAD_GLOBAL", "LOAD_NAME")
_ASSIGNMENTS = ("STORE_GLOBAL", "DELETE_GLOBAL")


def names_of(code: types.CodeType) -> set[str]:
    """The names of globals and attributes in code, with that of functions inside it."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= names_of(constant)
    return names


def read_globals(code: types.CodeType) -> set[str]:
    """The globals that code may read, with those of functions inside it."""
    names = _operands(code, _READS)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= read_globals(constant)
    return names


def assigned_globals(code: types.CodeType) -> set[str]:
    """The globals that code may assign or delete, without functions inside it."""
    return _operands(code, _ASSIGNMENTS)


def _operands(code: types.CodeType, operations: tuple[str, ...]) -> set[str]:
    if not {dis.opmap[name] for name in operations}.intersection(code.co_code[::2]):
        return set()
    return {found.argval for found in dis.get_instructions(code) if found.opname in operations}
