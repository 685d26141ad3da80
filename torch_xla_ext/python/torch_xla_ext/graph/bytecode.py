"""Find the names of globals and attributes in the bytecode of functions."""

import dis
import types

# Functions and attributes that look up attributes by strings.
_BY_STRINGS = {"getattr", "setattr", "hasattr", "delattr", "vars", "attrgetter", "__dict__"}
_BY_STRINGS |= {"__getattribute__", "__getattr__", "__setattr__"}
_READS = ("LOAD_GLOBAL", "LOAD_NAME")
_IMPORTS = ("IMPORT_NAME",)
_ASSIGNMENTS = ("STORE_GLOBAL", "DELETE_GLOBAL")


def names_of(code: types.CodeType) -> set[str]:
    """Return the names of globals and attributes in code and in the functions inside it."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= names_of(constant)
    return names


def finds_by_strings(code: types.CodeType) -> bool:
    """Return whether code may look up attributes by computed names."""
    return not _BY_STRINGS.isdisjoint(code.co_names)


def strings_of(code: types.CodeType) -> set[str]:
    """Return the strings in code, and in its tuples, that can be names."""
    found = set()
    for constant in code.co_consts:
        for value in constant if isinstance(constant, (tuple, frozenset)) else (constant,):
            if isinstance(value, str) and value.isidentifier():
                found.add(value)
    return found


def read_globals(code: types.CodeType) -> set[str]:
    """Return the globals that code may read, with those of functions inside it."""
    names = _operands(code, _READS)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= read_globals(constant)
    return names


def imported_modules(code: types.CodeType, package: str) -> set[str]:
    """Return the modules that import statements in code name, and the packages that they bind."""
    instructions = list(dis.get_instructions(code)) if _has(code, _IMPORTS) else []
    names = set()
    for i, found in enumerate(instructions):
        if found.opname in _IMPORTS:
            level = instructions[i - 2].argval  # before the tuple of what is imported from it
            prefix = package.rsplit(".", level - 1)[0] + "." if level else ""
            name = (prefix + found.argval).strip(".")
            names |= {name, name.partition(".")[0]}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= imported_modules(constant, package)
    return names


def assigned_globals(code: types.CodeType) -> set[str]:
    """Return the globals that code may assign or delete, without functions inside it."""
    return _operands(code, _ASSIGNMENTS)


def _operands(code: types.CodeType, operations: tuple[str, ...]) -> set[str]:
    if not _has(code, operations):
        return set()
    return {found.argval for found in dis.get_instructions(code) if found.opname in operations}


def _has(code: types.CodeType, operations: tuple[str, ...]) -> bool:
    return not {dis.opmap[name] for name in operations}.isdisjoint(code.co_code[::2])
