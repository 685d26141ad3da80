"""Compile a function for its arguments' strides, for ``torch.compile(backend="openxla")``.

XLA tensors report row-major strides, and Dynamo relies on them. But an argument may be a view that
has other strides in PyTorch. The strides decide whether contiguous() and reshape() copy, or return
a view that shares writes. So a function is compiled once more for such arguments.
"""

import logging
from collections.abc import Callable, Sequence

import torch
import torch_xla
from torch.fx.experimental import symbolic_shapes

_XLAC = torch_xla._XLAC
_log = logging.getLogger("torch_xla_ext.openxla")
_Strides = tuple[tuple[int, ...] | None, ...]  # of each argument, None if it is row-major


def compiled_by_strides(
    compile_for: Callable[[Sequence[object]], Callable[..., object]],
    graph: torch.fx.GraphModule,
    inputs: Sequence[object],
) -> Callable[..., object]:
    """Return the compiled function of a graph from Dynamo.

    Args:
        compile_for: compiles the graph for fake arguments.
        graph: the graph, which runs lazily if it cannot be compiled for the arguments' strides.
        inputs: the first arguments.
    """
    row_major = compile_for(inputs)
    placeholders = graph.graph.find_nodes(op="placeholder")
    fakes = [node.meta.get("example_value") for node in placeholders]  # Dynamo's
    others: dict[_Strides, Callable[..., object]] = {}

    def run(*arguments: object) -> object:
        found = _XLAC._xla_strides(arguments)
        if found is None:
            return row_major(*arguments)
        strides = tuple(None if own is None else tuple(own) for own in found)
        if strides not in others:
            others[strides] = _compiled(compile_for, graph, fakes, strides)
        return others[strides](*arguments)

    return run


def _compiled(
    compile_for: Callable[[Sequence[object]], Callable[..., object]],
    graph: torch.fx.GraphModule,
    fakes: Sequence[object],
    strides: _Strides,
) -> Callable[..., object]:
    tensors = [value for value in fakes if isinstance(value, torch.Tensor)]
    is_static = not any(fake is None or symbolic_shapes.has_free_symbols(fake) for fake in fakes)
    if not is_static or len({value.untyped_storage()._cdata for value in tensors}) < len(tensors):
        _log.warning(
            "a function is not compiled, but runs lazily: an argument is a view that is not "
            "row-major in PyTorch, and %s; pass the view's contiguous()",
            "arguments share memory" if is_static else "shapes are dynamic",
        )
        return graph
    return compile_for(
        [
            value if own is None else _with_strides(value, own)
            for value, own in zip(fakes, strides, strict=True)
        ]
    )


def _with_strides(fake: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    with fake.fake_mode:
        return torch.empty_strided(
            fake.shape,
            strides,
            dtype=fake.dtype,
            device=fake.device,
            requires_grad=fake.requires_grad,
        )
