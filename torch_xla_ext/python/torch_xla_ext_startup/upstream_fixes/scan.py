"""Make torch_xla's scan accept integers, results without gradients, and outer tensors.

torch_xla 2.8 assumes that all carried values and results are differentiable floating-point tensors,
and that the function uses no tensors except its arguments. Here, integers and results without
gradients keep their types, and outer tensors become arguments of the traced function, with
gradients.

As in torch_xla, AOTAutograd traces a graph of the function, and torch_xla's `_scan_impl_flat` makes
a loop from it.
"""

import functools
import importlib.util
from collections.abc import Callable, Sequence
from types import ModuleType

import torch
import torch_xla.runtime
from torch.utils import _pytree as pytree

from torch_xla_ext_startup.upstream_fixes import loop_functions
from torch_xla_ext_startup.upstream_fixes.scan_plan import (
    LOOP,
    OuterTensorsError,
    Plan,
    Tree,
    is_traced,
    needs_gradient,
)


def scan_of_any_function(original: Callable[..., object]) -> Callable[..., object]:
    """Replace torch_xla.experimental.scan.scan."""
    from torch_xla.experimental import scan as module

    @functools.wraps(original)
    def scan(
        fn: Callable[..., object],
        init: object,
        xs: object,
        partition_fn: Callable[..., object] = module.default_partition,
        is_fn_pure: bool = False,
    ) -> object:
        if not callable(fn):
            raise ValueError(f"`fn` {fn} must be callable.")
        carried, carry_spec = pytree.tree_flatten(init)
        carried = loop_functions.as_tensors(carried)
        rows, rows_spec = pytree.tree_flatten(xs)
        loop_functions.check_arguments("scan", [*carried, *rows])
        length = _length(rows)
        if any(is_traced(value) for value in (*carried, *rows)):
            init = pytree.tree_unflatten(carried, carry_spec)
            return _unrolled(fn, init, rows, rows_spec, length)
        plan = _plan(module, fn, carried, carry_spec, rows, rows_spec, partition_fn, is_fn_pure)
        results = _Scan.apply(plan, len(carried), *carried, *rows, *plan.outer)
        return plan.unflatten(results)

    return torch._disable_dynamo(scan)  # it traces the function itself


def _length(rows: Sequence[torch.Tensor]) -> int:
    if not rows:
        raise ValueError("scan: `xs` is empty: it must contain a tensor")
    if not all(value.dim() for value in rows):
        raise ValueError("scan: a tensor of `xs` has no dimension to loop over")
    lengths = sorted({value.shape[0] for value in rows})
    if len(lengths) > 1:
        raise ValueError(f"scan: the tensors of `xs` must have one length, but have {lengths}")
    if not lengths[0]:
        raise ValueError("scan: the tensors of `xs` have no rows")
    return lengths[0]


def _unrolled(
    fn: Callable[..., tuple[object, object]],
    carry: object,
    rows: list[torch.Tensor],
    spec: pytree.TreeSpec,
    length: int,
) -> tuple[object, object]:
    """Return the result of a scan inside a traced function, such as another scan's."""
    results = []
    for index in range(length):
        carry, result = fn(carry, pytree.tree_unflatten([value[index] for value in rows], spec))
        results.append(pytree.tree_flatten(result))
    leaves = [
        None if values[0] is None else torch.stack(values)
        for values in zip(*(leaves for leaves, _ in results), strict=True)
    ]
    return carry, pytree.tree_unflatten(leaves, results[0][1])


def _plan(
    module: ModuleType,
    fn: Callable[..., object],
    carried: list[torch.Tensor],
    carry_spec: pytree.TreeSpec,
    rows: list[torch.Tensor],
    rows_spec: pytree.TreeSpec,
    partition_fn: Callable[..., object],
    is_fn_pure: bool,
) -> Plan:
    def key_of(values: list[torch.Tensor]) -> tuple[object, ...]:
        return tuple((tuple(v.shape), v.dtype, differentiable and v.requires_grad) for v in values)

    differentiable = needs_gradient([*carried, *rows])
    key = (id(partition_fn), key_of(carried), key_of(rows), carry_spec, rows_spec)
    cache = module._SCAN_COMPUTATION_CACHE
    if is_fn_pure and key in cache.get(fn, {}):
        forward, _, _ = cache[fn][key]
        return forward.__self__

    def new_plan() -> Plan:
        return _traced(module, fn, (carried, carry_spec), (rows, rows_spec), partition_fn)

    plan = new_plan()
    if not is_fn_pure:
        loop_functions.check_repeatable(LOOP, fn, key, lambda: plan.is_same(new_plan()))
    if is_fn_pure and not plan.outer:  # the tensors of outside may be others at the next call
        cache.setdefault(fn, {})[key] = (plan.forward, plan.alias_input, plan.backward)
    return plan


def _traced(
    module: ModuleType,
    fn: Callable[..., object],
    carry: Tree,
    rows: Tree,
    partition_fn: Callable[..., object],
) -> Plan:
    outer: list[torch.Tensor] = []
    while True:
        differentiable = needs_gradient([*carry[0], *rows[0], *outer])
        try:
            return Plan(module, fn, carry, rows, outer, partition_fn, differentiable)
        except OuterTensorsError as found:
            outer = [*outer, *found.tensors]


