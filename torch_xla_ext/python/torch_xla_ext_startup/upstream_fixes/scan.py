"""torch_xla's scan, for functions as people write them.

torch_xla 2.8's takes all that is carried and all results for differentiable floating-point tensors,
and its function may use no tensor besides its arguments. Here, integers and results without
gradients stay so, and tensors of outside become arguments of the traced function, with gradients.

AOTAutograd traces a graph of the function, as in torch_xla, whose own `_scan_impl_flat` makes the
loop of it.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import NamedTuple

import torch
import torch_xla.runtime
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from torch_xla_ext_startup.upstream_fixes import loop_functions
from torch_xla_ext_startup.upstream_fixes.loop_functions import describe

_LOOP = "scan: the function"
_Tree = tuple[list[torch.Tensor], pytree.TreeSpec]  # leaves and structure


def scan_of_any_function(original: Callable[..., object]) -> Callable[..., object]:
    """torch_xla.experimental.scan.scan."""
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
        if any(_is_traced(value) for value in (*carried, *rows)):
            init = pytree.tree_unflatten(carried, carry_spec)
            return _unrolled(fn, init, rows, rows_spec, length)
        plan = _plan(module, fn, carried, carry_spec, rows, rows_spec, partition_fn, is_fn_pure)
        results = _Scan.apply(plan, len(carried), *carried, *rows, *plan.outer)
        return plan.unflatten(results)

    return torch._disable_dynamo(scan)  # it traces the function itself


def _length(rows: Sequence[torch.Tensor]) -> int:
    if not rows:
        raise ValueError("scan: `xs` is empty: it must have a tensor")
    if not all(value.dim() for value in rows):
        raise ValueError("scan: a tensor of `xs` has no dimension to loop over")
    lengths = sorted({value.shape[0] for value in rows})
    if len(lengths) > 1:
        raise ValueError(f"scan: the tensors of `xs` have several lengths: {lengths}")
    if not lengths[0]:
        raise ValueError("scan: the tensors of `xs` have no rows")
    return lengths[0]


def _is_traced(value: torch.Tensor) -> bool:
    """Whether PyTorch is tracing, so that the tensor has no data."""
    from torch._subclasses.fake_tensor import FakeTensor
    from torch._subclasses.functional_tensor import FunctionalTensor

    return isinstance(value, FakeTensor | FunctionalTensor)


def _unrolled(
    fn: Callable[..., tuple[object, object]],
    carry: object,
    rows: list[torch.Tensor],
    spec: pytree.TreeSpec,
    length: int,
) -> tuple[object, object]:
    """A scan in a function that is being traced, such as another scan's."""
    results = []
    for index in range(length):
        carry, result = fn(carry, pytree.tree_unflatten([value[index] for value in rows], spec))
        results.append(pytree.tree_flatten(result))
    leaves = [
        None if values[0] is None else torch.stack(values)
        for values in zip(*(leaves for leaves, _ in results), strict=True)
    ]
    return carry, pytree.tree_unflatten(leaves, results[0][1])


class _Source(NamedTuple):
    """Where the backward graph gets an activation from: an input, or what is saved."""

    kind: str  # "row", "outer" or "saved"
    number: int


