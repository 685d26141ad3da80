"""Run PyTorch operators' own CPU and CUDA kernels inside XLA programs, as custom calls."""

import functools
import re
from collections.abc import Callable, Sequence

import torch
from torch.utils import _pytree as pytree

from torch_xla_ext.launchers.torch_operator import support
from torch_xla_ext.launchers.torch_operator.operator_overload import OfPart, OperatorOverload, Rule
from torch_xla_ext.operator import functionalization
from torch_xla_ext.registry import registration

_NAMESPACE = "torch_xla_ext"
_FUNCTIONAL = torch.library.Library(_NAMESPACE, "DEF")
# Libraries by namespace, kept alive because a Library undoes its registrations when it is freed.
_libraries: dict[str, torch.library.Library] = {}
_registered: set[str] = set()


@functools.cache
def _operator(overload: torch._ops.OpOverload) -> OperatorOverload:
    """Return the operator; raise NotImplementedError if it cannot be a custom call."""
    reason = support.why_not(overload, registration.device_platform())
    if reason is not None:
        raise NotImplementedError(
            f"operator {overload.name()} cannot be part of an XLA program: {reason}"
        )
    return OperatorOverload(overload)


@functools.cache
def _packet(name: object) -> tuple[torch._ops.OpOverloadPacket, str | None]:
    """Return the operator with a name, and the overload's name if the name contains one."""
    match = re.fullmatch(r"(\w+)::(\w+)(?:\.(\w+))?", name) if isinstance(name, str) else None
    if match is None:
        raise ValueError(
            f"an operator's name is 'namespace::name' or 'namespace::name.overload', not {name!r}"
        )
    try:
        packet = getattr(getattr(torch.ops, match[1]), match[2])
        if match[3] is not None:
            getattr(packet, match[3])
    except AttributeError:
        raise ValueError(
            f"torch has no operator {name!r}; import the package that defines it first"
        ) from None
    return packet, match[3]


# The argument types that select an overload. A list selects by its elements' type.
_CHOOSING = {torch.Tensor, torch.nn.Parameter, int, float, bool, str, torch.dtype, type(None)}
_chosen: dict[tuple[object, ...], str] = {}


def _chosen_overload(
    packet: torch._ops.OpOverloadPacket, args: tuple[object, ...], kwargs: dict[str, object]
) -> str:
    """Return the name of the overload that accepts these arguments."""
    name = packet._qualified_op_name
    types = (*map(type, args), *map(type, kwargs.values()))
    if not _CHOOSING.issuperset(types):
        return torch._C._jit_resolve_packet(name, *args, **kwargs)
    key = (name, types, *kwargs)
    if key not in _chosen:
        _chosen[key] = torch._C._jit_resolve_packet(name, *args, **kwargs)
    return _chosen[key]


def run_torch_operator(
    operator: str | torch._ops.OpOverload | torch._ops.OpOverloadPacket,
    *args: object,
    sharding_rule: str | None = None,
    **kwargs: object,
) -> object:
    """Run a PyTorch operator on XLA tensors, with its own kernel, inside the XLA program.

    ::

        values, indices = torch_xla_ext.run_torch_operator("aten::topk", x, 5)

    On the CPU it runs the operator's CPU kernel; on a GPU it runs its CUDA kernel on XLA's stream
    and buffers. Operands are row-major. A result is copied to XLA's buffer, unless the operator has
    an ``out=`` overload or returns an argument that it writes to. For torch.compile, torch.export
    and derivatives, use `register_torch_operator`.

    Args:
        operator: ``"namespace::name"``, ``"namespace::name.overload"``, or an object in torch.ops.
        args, kwargs: the operator's arguments: at least one XLA tensor, all tensors on one device.
        sharding_rule: as in `register_torch_operator`, whose rule it replaces for this call.

    Returns:
        The operator's results. Numbers (not tensors) are those that its fake function returns.

    Raises:
        ValueError: there is no such operator.
        NotImplementedError: it cannot be part of an XLA program; the message gives the reason.
        TypeError: the arguments do not match its schema, or a tensor is not an XLA tensor.
        RuntimeError: when the results are read, if the operator raised an error.
    """
    if isinstance(operator, torch._ops.OpOverload):
        overload = operator
    else:
        name = operator
        if isinstance(operator, torch._ops.OpOverloadPacket):
            name = operator._qualified_op_name
        packet, chosen = _packet(name)
        if chosen is None:
            chosen = _chosen_overload(packet, args, kwargs)
        overload = getattr(packet, chosen or "default")
    return run_operator(overload, *args, sharding_rule=sharding_rule, **kwargs)


