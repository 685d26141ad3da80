"""Make the operators that a package defines at import accept XLA tensors."""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence

import torch

from torch_xla_ext.launchers.torch_operator.operator_overload import Rule
from torch_xla_ext.launchers.torch_operator.register import register_torch_operator

_log = logging.getLogger(__name__)
_libraries: list[torch.library.Library] = []
# An operator with one of these keys calls PyTorch operations or Triton kernels, which accept XLA
# tensors.
_PYTHONS_OWN = ("CompositeExplicitAutograd", "CompositeImplicitAutograd", "XLA")


def all_names() -> set[str]:
    """Return the names of all registered operators: ``namespace::name``, without overloads."""
    return {name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names()}


def register(
    names: Collection[str],
    fakes: Mapping[str, Callable[..., object]],
    sharding_rules: Mapping[str, Rule],
) -> list[str]:
    """Make operators accept XLA tensors; an unsupported one raises its reason when called.

    Args:
        names: ``namespace::name``.
        fakes, sharding_rules: as for `load_kernels`.

    Returns:
        The names of the operators that now accept XLA tensors.

    Raises:
        ValueError: `fakes` or `sharding_rules` name an operator that does not exist.
        NotImplementedError: no operator can be part of an XLA program; the message gives the first
            one's reason.
    """
    known = {name.partition("::")[2] for name in names}
    if unknown := sorted((set(fakes) | set(sharding_rules)) - known):
        raise ValueError(
            f"load_kernels: there is no operator {unknown[0]!r}; there are "
            f"{', '.join(sorted(known)) or 'none'}"
        )
    accepted, refusals = [], []
    for name in sorted(names):
        short = name.partition("::")[2]
        if short in fakes:
            torch.library.register_fake(name, fakes[short])
        if short not in sharding_rules and _is_of_python(name):
            accepted.append(name)
            continue
        try:
            register_torch_operator(name, sharding_rule=sharding_rules.get(short))
            accepted.append(name)
        except NotImplementedError as error:
            refusals.append(error)
            _log.info("%s", error)
            _refuse(name, error)
    if refusals and not accepted:
        raise refusals[0]
    return accepted


def _overloads(name: str) -> Sequence[torch._ops.OpOverload]:
    namespace, _, short = name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), short)
    return [getattr(packet, overload) for overload in packet.overloads()]


def _is_of_python(name: str) -> bool:
    return all(
        any(
            torch._C._dispatch_has_kernel_for_dispatch_key(each.name(), key) for key in _PYTHONS_OWN
        )
        for each in _overloads(name)
    )


def _refuse(name: str, error: NotImplementedError) -> None:
    text = str(error)

    def refused(*args: object, **kwargs: object) -> None:
        raise NotImplementedError(text)

    for overload in _overloads(name):
        library = torch.library.Library(overload.namespace, "FRAGMENT")
        library.impl(overload, refused, "XLA")
        _libraries.append(library)
