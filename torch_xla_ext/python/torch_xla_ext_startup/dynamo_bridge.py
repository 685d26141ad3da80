"""Fixes of torch_xla's Dynamo bridge: arguments and results of ``torch.compile``.

torch_xla 2.8's bridge to Dynamo traces a function once and has to know which tensors the compiled
program returns. Its assumptions fail in these cases:

- Two results with the same value (``return y, y.clone()``): the bridge expects one result, but the
  program returns both, so the later results are shifted by one.
- A tensor whose value is another input's buffer (``state.copy_(x)``, ``x.detach()``): the bridge
  expects a result that the program does not have, and the call fails.
- Under SPMD, an argument that another compiled function reads: the bridge identifies arguments by
  a number that torch_xla stores in the tensor's data, that of the tensor which was last made from
  the data. The program then keeps using the value of its first call.
- Two arguments with the same data (``f(x, x.detach())``): they become one parameter, even in
  later calls where they differ.
- A view (``x.squeeze(1)``) of an argument that is itself a view (``cache[0]``) becomes a constant.
- An argument whose buffer is donated (``_set_buffer_donation``), and which a value that is still
  pending reads: ``y = cache * 2; f(cache); y``. The buffer is gone when that value is computed.

Here every result is a separate tensor that the program computes, an argument is identified by its
data, and a copy is traced in place of the second of two such arguments, and of such a view. What
reads a buffer is computed before it is donated.

If arguments share memory and the function writes to one of them, PyTorch derives all of them from
one argument by their strides and offsets. torch_xla's tensors have none, so the views would be
wrong. Such a function is not compiled: it runs as without torch.compile.
"""

from __future__ import annotations

import collections
import logging
import operator
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any
from unittest import mock

import torch
import torch_xla
from torch.utils.checkpoint import CheckpointPolicy

# docs/debugging.md names it: a program may have configured it.
_log = logging.getLogger("torch_xla_ext.openxla")


def replace_bridge(module: ModuleType) -> None:
    """Changes torch_xla._dynamo.dynamo_bridge, once."""
    if module.Deduper.dedup is _dedup:
        return
    _replace_results(module)
    _replace_arguments(module)


class _SharedMemoryError(Exception):
    """Arguments of a function share memory, and it writes to one."""


def replace_backend(module: ModuleType) -> None:
    """Changes torch._dynamo.backends.torchxla."""
    from torch._dynamo.backends import registry
    from torch._functorch import partitioners
    from torch._functorch._aot_autograd import runtime_wrappers
    from torch.multiprocessing.reductions import StorageWeakRef

    stock, merge = module.openxla, runtime_wrappers.merge_view_inputs
    # Of what the gradient needs, it computes again what is cheap; the default saves all.
    stock.kwargs["partition_fn"] = partitioners.min_cut_rematerialization_partition

    def merge_view_inputs(
        config: object, inputs: Sequence[object], infos: Sequence[Any], **options: object
    ) -> object:
        writes = collections.defaultdict(list)  # by storage
        for value, info in zip(inputs, infos, strict=True):
            if isinstance(value, torch.Tensor) and value.device.type == "xla":
                writes[StorageWeakRef(value.untyped_storage())].append(info.mutates_data)
        if any(len(written) > 1 and any(written) for written in writes.values()):
            raise _SharedMemoryError
        return merge(config, inputs, infos, **options)

    def openxla(graph: torch.fx.GraphModule, inputs: Sequence[object], **options: object) -> object:
        # torch wraps it once more in each compilation: RecursionError after a few hundred.
        stock.kwargs.pop("bw_compiler", None)
        with (
            mock.patch.object(runtime_wrappers, "merge_view_inputs", merge_view_inputs),
            mock.patch.object(partitioners, "has_recomputable_rng_ops", _save_random_numbers),
        ):
            try:
                return stock(graph, inputs, **options)
            except _SharedMemoryError:
                _log.warning(
                    "a function is not compiled, but run lazily: it writes to one of its arguments "
                    "that share memory; pass a clone() of the others, or make the views inside"
                )
                return graph

    openxla._tags = stock._tags  # torch._dynamo.list_backends() reads them
    module.openxla = openxla
    registry._COMPILER_FNS["openxla"] = openxla
    _number_devices()
    _run_loops_lazily()


