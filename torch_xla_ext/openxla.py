"""The arguments and results of ``torch.compile(backend="openxla")``, each where it belongs.

torch_xla 2.8's bridge to Dynamo traces a function once, and has to know which tensors the compiled
program returns. It takes two tensors with one value for one result, where the program returns both
(``return y, y.clone()``): the results behind them are shifted by one. And it expects a result for a
tensor whose value is another input's buffer (``state.copy_(x)``, ``x.detach()``), where the program
has none: a call fails. Here every result is a tensor of its own, which the program computes.

It finds out which argument a parameter of the program is by a number that torch_xla notes in a
tensor's data: that of the tensor which was made of the data last. Under SPMD this is not the
argument once another function has been compiled that reads it, and the program would go on with the
value of its first call. Here the data itself says which argument it is of. Two arguments with one
data (``f(x, x.detach())``) were one parameter, also in calls where they have two: here the function
is traced with a copy of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import torch
import torch_xla


def replace(module: ModuleType) -> None:
    """Changes torch_xla._dynamo.dynamo_bridge, once."""
    if module.Deduper.dedup is _dedup:
        return
    _replace_results(module)
    _replace_arguments(module)


def _replace_arguments(module: ModuleType) -> None:
    stock_extract, stock_match = module.extract_graph_helper, module.GraphInputMatcher.__init__
    # Of the arguments' data in the function that is compiled: compilations can be nested.
    positions: list[dict[int, int]] = []

    def extract_graph_helper(xla_model: torch.fx.GraphModule, *others: object) -> object:
        torch_xla.sync(reset_scope=False)  # as the stock function begins
        arguments = xla_model.xla_args
        xla_model.xla_args = _with_own_data(arguments)
        tensors, _ = module._split_xla_args_tensor_sym_constant(xla_model.xla_args)
        on_device = [(i, t) for i, t in enumerate(tensors) if t.device.type == "xla"]
        positions.append({_address(tensor): i for i, tensor in on_device})
        try:
            return stock_extract(xla_model, *others)
        finally:
            positions.pop()
            xla_model.xla_args = arguments

    def __init__(  # noqa: N807
        self: object,
        argument_of_id: dict[int, int],
        ids: Sequence[int],
        values: Sequence[torch.Tensor],
        argument_ids: set[int],
    ) -> None:
        arguments = [positions[-1].get(_address(value)) for value in values]
        # Keys besides torch_xla's numbers.
        found = {("argument", argument): argument for argument in arguments if argument is not None}
        own = [i if a is None else ("argument", a) for i, a in zip(ids, arguments, strict=True)]
        stock_match(self, argument_of_id | found, own, values, argument_ids | found.keys())

    module.extract_graph_helper = extract_graph_helper
    module.GraphInputMatcher.__init__ = __init__


def _address(tensor: torch.Tensor) -> int:
    """Of the tensor's data on the device."""
    return torch_xla._XLAC._xla_capture_data_address(tensor)


def _with_own_data(arguments: Sequence[object]) -> tuple[object, ...]:
    """The arguments, copies in place of tensors whose data one before has."""
    known: set[int] = set()
    own = list(arguments)
    for i, argument in enumerate(arguments):
        if isinstance(argument, torch.Tensor) and argument.device.type == "xla":
            if _address(argument) in known:
                with torch.no_grad():
                    own[i] = argument.clone()
            known.add(_address(argument))
    torch_xla.sync(reset_scope=False)
    return tuple(own)


def _replace_results(module: ModuleType) -> None:
    module.Deduper.dedup = _dedup
    stock = module.SpecialReturnHandler.__init__

    def __init__(  # noqa: N807
        self: object,
        inputs: Sequence[torch.Tensor],
        outputs: list[torch.Tensor],
        is_updated: Sequence[bool],
        constants: list[tuple[int, float]],
    ) -> None:
        # The caller goes on with its list: it hashes and compiles what is there.
        outputs[:] = computed(inputs, outputs, is_updated)
        stock(self, inputs, outputs, is_updated, constants)
        # Only their positions are needed from here on, and they would keep buffers alive.
        self.trace_inputs = self.trace_outputs = self.deduped_trace_outputs = None

    module.SpecialReturnHandler.__init__ = __init__


def computed(
    inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], is_updated: Sequence[bool]
) -> list[torch.Tensor]:
    """The outputs, each that is not an unchanged input as a clone, which a program returns.

    torch_xla computes a clone also if its value is an input's buffer, so that the two can be
    written to and donated apart. A clone of what is computed anyway costs no operation.
    """
    unchanged = {id(t): t for t, updated in zip(inputs, is_updated, strict=True) if not updated}
    made: dict[int, torch.Tensor] = dict(unchanged)
    for output in outputs:
        if id(output) not in made:
            made[id(output)] = torch.clone(output)
    return [made[id(output)] for output in outputs]


def _dedup(self: object, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Deduper.dedup: as the program does, which returns each tensor once."""
    first: dict[int, int] = {}
    unique = []
    self.permute_for_orig = []
    for tensor in tensors:
        if id(tensor) not in first:
            first[id(tensor)] = len(unique)
            unique.append(tensor)
        self.permute_for_orig.append(first[id(tensor)])
    return unique