class _OuterTensorsError(Exception):
    """The function uses tensors that are not among its arguments."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self.tensors = tensors


def _plan(
    module: ModuleType,
    fn: Callable[..., object],
    carried: list[torch.Tensor],
    carry_spec: pytree.TreeSpec,
    rows: list[torch.Tensor],
    rows_spec: pytree.TreeSpec,
    partition_fn: Callable[..., object],
    is_fn_pure: bool,
) -> _Plan:
    def key_of(values: list[torch.Tensor]) -> tuple[object, ...]:
        return tuple((tuple(v.shape), v.dtype, differentiable and v.requires_grad) for v in values)

    differentiable = _needs_gradient([*carried, *rows])
    key = (id(partition_fn), key_of(carried), key_of(rows), carry_spec, rows_spec)
    cache = module._SCAN_COMPUTATION_CACHE
    if is_fn_pure and key in cache.get(fn, {}):
        forward, _, _ = cache[fn][key]
        return forward.__self__
    plan = _traced(module, fn, (carried, carry_spec), (rows, rows_spec), partition_fn)
    if is_fn_pure and not plan.outer:  # the tensors of outside may be others at the next call
        cache.setdefault(fn, {})[key] = (plan.forward, plan.alias_input, plan.backward)
    return plan


def _traced(
    module: ModuleType,
    fn: Callable[..., object],
    carry: _Tree,
    rows: _Tree,
    partition_fn: Callable[..., object],
) -> _Plan:
    outer: list[torch.Tensor] = []
    while True:
        differentiable = _needs_gradient([*carry[0], *rows[0], *outer])
        try:
            return _Plan(module, fn, carry, rows, outer, partition_fn, differentiable)
        except _OuterTensorsError as found:
            outer = [*outer, *found.tensors]


def trace(module: ModuleType, fn: Callable[..., object], init: object, xs: object) -> _Plan:
    """Traces the function of a scan.

    Args:
        module: torch_xla.experimental.scan.
    """
    return _traced(
        module, fn, pytree.tree_flatten(init), pytree.tree_flatten(xs), module.default_partition
    )


def _needs_gradient(tensors: Sequence[torch.Tensor]) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _is_differentiable(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


class _Plan:
    """The graphs of a function, and what their inputs and outputs are.

    Attributes:
        outer: the tensors of outside that the function uses.
        graph: of the forward pass.
        has_gradient: for each carried value and each result that is no None.
    """

    def __init__(
        self,
        module: ModuleType,
        fn: Callable[..., object],
        carry: _Tree,
        rows: _Tree,
        outer: list[torch.Tensor],
        partition_fn: Callable[..., object],
        differentiable: bool,
    ) -> None:
        self._module, self.outer = module, outer
        (carried, self._carry_spec), (row_values, rows_spec) = carry, rows
        self.num_carried, self._num_rows = len(carried), len(row_values)
        self._dtypes = [value.dtype for value in (*carried, *row_values)]
        # Gradients flow through what is carried even if its first values have none.
        inputs = [
            *(_like(v, v.shape, differentiable and _is_differentiable(v)) for v in carried),
            *(_like(v, v.shape, differentiable and v.requires_grad) for v in outer),
            *(_like(v, v.shape[1:], differentiable and v.requires_grad) for v in row_values),
        ]

        def function(*values: torch.Tensor) -> list[torch.Tensor]:
            carry_in, given, row = module.split(values, len(carried), len(outer))
            versions = [value._version for value in values]
            with _Tracing(outer, given, values) as tracing:
                results = fn(
                    pytree.tree_unflatten(list(carry_in), self._carry_spec),
                    pytree.tree_unflatten(list(row), rows_spec),
                )
            if tracing.found:
                raise _OuterTensorsError(tracing.found)
            for number, (value, version) in enumerate(zip(values, versions, strict=True)):
                if value._version != version:
                    is_outer = len(carried) <= number < len(carried) + len(outer)
                    _refuse_write(value, "a tensor of outside," if is_outer else "its argument")
            # AOTAutograd makes no part of the graph of results that are arguments, or their views.
            return [value.clone() for value in self._flat_results(results, carry_in)]

        from functorch.compile import aot_function

        fw_compiler, forward_graph = module._make_get_graph_compiler()
        bw_compiler, backward_graph = module._make_get_graph_compiler()
        with torch.enable_grad():
            results = aot_function(
                function,
                fw_compiler=fw_compiler,
                bw_compiler=bw_compiler,
                partition_fn=partition_fn,
            )(*inputs)
            self.has_gradient = [value.requires_grad for value in results]
            if any(self.has_gradient):
                traced = [value for value in results if value.requires_grad]
                torch.autograd.backward(traced, [torch.ones_like(value) for value in traced])
        self.graph = forward_graph()
        self._backward_graph = backward_graph() if any(self.has_gradient) else None
        self._num_results = len(results)
        self._sources = self._find_sources()

    def _flat_results(self, results: object, carry: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        if not isinstance(results, tuple | list) or len(results) != 2:
            raise TypeError(f"{_LOOP} must return a pair: what is carried, and a result")
        carried, spec = pytree.tree_flatten(results[0])
        if spec != self._carry_spec:
            raise ValueError(
                f"{_LOOP} returns a carry of another structure than `init` has: {spec} instead of "
                f"{self._carry_spec}"
            )
        loop_functions.check_carried(_LOOP, carried, list(carry))
        leaves, self._result_spec = pytree.tree_flatten(results[1])
        self._is_none = [leaf is None for leaf in leaves]
        leaves = [leaf for leaf in leaves if leaf is not None]
        for leaf in leaves:
            if not isinstance(leaf, torch.Tensor) or leaf.device.type != "xla":
                raise TypeError(f"{_LOOP} returns {leaf!r} as a result: it must return XLA tensors")
        return [*carried, *leaves]

    def _find_sources(self) -> list[_Source]:
        nodes = list(self.graph.graph.nodes)
        places = {
            node: number
            for number, node in enumerate(node for node in nodes if node.op == "placeholder")
        }
        sources, saved = [], 0
        for node in nodes[-1].args[0][self._num_results :]:
            number = places.get(node, -1) - self.num_carried
            if 0 <= number < len(self.outer):
                sources.append(_Source("outer", number))
            elif number >= len(self.outer):
                sources.append(_Source("row", number - len(self.outer)))
            else:
                sources.append(_Source("saved", saved))
                saved += 1
        return sources

    def unflatten(self, results: Sequence[torch.Tensor]) -> tuple[object, object]:
        carried, values = list(results[: self.num_carried]), iter(results[self.num_carried :])
        leaves = [None if is_none else next(values) for is_none in self._is_none]
        return (
            pytree.tree_unflatten(carried, self._carry_spec),
            pytree.tree_unflatten(leaves, self._result_spec),
        )

    def forward(
        self, carried: Sequence[torch.Tensor], row: Sequence[torch.Tensor]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Returns the new carried values; the results, and what the backward graph needs."""
        # torch_xla multiplies them by 1, which makes integers of booleans.
        values = [
            value if value.dtype == dtype else value.to(dtype)
            for value, dtype in zip((*carried, *row), self._dtypes, strict=True)
        ]
        carried, row = values[: self.num_carried], values[self.num_carried :]
        outer = [value.detach() for value in self.outer]
        with self._module.xp.Trace("aot_forward"):
            outputs = list(self.graph(*carried, *outer, *row))
        activations = zip(self._sources, outputs[self._num_results :], strict=True)
        saved = [value for source, value in activations if source.kind == "saved"]
        return outputs[: self.num_carried], [
            *outputs[self.num_carried : self._num_results],
            *saved,
        ]

    def alias_input(
        self, saved: Sequence[torch.Tensor], rows: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Returns the activations that differ from iteration to iteration, stacked."""
        values = {"saved": saved, "row": rows}
        return [
            values[source.kind][source.number] for source in self._sources if source.kind in values
        ]

    def backward(
        self,
        outer: Sequence[torch.Tensor],
        carried: Sequence[torch.Tensor],
        row: Sequence[torch.Tensor],
    ) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
        """Returns the gradients of what was carried, with the sums of those of `outer`; of rows.

        Args:
            outer: the tensors of outside that the function used.
            carried: what this returned for the iteration after.
            row: the gradients of the results that have one, and the activations of `alias_input`.
        """
        gradients, sums = list(carried[: self.num_carried]), carried[self.num_carried :]
        num_results = sum(self.has_gradient[self.num_carried :])
        varying = iter(row[num_results:])
        activations = [
            outer[source.number] if source.kind == "outer" else next(varying)
            for source in self._sources
        ]
        tangents = [
            gradient
            for gradient, has_one in zip(gradients, self.has_gradient, strict=False)
            if has_one
        ]
        with self._module.xp.Trace("aot_backward"):
            outputs = list(self._backward_graph(*activations, *tangents, *row[:num_results]))
        of_carried, of_outer, of_row = self._module.split(
            outputs, self.num_carried, len(self.outer)
        )
        of_carried = [
            torch.zeros_like(before) if gradient is None else gradient
            for before, gradient in zip(gradients, of_carried, strict=True)
        ]
        sums = [
            total if gradient is None else total + gradient
            for total, gradient in zip(sums, of_outer, strict=True)
        ]
        return [*of_carried, *sums], list(of_row)


def _like(tensor: torch.Tensor, shape: torch.Size, requires_grad: bool) -> torch.Tensor:
    return torch.empty(shape, dtype=tensor.dtype, device=tensor.device, requires_grad=requires_grad)


class _Context(torch.autograd.function.FunctionCtx):
    plan: _Plan
    carried: list[tuple[torch.Size, torch.dtype]]
    num_activations: int
    length: int
    saved_tensors: tuple[torch.Tensor, ...]
    needs_input_grad: tuple[bool, ...]


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _Context, plan: _Plan, num_carried: int, *inputs: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        carried = inputs[:num_carried]
        rows = inputs[num_carried : len(inputs) - len(plan.outer)]
        with loop_functions.on_device_alone(_LOOP):
            last, stacked = plan._module._scan_impl_flat(plan.forward, carried, rows)
        num_results = plan._num_results - num_carried
        results, saved = list(stacked[:num_results]), stacked[num_results:]
        outputs = (*last, *results)
        ctx.mark_non_differentiable(
            *(one for one, has in zip(outputs, plan.has_gradient, strict=True) if not has)
        )
        ctx.plan, ctx.carried = plan, [(value.shape, value.dtype) for value in carried]
        activations = plan.alias_input(saved, rows)
        ctx.num_activations = len(activations)
        if plan._backward_graph is not None:
            alike = (*carried, *rows) if _keeps_shardings() else ()
            ctx.save_for_backward(*activations, *plan.outer, *alike)
        ctx.length = rows[0].shape[0]
        return outputs

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: _Context, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        plan = ctx.plan
        activations, outer, alike = plan._module.split(
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

        # The last one says how many iterations there are, if there is nothing else.
        rows = [*results, *activations, torch.zeros(ctx.length, device=device)]
        first = [*carried, *(torch.zeros_like(value) for value in outer)]
        with loop_functions.on_device_alone("scan: the gradient of the function"):
            last, stacked = plan._module._scan_impl_flat(step, first, rows, reverse=True)
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


def _keeps_shardings() -> bool:
    """Whether gradients are sharded as their inputs are, for which torch_xla needs JAX."""
    return torch_xla.runtime.is_spmd() and importlib.util.find_spec("jax") is not None


def _sharded_alike(
    plan: _Plan,
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


class _Tracing(TorchFunctionMode):
    """Gives the function the traced arguments in place of tensors of outside.

    Attributes:
        found: other tensors of outside. The function gets others of their sizes.
    """

    def __init__(
        self,
        outer: Sequence[torch.Tensor],
        given: Sequence[torch.Tensor],
        arguments: Sequence[torch.Tensor],
    ) -> None:
        super().__init__()
        self.found: list[torch.Tensor] = []
        self._given = {id(tensor): new for tensor, new in zip(outer, given, strict=True)}
        self._arguments = arguments

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple = (),
        kwargs: dict | None = None,
    ) -> object:
        kwargs = kwargs or {}
        if func is loop_functions.GRADIENT:
            return func(*args)
        name = getattr(func, "__name__", "")
        leaves = pytree.tree_leaves((args, kwargs))
        for value in leaves:
            if isinstance(value, torch.Tensor) and value.device.type == "xla":
                loop_functions.refuse_read(_LOOP, value, name)
        loop_functions.refuse_statistics(func, args, kwargs, _refuse_write)
        if any(isinstance(value, torch.Tensor) and not _is_traced(value) for value in leaves):
            args, kwargs = pytree.tree_map_only(torch.Tensor, self._inside, (args, kwargs))
        return func(*args, **kwargs)

    def _inside(self, tensor: torch.Tensor) -> torch.Tensor:
        if _is_traced(tensor) or tensor.device.type != "xla":
            return tensor
        if id(tensor) not in self._given:
            self._given[id(tensor)] = _like(tensor, tensor.shape, tensor.requires_grad)
            self.found.append(tensor)
        return self._given[id(tensor)]


class _WriteError(RuntimeError, AssertionError):
    """An AssertionError, too: torch_xla's scan raises one."""


def _refuse_write(tensor: torch.Tensor, what: str = "a tensor of outside,") -> None:
    raise _WriteError(
        f"{_LOOP} writes to {what} {describe(tensor)}, by an in-place operation; it is traced "
        "once, with FakeTensors, so this would not happen in each iteration: carry the tensor, and "
        "return its new value"
    )