def _number_devices() -> None:
    """Gives fake tensors on "xla" the number of their device, as PyTorch does for CUDA's.

    Otherwise ``x + torch.arange(3, device="xla")`` is refused in a compiled function, since its
    operands are on "xla:0" and "xla".
    """
    from torch._subclasses.fake_tensor import FakeTensor

    stock = FakeTensor.__new__

    def new(
        cls: type,
        mode: object,
        elem: torch.Tensor,
        device: torch.device | str,
        *args: object,
        **options: object,
    ) -> FakeTensor:
        if torch.device(device) == torch.device("xla"):
            device = torch_xla.device()
        return stock(cls, mode, elem, device, *args, **options)

    FakeTensor.__new__ = staticmethod(new)


def _run_loops_lazily() -> None:
    """Keeps Dynamo out of torch_xla's scan, which traces its function itself."""
    from torch_xla.experimental import scan

    stock = scan.scan
    disabled = torch.compiler.disable(stock)
    for module in list(sys.modules.values()):
        if vars(module).get("scan") is stock:
            module.scan = disabled


def _save_random_numbers(joint_graph: torch.fx.GraphModule) -> bool:
    """Whether random numbers have to be drawn a second time with the same values: never.

    PyTorch does so, in what a checkpoint computes again, by an operator that XLA tensors lack.
    """
    for node in joint_graph.graph.nodes:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            elements = [user for user in node.users if user.target is operator.getitem]
            for saved in (node, *elements):
                saved.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    return False


def _replace_arguments(module: ModuleType) -> None:
    stock_extract, stock_match = module.extract_graph_helper, module.GraphInputMatcher.__init__
    stock_inputs = module.GraphInputMatcher.__call__
    # The positions of the compiled function's arguments, one dict for each nested compilation.
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
        is_donated = torch_xla._XLAC._get_buffer_donation
        self.donated = [i for i, value in enumerate(values) if is_donated(value)]

    def __call__(self: object, arguments: Sequence[torch.Tensor]) -> list[torch.Tensor]:  # noqa: N807
        inputs = stock_inputs(self, arguments)
        donated = [inputs[i] for i in self.donated]
        if donated and torch_xla._XLAC._xla_is_read_by_pending_values(donated):
            torch_xla.sync(reset_scope=False)
        return inputs

    module.extract_graph_helper = extract_graph_helper
    module.GraphInputMatcher.__init__ = __init__
    module.GraphInputMatcher.__call__ = __call__


def _address(tensor: torch.Tensor) -> int:
    """The address of the tensor's data on the device."""
    return torch_xla._XLAC._xla_capture_data_address(tensor)


def _with_own_data(arguments: Sequence[object]) -> tuple[object, ...]:
    """The arguments, copies in place of tensors whose data one before has, and of views.

    A view has data besides those of its base, of which a view of it in the function is made.
    """
    known: set[int] = set()
    own = list(arguments)
    for i, argument in enumerate(arguments):
        if isinstance(argument, torch.Tensor) and argument.device.type == "xla":
            base = torch_xla._XLAC._xla_capture_base(argument)
            if _address(argument) in known or _address(argument) != _address(base):
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
    written to and donated apart. A clone of what is computed anyway costs no operation. Indices,
    such as max_pool's, have 32 bits in XLA: a sum has those of their dtype.
    """
    unchanged = {id(t): t for t, updated in zip(inputs, is_updated, strict=True) if not updated}
    made: dict[int, torch.Tensor] = dict(unchanged)
    for output in outputs:
        if id(output) not in made:
            is_index = output.dtype == torch.int64
            made[id(output)] = output + 0 if is_index else torch.clone(output)
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
