"""Manage operators in torch.library, each with its own Library object for its lifetime."""

import torch

_libraries: dict[str, torch.library.Library] = {}
# Further objects that an operator needs, such as kernels in C++, by the operators' names.
_kept: dict[str, list[object]] = {}


def open_library(name: str, replaces: bool) -> torch.library.Library:
    """Return a torch.library.Library for one operator.

    It is a "FRAGMENT" of the namespace, so that others can define operators there, too: torch
    allows only one "DEF" for each namespace, which belongs to the namespace's owner.

    Raises:
        RuntimeError: the operator exists already, and `replaces` is false.
    """
    if name in _libraries:
        if not replaces:
            raise RuntimeError(
                f"define_operator: {name} is already defined; pass replace=True to replace it"
            )
        close_library(name)
    _libraries[name] = torch.library.Library(name.partition("::")[0], "FRAGMENT")
    return _libraries[name]


def close_library(name: str) -> None:
    """Remove an operator, and its functional form."""
    for kept in (name, f"{name}_functional"):
        _kept.pop(kept, None)
    _libraries.pop(name)._destroy()


def declare(library: torch.library.Library, name: str, schema: str) -> torch._ops.OpOverload:
    """Define an operator without kernels."""
    namespace, _, base = name.partition("::")
    library.define(
        schema.partition("::")[2],
        # flexible_layout: any strides will do, so inductor need not keep those of the operands.
        tags=(torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout),
    )
    return getattr(getattr(torch.ops, namespace), base).default


def keep(name: str, what: object) -> None:
    """Keep an object alive until the operator is removed."""
    _kept.setdefault(name, []).append(what)
