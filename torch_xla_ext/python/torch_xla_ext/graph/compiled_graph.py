"""Run a graph of ``torch.compile(backend="openxla")`` as one program, like a captured step.

torch_xla 2.8's own bridge to Dynamo traces a graph once. But each run has a Python loop over its
arguments, and new values of arguments that the graph writes to are in other buffers. Here the
program writes the value into the argument's own buffer, which csrc/graph/program.h copies first if
something else reads it.

CUDA tensors are used in place, and so are CPU tensors if XLA's device is the CPU
(shared_memory.py).

Every result is a separate tensor. Arguments are identified by their data. An argument that is a
view, or shares another argument's data, is traced as a copy, so that a later call may pass other
tensors.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from numbers import Number

import torch
import torch_xla

from torch_xla_ext.graph.shared_memory import SharedMemory
from torch_xla_ext.graph.tensors import clone_of, sharding_of, shardings_of
from torch_xla_ext.graph.traced_program import (
    InPlaceProgram,
    Source,
    Trace,
    keep_shardings,
    same_seed,
)
from torch_xla_ext.graph.traced_tensors import running, tracing

_XLAC = torch_xla._XLAC


def are_supported(arguments: Sequence[object]) -> bool:
    """Return whether all tensors are XLA tensors, with functionalization on."""
    return _XLAC._xla_capture_split(tuple(arguments))[-1]


class CompiledGraph:
    """The graph's programs: one for each set of numbers, sharding of its tensors and precision.

    Dynamo does not know torch_xla's precision of products, which may change between two calls.

    Args:
        graph: the graph.
        memory: the memory of its tensors, if they are PyTorch's own.
    """

    def __init__(self, graph: torch.fx.GraphModule, memory: SharedMemory | None = None) -> None:
        self._graph, self._memory = graph, memory
        self._returns_one = not isinstance(_output(graph), (list, tuple))
        self._programs: dict[object, _Program] = {}

    def run(self, *arguments: object) -> object:
        """Return the graph's result, or the list of its results.

        Returns NotImplemented if the tensors should be, but are not all XLA tensors with
        functionalization.
        """
        tensors, numbers, are_on_xla = _XLAC._xla_capture_split(arguments)
        if not are_on_xla and self._memory is None:
            return NotImplemented
        program = self._program(arguments, tensors, numbers)
        if self._memory is not None:  # a trace has XLA tensors of its own
            results = program.run(tensors)
        else:
            with running(tensors):
                results = program.run(tensors)
        return results[0] if self._returns_one else results

    def _program(
        self, arguments: Sequence[object], tensors: list[torch.Tensor], numbers: list[object]
    ) -> _Program:
        key = (*numbers, *shardings_of(tensors), _XLAC._xla_precision_settings())
        program = self._programs.get(key)
        if program is None and self._memory is not None:
            program = self._programs[key] = _trace(self._graph, arguments, self._memory)
        elif program is None:
            with tracing(tensors):
                program = self._programs.get(key) or _trace(self._graph, arguments, None)
                self._programs[key] = program
        return program


def _write_to_donors_themselves(graph: torch.fx.GraphModule) -> None:
    """Make the graph use a donated tensor itself instead of the donation operator's result.

    PyTorch regards that result as a new tensor, and would copy the argument's new value to it.
    """
    donor = torch.ops.xla.dynamo_set_buffer_donor_.default
    for node in graph.graph.find_nodes(op="call_function", target=donor):
        if node.users:
            node.replace_all_uses_with(node.args[0])
            graph.recompile()


@dataclasses.dataclass(frozen=True)
class _Argument:
    """A result that is one of the tensor arguments, by its index."""

    index: int


@dataclasses.dataclass(frozen=True)
class _New:
    """A result that the program computes."""

    index: int


_Result = _Argument | _New | Number | None


@dataclasses.dataclass(frozen=True)
class _Program:
    """One program of a graph.

    Args:
        program: one of csrc/graph/program.h or shared_memory.py; None if there is nothing to
            compute.
        num_tensors: how many arguments are tensors.
        results: what the graph returns.
        written: the tensor arguments into whose buffers the program writes.
        copied_back: the other tensor arguments that are written to; they were traced as copies.
        donated: other tensor arguments whose buffers the program takes, because the user has
            donated them.
        memory: the arguments' memory, if they are PyTorch's own tensors.
    """

    program: object | None
    num_tensors: int
    results: list[_Result]
    written: set[int]
    copied_back: dict[int, _New]
    donated: list[int]
    memory: SharedMemory | None

    def run(self, tensors: list[torch.Tensor]) -> list[object]:
        new: list[torch.Tensor] = []
        if self.program is not None:
            self._keep_pending_values([tensors[i] for i in self.donated])
            with torch.no_grad():
                computed = self.program.run_unless_copied(tensors)
                new = self._run_with_copies(tensors) if computed is None else computed
                for i, result in self.copied_back.items():
                    tensors[i].copy_(new[result.index])
        return list(map([*tensors, *self._constants, *new].__getitem__, self._indices))

    def _run_with_copies(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        copies = {i: self._copy(tensors[i]) for i in self.program.arguments_to_copy(tensors)}
        new = self.program.run([copies.get(i, tensor) for i, tensor in enumerate(tensors)])
        for i in self.written.intersection(copies):
            tensors[i].copy_(copies[i])
        return new

    @functools.cached_property
    def _constants(self) -> list[object]:
        """The graph's results that are neither arguments nor computed."""
        return [result for result in self.results if not isinstance(result, (_Argument, _New))]

    @functools.cached_property
    def _indices(self) -> list[int]:
        """The indices of the graph's results among the arguments, constants and new tensors."""
        constants = itertools.count(self.num_tensors)
        first_new = self.num_tensors + len(self._constants)
        return [
            result.index + (first_new if isinstance(result, _New) else 0)
            if isinstance(result, (_Argument, _New))
            else next(constants)
            for result in self.results
        ]

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.memory is not None:
            return self.memory.copy(tensor)
        return clone_of(tensor, sharding_of(tensor))

    @staticmethod
    def _keep_pending_values(donated: list[torch.Tensor]) -> None:
        """Compute `donated`, and pending values that read them, before the program takes them."""
        if not donated:
            return
        _XLAC._xla_sync_multi(donated, [], True, True)
        if _XLAC._xla_is_read_by_pending_values(donated):
            torch_xla.sync(reset_scope=False)