def run_operator(
    overload: torch._ops.OpOverload,
    *args: object,
    sharding_rule: str | None = None,
    of_part: OfPart | None = None,
    **kwargs: object,
) -> object:
    """Implement run_torch_operator; OperatorOverload.call describes `of_part`."""
    wrapped = _operator(overload)
    values = functionalization.unsharded(tuple(wrapped.bind(args, kwargs)))
    new_values, results = wrapped.call(values, sharding_rule, of_part)
    if wrapped.is_pure:
        return results[0] if len(results) == 1 else results
    for tensor, new_value in zip(wrapped.written_tensors(values), new_values, strict=True):
        if torch._is_functional_tensor(tensor):
            functionalization.replace(tensor, new_value)
        else:
            tensor.copy_(new_value)
    return wrapped.returned(values, results)


def register_torch_operator(
    name: str, *, sharding_rule: Rule = None
) -> list[torch._ops.OpOverload]:
    """Make ``torch.ops.namespace.name`` accept XLA tensors, with its own CPU or CUDA kernel.

    The operator then works in lazy and eager mode, and under torch.compile(openxla), torch.export
    and StableHLO export, as with `run_torch_operator`. Derivatives use the operator's own formula;
    without one a backward pass raises an error. If torch_xla implements the operator itself, that
    implementation is replaced in this process.

    Args:
        name: ``"namespace::name"`` for all overloads that can be part of an XLA program, except
            those with ``out=``; or ``"namespace::name.overload"``.
        sharding_rule: the dimensions of sharded tensors that devices may share, as in
            `define_operator`; or a function of the operator's arguments, by name, that returns the
            rule or None. Its operands are the tensors among the arguments, in their order, those
            of lists too, without Python's numbers and None; its results are the new values of the
            tensors that the operator writes to, then the tensors that it returns otherwise. Each
            device calls the operator with its parts of the tensors and with the same other
            arguments: a size among these, as of ``expand``, is not divided. Without it, sharded
            tensors are gathered.

    Returns:
        The overloads that now accept XLA tensors.

    Raises:
        ValueError: there is no such operator, or a rule is given for several overloads, or for a
            random operator.
        NotImplementedError: it cannot be part of an XLA program; the message gives the reason.
    """
    packet, chosen = _packet(name)
    if chosen is not None:
        operators = [_operator(getattr(packet, chosen))]
    else:
        operators, refusals = [], []
        overloads = [getattr(packet, overload) for overload in packet.overloads()]
        for overload in overloads:
            if len(overloads) > 1 and support.is_out_variant(overload):
                continue  # XLA tensors are results
            try:
                operators.append(_operator(overload))
            except NotImplementedError as error:
                refusals.append(error)
        if not operators:
            raise refusals[0]
    if isinstance(sharding_rule, str) and len(operators) > 1:
        names = ", ".join(operator.overload.name() for operator in operators)
        raise ValueError(
            f"register_torch_operator({name!r}): one sharding_rule cannot fit all overloads, "
            f"{names}; name one of them, or give a function of the arguments"
        )
    for operator in operators:
        if sharding_rule is not None:
            operator.set_sharding_rule(sharding_rule)
        if operator.overload.name() not in _registered:
            _register(operator)
            _registered.add(operator.overload.name())
    return [operator.overload for operator in operators]


def _register(operator: OperatorOverload) -> None:
    overload = operator.overload
    namespace = overload.namespace
    if namespace not in _libraries:
        _libraries[namespace] = torch.library.Library(namespace, "FRAGMENT")
    library = _libraries[namespace]
    if not operator.is_pure:
        functional = _define_functional(operator)
        library.impl(
            overload, _in_place(operator, functional, functionalization.replace), "Functionalize"
        )
        # XLA_DISABLE_FUNCTIONALIZATION=1
        library.impl(overload, _in_place(operator, functional, torch.Tensor.copy_), "XLA")
    else:

        def on_xla(*args: object, **kwargs: object) -> object:
            with torch.no_grad():
                results = operator.call(operator.bind(args, kwargs))[1]
                return results[0] if len(results) == 1 else results

        library.impl(overload, on_xla, "XLA")
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    if not any(has_kernel(overload.name(), key) for key in ("Autograd", "AutogradXLA")):
        library.impl(overload, _without_derivative(operator), "AutogradXLA")