def trace(module: ModuleType, fn: Callable[..., object], init: object, xs: object) -> Plan:
    """Trace the function of a scan.

    Args:
        module: torch_xla.experimental.scan.
    """
    return _traced(
        module, fn, pytree.tree_flatten(init), pytree.tree_flatten(xs), module.default_partition
    )


class _Context(torch.autograd.function.FunctionCtx):
    plan: Plan
    carried: list[tuple[torch.Size, torch.dtype]]
    num_activations: int
    length: int
    saved_tensors: tuple[torch.Tensor, ...]
    needs_input_grad: tuple[bool, ...]


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _Context, plan: Plan, num_carried: int, *inputs: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        carried = inputs[:num_carried]
        rows = inputs[num_carried : len(inputs) - len(plan.outer)]
        with loop_functions.on_device_alone(LOOP):
            last, stacked = plan.module._scan_impl_flat(plan.forward, carried, rows)
        num_results = plan.num_results - num_carried
        results, saved = list(stacked[:num_results]), stacked[num_results:]
        outputs = (*last, *results)
        ctx.mark_non_differentiable(
            *(one for one, has in zip(outputs, plan.has_gradient, strict=True) if not has)
        )
        ctx.plan, ctx.carried = plan, [(value.shape, value.dtype) for value in carried]
        activations = plan.alias_input(saved, rows)
        ctx.num_activations = len(activations)
        if plan.backward_graph is not None:
            alike = (*carried, *rows) if _keeps_shardings() else ()
            ctx.save_for_backward(*activations, *plan.outer, *alike)
        ctx.length = rows[0].shape[0]
        return outputs

    @staticmethod
    def backward(ctx: _Context, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        is_to_be_differentiated = torch.is_grad_enabled()
        with torch.no_grad():
            values = _Scan._gradients(ctx, *gradients)
        return _without_gradients(values) if is_to_be_differentiated else values

    @staticmethod
    def _gradients(ctx: _Context, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        plan = ctx.plan
        activations, outer, alike = plan.module.split(
            ctx.saved_tensors, ctx.num_activations, len(plan.outer)
        )
        device = gradients[0].device
        carried = [
            gradient if has else torch.zeros(shape, dtype=dtype, device=device)
            for gradient, has, (shape, dtype) in zip(
                gradients, plan.has_gradient, ctx.carried, strict=False
            )
        ]
        results = [
            gradient
            for gradient, has in list(zip(gradients, plan.has_gradient, strict=True))[
                plan.num_carried :
            ]
            if has
        ]
        are_none: list[bool] = []

        def step(
            carried: Sequence[torch.Tensor], row: Sequence[torch.Tensor]
        ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
            following, of_row = plan.backward(outer, carried, row[: len(rows) - 1])
            if alike:
                following, of_row = _sharded_alike(plan, following, of_row, alike)
            are_none[:] = [gradient is None for gradient in of_row]
            return following, [gradient for gradient in of_row if gradient is not None]

        # The last one determines the number of iterations if there are no other rows.
        rows = [*results, *activations, torch.zeros(ctx.length, device=device)]
        first = [*carried, *(torch.zeros_like(value) for value in outer)]
        with loop_functions.on_device_alone("scan: the gradient of the function"):
            last, stacked = plan.module._scan_impl_flat(step, first, rows, reverse=True)
        of_rows = iter(stacked)
        values = [
            *last[: plan.num_carried],
            *(None if is_none else next(of_rows) for is_none in are_none),
            *last[plan.num_carried :],
        ]
        needed = ctx.needs_input_grad[2:]
        return (
            None,
            None,
            *(value if needs else None for value, needs in zip(values, needed, strict=True)),
        )


def _without_gradients(values: tuple[torch.Tensor | None, ...]) -> tuple[torch.Tensor | None, ...]:
    """Return the values, made so that a gradient through them raises an error.

    once_differentiable, in contrast, treats them as constants if the incoming gradients are
    constants.
    """
    tensors = [value.detach().requires_grad_() for value in values if value is not None]
    error = torch._C._functions.DelayedError(
        "scan: second derivatives are not supported: use a loop in Python", len(tensors)
    )
    results = error(*tensors) if tensors else ()
    refused = iter((results,) if isinstance(results, torch.Tensor) else results)
    return tuple(None if value is None else next(refused) for value in values)


def _keeps_shardings() -> bool:
    """Return whether gradients keep their inputs' shardings, for which torch_xla needs JAX."""
    return torch_xla.runtime.is_spmd() and importlib.util.find_spec("jax") is not None


def _sharded_alike(
    plan: Plan,
    of_carried: list[torch.Tensor],
    of_row: list[torch.Tensor | None],
    inputs: Sequence[torch.Tensor],
) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
    from torch_xla.distributed.spmd.xla_sharding import shard_as

    carried, rows = inputs[: plan.num_carried], inputs[plan.num_carried :]
    num = plan.num_carried
    _, alike = shard_as(list(carried), of_carried[:num])
    first = [None if g is None else row[0] for g, row in zip(of_row, rows, strict=True)]
    _, of_row = shard_as(first, of_row)
    return [*alike, *of_carried[num:]], of_row
