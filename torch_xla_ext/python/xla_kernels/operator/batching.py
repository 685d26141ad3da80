"""Batching rules that are chosen by name, like JAX's `vmap_method`."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from xla_kernels.operator import autograd
from xla_kernels.operator.checked import OperatorCall
from xla_kernels.operator.tensor_checks import Tensors, Value

METHODS = ("sequential", "expand_dims", "broadcast_all")


class VmapInfo(Protocol):
    """The first argument that torch.library.register_vmap passes to a batching rule."""

    batch_size: int
    randomness: str


Rule = Callable[..., tuple[Tensors, int | tuple[int | None, ...]]]


def rule_of(call: OperatorCall, method: str) -> Rule:
    """Return an operator's batching rule for a method's name.

    Raises:
        ValueError: the method is unknown.
    """
    if method not in METHODS:
        known = ", ".join(map(repr, METHODS))
        raise ValueError(
            f"define_operator: {call.name}: vmap_method must be one of {known}, but is {method!r}"
        )

    def sequential(info: VmapInfo, in_dims: Sequence[int | None], *args: Value) -> object:
        return _sequential(call, info, in_dims, args)

    def at_once(info: VmapInfo, in_dims: Sequence[int | None], *args: Value) -> object:
        return _at_once(call, method, info, in_dims, args)

    return sequential if method == "sequential" else at_once


def checking_one_example(call: OperatorCall, rule: Rule) -> Rule:
    """Return a batching rule that first checks one example.

    An error then describes the caller's example, not a batch that the caller does not see.
    """

    def batched(info: VmapInfo, in_dims: Sequence[int | None], *args: Value) -> object:
        args = autograd.with_defaults(call.operator, args)
        in_dims = (*in_dims, *[None] * (len(args) - len(in_dims)))
        if info.batch_size > 0:
            pairs = zip(args, in_dims, strict=True)
            call.checked([arg if dim is None else arg.select(dim, 0) for arg, dim in pairs])
        return rule(info, in_dims, *args)

    return batched


def _sequential(
    call: OperatorCall, info: VmapInfo, in_dims: Sequence[int | None], args: Sequence[Value]
) -> tuple[Tensors, int | tuple[int, ...]]:
    def example(index: int) -> list[Value]:
        pairs = zip(args, in_dims, strict=True)
        return [arg if dim is None else arg.select(dim, index) for arg, dim in pairs]

    if info.batch_size == 0:
        like = [
            arg if dim is None else arg.new_empty(_without(arg.shape, dim))
            for arg, dim in zip(args, in_dims, strict=True)
        ]
        fake = _tuple(call.on_fake(*like))
        results = tuple(each.new_empty((0, *each.shape)) for each in fake)
    else:
        made = [_tuple(call.operator(*example(index))) for index in range(info.batch_size)]
        results = tuple(torch.stack(each) for each in zip(*made, strict=True))
    return _as_returned(call, results)


def _at_once(
    call: OperatorCall,
    method: str,
    info: VmapInfo,
    in_dims: Sequence[int | None],
    args: Sequence[Value],
) -> tuple[Tensors, int | tuple[int, ...]]:
    def batched(arg: Value, dim: int | None) -> Value:
        if not isinstance(arg, torch.Tensor):
            return arg
        if dim is not None:
            return arg.movedim(dim, 0)
        arg = arg.unsqueeze(0)
        return arg if method == "expand_dims" else arg.expand(info.batch_size, *arg.shape[1:])

    pairs = zip(args, in_dims, strict=True)
    results = _tuple(call.operator(*(batched(arg, dim) for arg, dim in pairs)))
    for index, result in enumerate(results):
        if result.dim() == 0 or result.shape[0] != info.batch_size:
            raise ValueError(
                f"{call.name}: vmap_method={method!r} needs results whose first dimension is that "
                f"of the batch, {info.batch_size}, but result {index} has the shape "
                f"{list(result.shape)}; the kernel must accept leading dimensions, or pass "
                "vmap_method='sequential'"
            )
    return _as_returned(call, results)


def _without(shape: Sequence[int], dim: int) -> list[int]:
    sizes = list(shape)
    del sizes[dim]
    return sizes


def _tuple(results: Tensors) -> tuple[torch.Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)


def _as_returned(
    call: OperatorCall, results: tuple[torch.Tensor, ...]
) -> tuple[Tensors, int | tuple[int, ...]]:
    if len(call.operator._schema.returns) == 1:
        return results[0], 0
    return results, (0,) * len(results)