def _define_functional(operator: OperatorOverload) -> torch._ops.OpOverload:
    """Define a functional form, which first returns the new values of written arguments."""
    schema = operator.schema
    name = "__".join(filter(None, [*schema.name.split("::"), schema.overload_name]))
    # `Tensor(a!)`; and `Tensor!` is printed as `Tensor($0! -> )`, which cannot be read again.
    arguments = re.sub(r"\(\$?\w+!(?: -> \w*)?\)", "", str(schema).partition("(")[2])
    arguments = arguments.rpartition(") -> ")[0]
    returns = [str(a.type) for a, w in zip(schema.arguments, operator.written, strict=True) if w]
    returns += [str(r.type) for r in schema.returns if r.alias_info is None]
    returns = [re.sub(r"Optional\[(.*)\]", r"\1?", text) for text in returns]
    returns = [re.sub(r"List\[(.*)\]", r"\1[]", text) for text in returns]
    _FUNCTIONAL.define(
        f"{name}({arguments}) -> ({', '.join(returns)})",
        tags=(torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout),
    )
    functional = getattr(getattr(torch.ops, _NAMESPACE), name).default

    def packed(values: Sequence[object], new: Sequence[torch.Tensor], rest: Sequence) -> object:
        """Arrange new values, in the form of the arguments, and results as the schema declares."""
        following = iter(new)
        forms = [v for v, written in zip(values, operator.written, strict=True) if written]
        forms = [pytree.tree_map_only(torch.Tensor, lambda _: next(following), f) for f in forms]
        others = [
            value
            for info, value in zip(schema.returns, rest, strict=True)
            if info.alias_info is None
        ]
        return forms[0] if len(forms) + len(others) == 1 else (*forms, *others)

    def on_xla(*args: object, **kwargs: object) -> object:
        with torch.no_grad():
            values = operator.bind(args, kwargs)
            return packed(values, *operator.call(values))

    def elsewhere(*args: object, **kwargs: object) -> object:
        values = operator.bind(args, kwargs)
        copies = [
            pytree.tree_map_only(torch.Tensor, torch.clone, value) if written else value
            for value, written in zip(values, operator.written, strict=True)
        ]
        rest = operator.invoke(copies)
        return packed(values, operator.written_tensors(copies), rest)

    _FUNCTIONAL.impl(functional, on_xla, "XLA")
    _FUNCTIONAL.impl(functional, elsewhere, "CompositeExplicitAutograd")
    torch.library.register_fake(functional.name(), elsewhere, lib=_FUNCTIONAL)
    return functional


def _in_place(
    operator: OperatorOverload,
    functional: torch._ops.OpOverload,
    replace: Callable[[torch.Tensor, torch.Tensor], object],
) -> Callable[..., object]:
    def kernel(*args: object, **kwargs: object) -> object:
        values = functionalization.unsharded(tuple(operator.bind(args, kwargs)))
        split = sum(not argument.kwarg_only for argument in operator.arguments)
        names = [argument.name for argument in operator.arguments]
        keywords = dict(zip(names[split:], values[split:], strict=True))
        results = functional(*values[:split], **keywords)
        if len(functional._schema.returns) == 1:
            results = (results,)
        count = sum(operator.written)
        tensors = operator.written_tensors(values)
        new_values = [leaf for leaf in pytree.tree_leaves(results[:count]) if leaf is not None]
        for tensor, new_value in zip(tensors, new_values, strict=True):
            replace(tensor, new_value)
        rest = iter(results[count:])
        returned = tuple(
            None if info.alias_info is not None else next(rest) for info in operator.schema.returns
        )
        return operator.returned(values, returned)

    return kernel


class _WithoutDerivative(torch.autograd.Function):
    """A function whose backward pass raises; torch's default warns and omits the gradient."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        operator: OperatorOverload,
        spec: pytree.TreeSpec,
        *leaves: object,
    ) -> object:
        ctx.name = operator.overload.name()
        args, kwargs = pytree.tree_unflatten(leaves, spec)
        with torch._C._AutoDispatchBelowAutograd():
            return operator.overload(*args, **kwargs)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *gradients: torch.Tensor) -> None:
        raise NotImplementedError(
            f"{ctx.name} has no derivative; add one with torch.library.register_autograd"
        )


def _without_derivative(operator: OperatorOverload) -> Callable[..., object]:
    def kernel(*args: object, **kwargs: object) -> object:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        differentiated = torch.is_grad_enabled() and any(
            isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves
        )
        if not differentiated:
            with torch._C._AutoDispatchBelowAutograd():
                return operator.overload(*args, **kwargs)
        if any(operator.written):
            raise NotImplementedError(
                f"{operator.overload.name()} has no derivative: call it under torch.no_grad(), or "
                "with detached tensors"
            )
        return _WithoutDerivative.apply(operator, spec, *leaves)

    return kernel
