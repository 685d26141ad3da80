"""Copies that a trace uses in place of views, and containers in place of the arguments' own."""

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_xla_ext.graph.capture_key import flatten
from torch_xla_ext.graph.errors import CaptureError
from torch_xla_ext.graph.results import tensors_in
from torch_xla_ext.graph.tensors import argument_names, shares_memory, view_of

_Copies = Sequence[tuple[str, torch.Tensor, torch.Tensor]]  # name, argument, copy


def refuse_assignments(
    leaves: Sequence[Any], args: tuple, kwargs: dict[str, Any], outputs: Any
) -> None:
    """Refuse tensors that a call put into lists and dictionaries among its arguments.

    Args:
        leaves: the values in the arguments before the call.
        args: the arguments after the call; their lists and dictionaries are the trace's own.
        kwargs: the same, of named arguments.
        outputs: what the call returned.
    """
    after, spec = flatten(args, kwargs)
    known = {id(leaf) for leaf in leaves}
    for output in pytree.tree_leaves(outputs):
        known |= {id(output), *map(id, tensors_in(output))}
    for name, leaf in zip(argument_names(spec), after, strict=True):
        if isinstance(leaf, torch.Tensor) and id(leaf) not in known:
            raise CaptureError(
                f"the function assigns a tensor to {name}, which a replay would not do: return the "
                "tensor, or write into one that is there, with copy_()"
            )


def refuse_lost_gradients(copies: _Copies) -> None:
    """Refuse gradients of views, which the tensors that they are made of would not receive."""
    for name, argument, copy in copies:
        if copy.grad is not None and not argument.is_leaf:
            raise CaptureError(
                f"{name} is a view that was made of a tensor which requires a gradient, and "
                "backward() inside the function would not reach that tensor: create the view "
                "inside, or pass its detach()"
            )


def give_back(
    copies: _Copies, written: Sequence[bool], outputs: Any, made: Sequence[weakref.ref]
) -> Any:
    """Make a traced call one of the arguments themselves.

    Args:
        copies: the arguments and their copies.
        written: whether the function wrote to the copies.
        outputs: what the function returned.
        made: the tensors that it made.

    Returns:
        The outputs, with views of the arguments in place of views of their copies.
    """

    def of_arguments(tensor: torch.Tensor) -> torch.Tensor:
        for _, argument, copy in copies:
            if shares_memory(tensor, copy) and (view := view_of(tensor, copy)) is not None:
                return view(argument)
        return tensor

    for (_, argument, copy), is_written in zip(copies, written, strict=True):
        if is_written:
            with torch.no_grad():
                argument.copy_(copy)
        if argument.is_leaf and copy.grad is not argument.grad:
            argument.grad = copy.grad
    outputs = pytree.tree_map_only(torch.Tensor, of_arguments, outputs)
    # The function may have kept a copy, or views of it.
    kept = [copy for _, _, copy in copies] + [
        tensor for one in made if (tensor := one()) is not None
    ]
    moved = [(tensor, of_arguments(tensor)) for tensor in kept]
    for tensor, view in moved:
        if view is not tensor:
            tensor.data = view.detach()
    return outputs