def _trace(
    graph: torch.fx.GraphModule, arguments: Sequence[object], memory: SharedMemory | None
) -> _Program:
    _write_to_donors_themselves(graph)
    if memory is not None:
        arguments = memory.views(arguments)
    with same_seed():
        own = _with_own_data(arguments)
    own_tensors = [argument for argument in own if isinstance(argument, torch.Tensor)]
    tensors = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
    trace = Trace(own_tensors)
    trace.begin()
    try:
        with torch.no_grad(), torch_xla.experimental.eager_mode_context(False):
            outputs = graph(*own)
            outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
            is_passed = [a is b for a, b in zip(own_tensors, tensors, strict=True)]
            compilation = _Compilation(own_tensors, trace, memory)
            return compilation.run(outputs, _result_dtypes(graph), is_passed)
    finally:
        trace.undo(own_tensors)
        trace.end()


def _output(graph: torch.fx.GraphModule) -> object:
    (output,) = graph.graph.find_nodes(op="output")
    return output.args[0]


def _result_dtypes(graph: torch.fx.GraphModule) -> list[torch.dtype | None]:
    """Return PyTorch's dtypes of the graph's results; None for a result that is not a tensor."""
    nodes = _output(graph)
    nodes = nodes if isinstance(nodes, (list, tuple)) else [nodes]
    described = [getattr(node, "meta", {}).get("val") for node in nodes]
    return [value.dtype if isinstance(value, torch.Tensor) else None for value in described]


def _with_own_data(arguments: Sequence[object]) -> list[object]:
    """Return the arguments; views, and tensors that share data with earlier ones, are copied."""
    # Before the step ends: XLA may choose another sharding for a view that it computes again.
    shardings = {
        i: sharding_of(value)
        for i, value in enumerate(arguments)
        if isinstance(value, torch.Tensor)
    }
    torch_xla.sync(reset_scope=False)
    known: set[int] = set()
    own = list(arguments)
    for i, argument in enumerate(arguments):
        if isinstance(argument, torch.Tensor):
            storage = _XLAC._xla_capture_storage(argument)
            if storage in known or _XLAC._xla_capture_has_own_values(argument):
                with torch.no_grad():
                    own[i] = clone_of(argument, shardings[i])
            known.add(storage)
    torch_xla.sync(reset_scope=False)
    return own


