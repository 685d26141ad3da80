"""Make torch_xla's scan_layers correct for layers that compute different things.

torch_xla runs the first layer's program for all layers, each with its own parameters. Here, layers
whose attributes differ are traced, and run one by one if their programs differ.
"""

from __future__ import annotations

import functools
import warnings
import weakref
from collections.abc import Callable, Iterable

import torch
from torch.utils import _pytree as pytree

# Results of _difference by the first layer, and by the set of layers and the inputs' sizes.
_differences: weakref.WeakKeyDictionary[torch.nn.Module, dict[object, str | None]] = (
    weakref.WeakKeyDictionary()
)
_OF_TENSORS = ("_parameters", "_buffers")
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_Attributes = dict[tuple[str, str], object]


def scan_layers_of_any_kind(original: Callable[..., object]) -> Callable[..., object]:
    """Replace torch_xla.experimental.scan_layers.scan_layers."""

    @functools.wraps(original)
    def scan_layers(
        layers: Iterable[torch.nn.Module], input_data: object, *args: object, **options: object
    ) -> object:
        layers = list(layers)
        if len(layers) > 1 and (difference := _difference(layers, input_data)) is not None:
            warnings.warn(
                f"scan_layers: {difference}: the layers run one by one, so that the program grows "
                "with their number",
                stacklevel=2,
            )
            for layer in layers:
                is_tuple = isinstance(input_data, tuple)
                input_data = layer(*input_data) if is_tuple else layer(input_data)
            return input_data
        return original(layers, input_data, *args, **options)

    return torch._disable_dynamo(scan_layers)


def _difference(layers: list[torch.nn.Module], input_data: object) -> str | None:
    """Return how a layer differs from the first; None if all compute the same."""
    attributes = [_attributes(layer) for layer in layers]
    if all(others == attributes[0] for others in attributes):
        return None
    leaves = pytree.tree_leaves(input_data)
    key = (
        tuple(tuple(each.items()) for each in attributes),
        tuple((leaf.shape, leaf.dtype) for leaf in leaves if isinstance(leaf, torch.Tensor)),
        torch.is_grad_enabled(),
    )
    known = _differences.setdefault(layers[0], {})
    if key not in known:
        known[key] = _traced_difference(layers, attributes, input_data)
    return known[key]


def _traced_difference(
    layers: list[torch.nn.Module], attributes: list[_Attributes], input_data: object
) -> str | None:
    shapes = [_shapes(layer) for layer in layers]
    if any(
        {k: v[0] for k, v in each.items()} != {k: v[0] for k, v in shapes[0].items()}
        for each in shapes
    ):
        return None  # torch_xla raises an error
    first: _Program | None = None
    for number, layer in enumerate(layers[1:], start=1):
        if attributes[number] == attributes[0]:
            continue
        difference = _first_difference(number, attributes[0], attributes[number])
        try:
            first = first or _Program(layers[0], input_data)
            if shapes[number] != shapes[0] or not first.is_same(_Program(layer, input_data)):
                return difference
        except (AssertionError, RuntimeError, TypeError, ValueError):
            return difference
    return None


def _first_difference(number: int, first: _Attributes, other: _Attributes) -> str:
    for key in first.keys() | other.keys():
        if key not in first or key not in other or first[key] != other[key]:
            name = ".".join(filter(None, key))
            break
    return f"layer {number} differs from the first one, in `{name}`"


def _shapes(layer: torch.nn.Module) -> dict[str, tuple[torch.Size, torch.dtype]]:
    tensors = [*layer.named_parameters(), *layer.named_buffers()]
    return {name: (tensor.shape, tensor.dtype) for name, tensor in tensors}


def _attributes(layer: torch.nn.Module) -> _Attributes:
    """Return a layer's attributes, without the values of its parameters and buffers."""
    found: _Attributes = {}
    for name, module in layer.named_modules():
        found[name, "type"] = type(module)
        for attribute, value in vars(module).items():
            if attribute in _OF_TENSORS:
                found[name, attribute] = tuple(
                    (key, None if tensor is None else (tensor.dtype, tensor.shape))
                    for key, tensor in value.items()
                )
            elif attribute == "_modules":
                found[name, attribute] = tuple(value)
            elif not (isinstance(value, dict) and not value):
                found[name, attribute] = _comparable(value)
    return found


def _comparable(value: object) -> object:
    if isinstance(value, _PLAIN):
        return type(value), value
    if isinstance(value, tuple | list):
        return type(value), tuple(map(_comparable, value))
    if isinstance(value, set | frozenset):
        return type(value), frozenset(map(_comparable, value))
    if isinstance(value, dict):
        return type(value), tuple((_comparable(k), _comparable(v)) for k, v in value.items())
    if isinstance(value, torch.Tensor):
        return torch.Tensor, id(value), value._version
    return object, id(value)


class _Program:
    """The computation of a layer."""

    def __init__(self, layer: torch.nn.Module, input_data: object) -> None:
        from torch_xla.experimental import scan as scan_module

        from torch_xla_ext_startup.upstream_fixes.scan import trace

        def run(carry: object, tensors: object) -> tuple[object, None]:
            return torch.func.functional_call(layer, tensors, carry, strict=True), None

        tensors = dict(layer.named_parameters()), dict(layer.named_buffers())
        with torch.no_grad():
            rows = pytree.tree_map(lambda tensor: tensor[None], tensors)
            self._plan = trace(scan_module, run, input_data, rows)

    def is_same(self, other: _Program) -> bool:
        return self._plan.is_same(other._plan)
