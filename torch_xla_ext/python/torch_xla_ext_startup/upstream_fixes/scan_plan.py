"""Trace the function of a scan, and its gradient, into graphs of torch_xla's operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import NamedTuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from torch_xla_ext_startup.upstream_fixes import loop_functions
from torch_xla_ext_startup.upstream_fixes.loop_functions import describe

LOOP = "scan: the function"
Tree = tuple[list[torch.Tensor], pytree.TreeSpec]  # leaves and structure


def is_traced(value: torch.Tensor) -> bool:
    """Return whether a tensor has no data because PyTorch is tracing."""
    from torch._subclasses.fake_tensor import FakeTensor
    from torch._subclasses.functional_tensor import FunctionalTensor

    return isinstance(value, FakeTensor | FunctionalTensor)


class _Source(NamedTuple):
    """The origin of an activation in the backward graph: an input, or a saved value."""

    kind: str  # "row", "outer" or "saved"
    number: int


class OuterTensorsError(Exception):
    """The function uses tensors that are not among its arguments."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self.tensors = tensors


def needs_gradient(tensors: Sequence[torch.Tensor]) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _is_differentiable(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


class Plan:
    """The graphs of a function, and the meaning of their inputs and outputs.

    Attributes:
        outer: the outer tensors that the function uses.
        graph: the graph of the forward pass.
        has_gradient: for each carried value and each result, unless it is None.
    """

    def __init__(
        self,
        module: ModuleType,
        fn: Callable[..., object],
        carry: Tree,
        rows: Tree,
        outer: list[torch.Tensor],
        partition_fn: Callable[..., object],
        differentiable: bool,
    ) -> None:
        self.module, self.outer = module, outer
        (carried, self._carry_spec), (row_values, rows_spec) = carry, rows
        self.num_carried = len(carried)
        self._dtypes = [value.dtype for value in (*carried, *row_values)]
        # Gradients flow through carried values even if the initial values need none.
        inputs = [
            *(_like(v, v.shape, differentiable and _is_differentiable(v)) for v in carried),
            *(_like(v, v.shape, differentiable and v.requires_grad) for v in outer),
            *(_like(v, v.shape[1:], differentiable and v.requires_grad) for v in row_values),
        ]

        def function(*values: torch.Tensor) -> list[torch.Tensor]:
            carry_in, given, row = module.split(values, len(carried), len(outer))
            versions = [value._version for value in values]
            with _Tracing(outer, given) as tracing:
                results = fn(
                    pytree.tree_unflatten(list(carry_in), self._carry_spec),
                    pytree.tree_unflatten(list(row), rows_spec),
                )
            if tracing.found:
                raise OuterTensorsError(tracing.found)
            for number, (value, version) in enumerate(zip(values, versions, strict=True)):
                if value._version != version:
                    is_outer = len(carried) <= number < len(carried) + len(outer)
                    _refuse_write(value, "a tensor of outside," if is_outer else "its argument")
            # AOTAutograd leaves results that are arguments, or views of them, out of the graph.
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
        self.backward_graph = backward_graph() if any(self.has_gradient) else None
        self.num_results = len(results)
        self._sources = self._find_sources()

    def is_same(self, other: Plan) -> bool:
        """Return whether another plan computes the same, with the same outer tensors."""
        return self.graph.code == other.graph.code and loop_functions.all_equal(
            [*self.outer, *self._constants()], [*other.outer, *other._constants()]
        )

    def _constants(self) -> list[torch.Tensor]:
        nodes = self.graph.graph.find_nodes(op="get_attr")
        return [getattr(self.graph, node.target) for node in nodes]

    def _flat_results(self, results: object, carry: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        if not isinstance(results, tuple | list) or len(results) != 2:
            raise TypeError(f"{LOOP} must return a pair: the carried values, and a result")
        carried, spec = pytree.tree_flatten(results[0])
        if spec != self._carry_spec:
            raise ValueError(
                f"{LOOP} returns a carry whose structure differs from that of `init`: {spec} "
                "instead of "
                f"{self._carry_spec}"
            )
        loop_functions.check_carried(LOOP, carried, list(carry))
        leaves, self._result_spec = pytree.tree_flatten(results[1])
        self._is_none = [leaf is None for leaf in leaves]
        leaves = [leaf for leaf in leaves if leaf is not None]
        for leaf in leaves:
            if not isinstance(leaf, torch.Tensor) or leaf.device.type != "xla":
                raise TypeError(f"{LOOP} returns {leaf!r} as a result: it must return XLA tensors")
        return [*carried, *leaves]

    def _find_sources(self) -> list[_Source]:
        nodes = list(self.graph.graph.nodes)
        places = {
            node: number
            for number, node in enumerate(node for node in nodes if node.op == "placeholder")
        }
        sources, saved = [], 0
        for node in nodes[-1].args[0][self.num_results :]:
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
        """Return the new carried values, and the results with the inputs of the backward graph."""
        # torch_xla multiplies these by 1, which turns booleans into integers.
        values = [
            value if value.dtype == dtype else value.to(dtype)
            for value, dtype in zip((*carried, *row), self._dtypes, strict=True)
        ]
        carried, row = values[: self.num_carried], values[self.num_carried :]
        outer = [value.detach() for value in self.outer]
        with self.module.xp.Trace("aot_forward"):
            outputs = list(self.graph(*carried, *outer, *row))
        activations = zip(self._sources, outputs[self.num_results :], strict=True)
        saved = [value for source, value in activations if source.kind == "saved"]
        return outputs[: self.num_carried], [*outputs[self.num_carried : self.num_results], *saved]

    def alias_input(
        self, saved: Sequence[torch.Tensor], rows: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Return the stacked activations that differ between iterations."""
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
        """Return the gradients of carried values, with the sums for `outer`, and of the rows.

        Args:
            outer: the outer tensors that the function used.
            carried: the result of this function for the next iteration.
            row: the gradients of results that have a gradient, and the activations of
                `alias_input`.
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
        with self.module.xp.Trace("aot_backward"):
            outputs = list(self.backward_graph(*activations, *tangents, *row[:num_results]))
        of_carried, of_outer, of_row = self.module.split(outputs, self.num_carried, len(self.outer))
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


class _Tracing(TorchFunctionMode):
    """A trace that replaces outer tensors by traced arguments.

    Attributes:
        found: newly found outer tensors, for which the function receives placeholders.
    """

    def __init__(self, outer: Sequence[torch.Tensor], given: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.found: list[torch.Tensor] = []
        self._given = {id(tensor): new for tensor, new in zip(outer, given, strict=True)}

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
        loop_functions.refuse_reads(LOOP, name, args, leaves)
        loop_functions.refuse_statistics(func, args, kwargs, _refuse_write)
        if any(isinstance(value, torch.Tensor) and not is_traced(value) for value in leaves):
            args, kwargs = pytree.tree_map_only(torch.Tensor, self._inside, (args, kwargs))
        return func(*args, **kwargs)

    def _inside(self, tensor: torch.Tensor) -> torch.Tensor:
        if is_traced(tensor) or tensor.device.type != "xla":
            return tensor
        if id(tensor) not in self._given:
            self._given[id(tensor)] = _like(tensor, tensor.shape, tensor.requires_grad)
            self.found.append(tensor)
        return self._given[id(tensor)]


class _WriteError(RuntimeError, AssertionError):
    """A write to a tensor; also an AssertionError, which torch_xla's scan raises."""


def _refuse_write(tensor: torch.Tensor, what: str = "a tensor of outside,") -> None:
    raise _WriteError(
        f"{LOOP} writes to {what} {describe(tensor)}, by an in-place operation; it is traced "
        "once, with FakeTensors, so this would not happen in each iteration: carry the tensor, and "
        "return its new value"
    )