class _Compilation:
    """A compilation of a graph's results and of its writes to tensor arguments."""

    def __init__(
        self, tensors: list[torch.Tensor], trace: Trace, memory: SharedMemory | None
    ) -> None:
        self._tensors, self._trace, self._memory = tensors, trace, memory
        self._saved = trace.saved
        self._new: list[torch.Tensor] = []

    def run(
        self, outputs: list[object], dtypes: list[torch.dtype | None], is_passed: list[bool]
    ) -> _Program:
        """Compile the program.

        Args:
            outputs: the graph's results.
            dtypes: the outputs' dtypes in PyTorch.
            is_passed: for each tensor argument, whether it is not a copy.
        """
        changed = [i for i, tensor in enumerate(self._tensors) if self._saved.is_written(tensor)]
        written = [i for i in changed if is_passed[i]]
        keep_shardings([self._tensors[i] for i in written], self._saved)
        if self._memory is not None:
            for tensor in self._tensors:  # PyTorch's memory is not XLA's to take
                _XLAC._set_buffer_donation(tensor, False)
        results = self._results_of(outputs, dtypes)
        copied_back = {
            i: self._add(_XLAC._xla_capture_base(self._tensors[i]))
            for i in changed
            if not is_passed[i]
        }
        donated = [
            i
            for i, tensor in enumerate(self._tensors)
            if i not in written and _XLAC._get_buffer_donation(tensor)
        ]
        program = self._compile(written) if written or self._new else None
        if program is not None and self._memory is not None:
            program = self._memory.program(program)
        num_tensors = len(self._tensors)
        return _Program(
            program, num_tensors, results, set(written), copied_back, donated, self._memory
        )

    def _add(self, tensor: torch.Tensor) -> _New:
        self._new.append(tensor)
        return _New(len(self._new) - 1)

    def _results_of(self, outputs: list[object], dtypes: list[torch.dtype | None]) -> list[_Result]:
        """Return the outputs; each that is not an argument becomes a separate value."""
        made: dict[int, _Argument | _New] = {
            id(tensor): _Argument(i) for i, tensor in enumerate(self._tensors)
        }
        for output, dtype in zip(outputs, dtypes, strict=True):
            if isinstance(output, torch.Tensor) and id(output) not in made:
                made[id(output)] = self._add(self._own_value(output, dtype or output.dtype))
        return [made[id(o)] if isinstance(o, torch.Tensor) else o for o in outputs]

    def _own_value(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return a copy, so that the program returns a separate buffer of XLA's type for `dtype`.

        Without it, two results could share a buffer, but be written to and donated separately. A
        copy of a computed value costs no operation. XLA's type may differ from PyTorch's: indices,
        such as max_pool's, have 32 bits, and a sum of a float32 tensor and a float64 one without
        dimensions has 64. torch_xla converts those when they are read, but not in PyTorch's own
        memory, and XLA drops a conversion to the type that it assumes.
        """
        if dtype == torch.int64:
            return tensor + 0  # of 64 bits
        if dtype.is_floating_point and self._memory is not None:
            other = torch.float64 if dtype == torch.float32 else torch.float32
            return tensor.to(other).to(dtype)
        return tensor.clone() if dtype == tensor.dtype else tensor.to(dtype)

    def _compile(self, written: list[int]) -> object:
        lowered = InPlaceProgram([self._tensors[i] for i in written], self._new, self._saved)
        by_address = {self._saved.data_address(t): i for i, t in enumerate(self._tensors)}

        def source_of(address: int) -> tuple[Source, int] | None:
            if address not in by_address:
                return None
            i = by_address[address]
            return (Source.ARGUMENT if i in written else Source.OWN_VALUES), i

        sources = self._trace.sources(lowered, source_of)
        names = {
            Source.ARGUMENT: "argument",
            Source.OWN_VALUES: "argument",
            Source.CONSTANT: "constant",
        }
        return _XLAC._XlaCapturedProgram(
            lowered.compile(),
            "a function of torch.compile",
            sources,
            [f"its {names.get(kind, 'seed')} {index}" for kind, index in sources],
            [],
            [
                parameter
                for parameter, (kind, _) in zip(lowered.parameters, sources, strict=True)
                if kind == Source.CONSTANT
            ],
            lowered.parameter_indices,
            self._new,
            argument_state=[-1] * len(self._tensors),
            replaced_gradients=[],
            # If the program draws random numbers, it ends the step, so that the next one draws
            # others.
            ends_step=any(kind == Source.SEED for kind, _ in sources),
        )
