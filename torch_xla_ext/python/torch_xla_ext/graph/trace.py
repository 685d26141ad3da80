"""Trace and compile a step, and undo the effects of tracing on tensors."""

import contextlib
import os
import traceback
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch_xla
from torch.utils import _pytree as pytree

from torch_xla_ext.graph import watch
from torch_xla_ext.graph.argument_copies import give_back, refuse_assignments, refuse_lost_gradients
from torch_xla_ext.graph.bytecode import finds_by_strings, names_of, strings_of
from torch_xla_ext.graph.errors import CaptureError, ReadError
from torch_xla_ext.graph.guards import is_library
from torch_xla_ext.graph.parallel_compilation import Compiler
from torch_xla_ext.graph.python_state import PythonState
from torch_xla_ext.graph.replay import Replay
from torch_xla_ext.graph.result_plan import Known, Plans
from torch_xla_ext.graph.results import Reference, Result
from torch_xla_ext.graph.tensors import argument_names, copy_of
from torch_xla_ext.graph.trace_fingerprint import TraceFingerprint
from torch_xla_ext.graph.traced_program import InPlaceProgram, Source, Trace, keep_shardings

_XLAC = torch_xla._XLAC
_ENVIRONMENT = {"environ", "getenv"}


class NotRepeatableError(Exception):
    """The function changed `name`, which a replay would not repeat; it returned `outputs`."""

    def __init__(self, name: str, outputs: Any, remedy: str | None = None) -> None:
        super().__init__(name)
        self.name, self.outputs, self.remedy = name, outputs, remedy


class DisturbedError(NotRepeatableError):
    """An event that capture refuses happened during the trace, perhaps in another thread."""


class Tracer:
    """One trace of `function`.

    Args:
        leaves: the flattened arguments.
        views: indices of the arguments that are views and share memory with no other argument.
            Their offsets in the base may differ at each call, so the step receives copies. A copy
            that it writes to is copied back.
        check_python: whether to record the Python objects that the function reads, and refuse
            changes to them.
        again: the fingerprint of an earlier trace, with which this one is compared. Numbers from
            the host are then constants, and process-wide counters are not checked.
        is_verified: whether the fingerprint will be compared with that of a later trace.
        as_compiling: whether torch.compiler.is_compiling() is true for the function.
        compiler: compiles the program while the caller continues; without it, `run` does.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        leaves: list[Any],
        spec: pytree.TreeSpec,
        views: list[int],
        check_python: bool,
        again: TraceFingerprint | None,
        is_verified: bool,
        as_compiling: bool,
        compiler: Compiler | None = None,
    ) -> None:
        self._check_python, self._again = check_python, again
        self._is_verified, self._compiler = is_verified, compiler
        self._as_compiling = as_compiling
        self._function, self._leaves, self._spec, self._views = function, list(leaves), spec, views
        self._known: list[Known] = []
        self._by_id: dict[int, int] = {}
        self._by_storage: dict[int, list[int]] = {}
        self._gradients: dict[int, torch.Tensor | None] = {}
        self._calls = watch.Calls()
        self._copies: dict[int, torch.Tensor] = {}  # of arguments that are views, by argument

    # The tensors that the step can use.

    def _add(self, tensor: torch.Tensor, name: str, **kwargs: Any) -> None:
        if id(tensor) in self._by_id:
            return
        if not _XLAC._xla_capture_is_supported(tensor):
            raise CaptureError(
                f"{name} is not a tensor under functionalization: unset "
                "XLA_DISABLE_FUNCTIONALIZATION"
            )
        number = len(self._known)
        self._by_id[id(tensor)] = number
        self._known.append(Known(name, tensor, **kwargs))
        self._by_storage.setdefault(_XLAC._xla_capture_storage(tensor), []).append(number)
        if tensor.is_leaf and tensor.requires_grad:
            self._gradients[number] = tensor.grad
            if tensor.grad is not None:
                self._add(tensor.grad, f"{name}.grad", gradient_of=number)

    def _see(self, tensor: torch.Tensor) -> None:
        """Record a tensor before torch uses it in the trace."""
        if id(tensor) in self._by_id or not _XLAC._xla_capture_is_supported(tensor):
            return
        storage = _XLAC._xla_capture_storage(tensor)
        if storage in self._by_storage or not self._saved.add(tensor):
            return
        self._add(tensor, f"a tensor {watch.describe(tensor)} that no name leads to")

    def _prepare(self) -> None:
        arguments = [leaf for leaf in self._leaves if isinstance(leaf, torch.Tensor)]
        paths = argument_names(self._spec)
        named = [
            (name, leaf)
            for name, leaf in zip(paths, self._leaves, strict=True)
            if isinstance(leaf, torch.Tensor)
        ]
        self._state = PythonState(
            {"the function": self._function}
            | {
                name: leaf
                for name, leaf in zip(paths, self._leaves, strict=True)
                if not isinstance(leaf, torch.Tensor)
            }
            if self._check_python
            else {}
        )
        self._existing = self._state.addresses()
        state_storages = {
            _XLAC._xla_capture_storage(tensor): name for name, tensor in self._state.tensors.items()
        }
        for number in self._views:
            argument = arguments[number]
            state = state_storages.get(_XLAC._xla_capture_storage(argument))
            if state is not None:
                raise CaptureError(
                    f"{named[number][0]} is a view of {state}, which the function can also "
                    "use directly: pass a clone() of it, or create the view inside"
                )
            self._copies[number] = copy = copy_of(argument)
            if argument.is_leaf:
                copy.grad = argument.grad
        for number, (name, leaf) in enumerate(named):
            self._add(self._copies.get(number, leaf), name, argument=number)
        for name, tensor in list(self._state.tensors.items()):
            self._add(tensor, name)
        try:
            self._tensor_trace = Trace([known.tensor for known in self._known])
        except RuntimeError as error:
            if "frozen storage" not in str(error):
                raise
            raise CaptureError(
                "the function uses a tensor whose memory set_() has replaced, as registering a "
                "parametrization does: register it before the module is moved to the device"
            ) from error
        self._saved = self._tensor_trace.saved

    # The trace.

    def _call(self) -> Any:
        leaves = list(self._leaves)
        positions = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        for number, copy in self._copies.items():
            leaves[positions[number]] = copy
        args, kwargs = pytree.tree_unflatten(leaves, self._spec)
        executed = watch.ExecutedCode()
        # Watching which code runs is slow, and only the check of Python needs it.
        seen = executed.in_this_thread if self._check_python else contextlib.nullcontext

        def watched() -> watch.WatchedTensors:
            return watch.WatchedTensors(self._see, self._name_of, self._calls)

        outputs = None
        with (
            self._reads(executed),
            self._other_threads(lambda: outputs),
            torch_xla.experimental.eager_mode_context(False),
            watch.syncs_refused(),
            watch.answers_as_compiling() if self._as_compiling else contextlib.nullcontext(),
            contextlib.nullcontext() if self._again else watch.host_random_numbers_refused(),
            contextlib.nullcontext() if self._again else watch.transfers_refused(self._calls),
            seen(),
            watch.functions_of_backward(seen, watched),
            torch.autograd.grad_mode._force_original_view_tracking(True),  # views that are returned
            watch.leaves_of_backward(self._see),
            watched(),
        ):
            outputs = self._function(*args, **kwargs)
        if self._check_python:
            refuse_assignments(leaves, args, kwargs, outputs)
            self._check_python_state(executed, outputs)
        return outputs

    @contextlib.contextmanager
    def _reads(self, executed: watch.ExecutedCode) -> Iterator[None]:
        try:
            yield
        except ReadError as error:
            traceback.clear_frames(error.__traceback__)  # which hold tensors
            error.can_repeat = self._check_python and self._change(executed, None) is None
            raise

    @contextlib.contextmanager
    def _other_threads(self, outputs: Callable[[], Any]) -> Iterator[None]:
        try:
            yield
        except watch.ByAThreadError as error:
            raise DisturbedError(str(error), self._as_lazy(outputs())) from error

    def _name_of(self, tensor: torch.Tensor) -> str | None:
        number = self._by_id.get(id(tensor))
        if number is None:
            return self._state.host_tensors.get(id(tensor))
        return self._known[number].name

    def _check_python_state(self, executed: watch.ExecutedCode, outputs: Any) -> None:
        if (changed := self._change(executed, outputs)) is not None:
            name, remedy = changed
            raise NotRepeatableError(name, self._as_lazy(outputs), remedy)

    def _change(self, executed: watch.ExecutedCode, outputs: Any) -> tuple[str, str | None] | None:
        """Return which state other than tensors the function changed, and the remedy."""
        moved = self._state.moved()
        changed = self._changed_python(executed)
        if moved:
            remedy = "draw random numbers on the device, and pass an iterator's values as arguments"
            return moved, remedy
        if not changed and (kept := self._plans().kept_tensor(outputs, self._calls.made)):
            changed = f"what refers to a tensor {kept} that it makes"
        return (changed, None) if changed else None

    def _as_lazy(self, outputs: Any) -> Any:
        """Give the arguments what their copies are now, for a call that is not captured."""
        if not self._copies:
            return outputs
        if any(copy.requires_grad for copy in self._copies.values()):
            self._plans().check_results(outputs)  # backward() of one would not reach the arguments
        copies = self._arguments_and_copies()
        refuse_lost_gradients(copies)
        written = [self._saved.is_written(copy) for _, _, copy in copies]
        return give_back(copies, written, outputs, self._calls.made)

    def _arguments_and_copies(self) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
        arguments = [leaf for leaf in self._leaves if isinstance(leaf, torch.Tensor)]
        return [
            (self._known[self._by_id[id(copy)]].name, arguments[number], copy)
            for number, copy in self._copies.items()
        ]

    def _changed_python(self, executed: watch.ExecutedCode) -> str | None:
        """Return which non-tensor state changed; add the function's globals to the guards."""
        names: set[str] = set()
        strings: set[str] = set()
        by_strings = False
        for code, variables in list(executed.codes.items()):
            names |= names_of(code)
            module = variables.get("__name__", "")
            if is_library(module):
                continue
            self._state.add_globals(variables, code, module)
            strings |= strings_of(code)
            by_strings = by_strings or finds_by_strings(code)
            if not _ENVIRONMENT.isdisjoint(code.co_names):
                self._state.add("os.environ", os.environ)
        if by_strings:
            names |= strings | self._state.strings
        self._state.forget(names)
        return self._state.difference() or executed.changed_global()

    def run(self) -> Replay:
        """Trace and compile the function, and return a replay.

        Raises:
            NotRepeatableError: the function changed Python objects; `outputs` are its
                results.
            CaptureError: the function cannot be captured.
        """
        self._prepare()
        self._tensor_trace.begin()
        keeps = False
        try:
            try:
                outputs = self._call()
                self._check_storages()
                make_replay = self._compile(outputs)
            except NotRepeatableError:
                keeps = True
                raise
            except BaseException:
                self._undo()
                raise
            self._undo()
            return make_replay()
        finally:
            self._tensor_trace.end(keeps=keeps)

    def _undo(self) -> None:
        for number, gradient in self._gradients.items():
            tensor = self._known[number].tensor
            if tensor.grad is not gradient:
                tensor.grad = gradient
        for known in self._known:
            if known.tensor.is_leaf and known.tensor.requires_grad != known.requires_grad:
                known.tensor.requires_grad_(known.requires_grad)
        # Otherwise a tensor that was written through views would hold its old data, which could
        # then not be donated.
        self._tensor_trace.undo(
            known.tensor for known in self._known if not _XLAC._xla_capture_is_view(known.tensor)
        )

    def _check_storages(self) -> None:
        refuse_lost_gradients(self._arguments_and_copies())
        for known in self._known:
            if known.tensor.is_leaf and known.tensor.requires_grad != known.requires_grad:
                raise CaptureError(
                    f"the function changes whether {known.name} requires a gradient, which a "
                    "replay would not do: call requires_grad_() outside, or use detach()"
                )
            storage = _XLAC._xla_capture_storage(known.tensor)
            if self._by_id[id(known.tensor)] not in self._by_storage.get(storage, ()):
                raise CaptureError(
                    f"the function assigns {known.name}.data or changes its storage, which a "
                    "replay would not do: write into it, with copy_() for example"
                )

    # From the trace to a program.

    def _plans(self) -> Plans:
        existing = self._existing if self._check_python else None
        storages = self._by_storage
        return Plans(self._known, self._by_id, storages, self._gradients, self._saved, existing)

    def _compile(self, outputs: Any) -> Callable[[], Replay]:
        """Compile the program; return a function that makes the replay when the trace is undone."""
        saved, known = self._saved, self._known
        written = [
            numbers[0]
            for numbers in self._by_storage.values()
            if saved.is_written(known[numbers[0]].tensor)
        ]
        keep_shardings([known[number].tensor for number in written], saved)
        new: list[torch.Tensor] = []  # further results of the program
        returned = self._plans().of_outputs(outputs, new)
        gradients = self._plans().of_gradients(new)
        lowered = InPlaceProgram([known[number].tensor for number in written], new, saved)
        sources = self._find_sources(lowered)
        key = lowered.compile(self._compiler)
        text = ""
        if self._is_verified and (self._again is None or self._again.program != key):
            text = _XLAC._get_xla_tensors_text(lowered.results)
        # Made only when the trace is undone, because a replay records the tensors' values outside
        # the trace.
        return lambda: self._replay(key, text, lowered, sources, written, new, returned, gradients)

    def _find_sources(self, lowered: InPlaceProgram) -> list[tuple[Source, int]]:
        """Return each parameter's source, and for STATE the known tensor's index."""
        by_address = {
            self._saved.data_address(self._known[numbers[0]].tensor): numbers[0]
            for numbers in self._by_storage.values()
        }

        def source_of(address: int) -> tuple[Source, int] | None:
            return (Source.STATE, by_address[address]) if address in by_address else None

        def check_other(tensor_id: int, tensor: torch.Tensor) -> None:
            if tensor_id == _XLAC._get_seed_info_id():
                raise CaptureError(
                    "the function sets the seed of the device's random numbers, by "
                    "torch_xla.manual_seed, xm.set_rng_state or torch_xla.utils.checkpoint: set it "
                    "outside, and use torch.utils.checkpoint"
                )
            if tensor_id != -1 and tensor_id < self._saved.first_new_id:
                raise CaptureError(
                    f"the function reads a tensor {watch.describe(tensor)} that is neither "
                    "an argument nor reachable from its Python code, such as one that autograd "
                    "saved in a forward pass outside: pass it as an argument"
                )

        return self._tensor_trace.sources(lowered, source_of, check_other)

    def _replay(
        self,
        key: bytes,
        text: str,
        lowered: InPlaceProgram,
        sources: list[tuple[Source, int]],
        written: list[int],
        new: list[torch.Tensor],
        result: Result,
        gradients: list[tuple[Reference, int | None]],
    ) -> Replay:
        read = [number for kind, number in sources if kind == Source.STATE]
        used = {_XLAC._xla_capture_storage(self._known[number].tensor) for number in read}
        # Every Python tensor that the program depends on: also other views of its storages, and
        # tensors whose .grad it reads or replaces.
        owners = set(self._gradients) if gradients else set()
        owners |= {known.gradient_of for known in self._known if known.gradient_of is not None}
        state = [
            number
            for number, known in enumerate(self._known)
            if known.argument is None
            and known.gradient_of is None
            and (_XLAC._xla_capture_storage(known.tensor) in used or number in owners)
        ]
        indices = {number: index for index, number in enumerate(state)}

        def source(number: int) -> tuple[Source, int]:
            for other in self._by_storage[_XLAC._xla_capture_storage(self._known[number].tensor)]:
                known = self._known[other]
                if known.argument is not None:
                    return Source.ARGUMENT, known.argument
                if other in indices:
                    return Source.STATE, indices[other]
                if known.gradient_of in indices:
                    return Source.GRADIENT, indices[known.gradient_of]
            raise CaptureError(
                f"{self._known[number].name} is the .grad of an argument: pass it as an argument"
            )

        parameters, names, constants = [], [], []
        for (kind, number), tensor in zip(sources, lowered.parameters, strict=True):
            if kind == Source.STATE:
                parameters.append(source(number))
                names.append(self._known[number].name)
            elif kind == Source.CONSTANT:
                parameters.append((kind, number))
                constants.append(tensor)
                names.append(f"a constant {watch.describe(tensor)}")
            else:
                parameters.append((kind, number))
                names.append("the seed of random numbers")
        state_storages: dict[int, int] = {}
        for index, number in enumerate(state):
            storage = _XLAC._xla_capture_storage(self._known[number].tensor)
            state_storages.setdefault(storage, index)
        replaced = [
            (Source.ARGUMENT, reference.argument)
            if reference.argument is not None
            else (Source.STATE, indices[self._by_id[id(reference.tensor())]])
            for reference, _ in gradients
        ]
        read_gradients = [index for kind, index in parameters if kind == Source.GRADIENT]
        # A tensor that is passed twice is recorded once.
        leaves = [leaf for leaf in self._leaves if isinstance(leaf, torch.Tensor)]
        arguments = [self._copies.get(number, leaf) for number, leaf in enumerate(leaves)]
        program = _XLAC._XlaCapturedProgram(
            key,
            "captured step",
            parameters,
            names,
            [self._known[number].tensor for number in state],
            constants,
            lowered.parameter_indices,
            new,
            [state_storages.get(_XLAC._xla_capture_storage(tensor), -1) for tensor in arguments],
            [
                (kind, index)
                for kind, index in replaced
                if kind == Source.ARGUMENT or index not in read_gradients
            ],
            ends_step=True,
        )
        copied_back = [
            number for number, copy in self._copies.items() if self._by_id[id(copy)] in written
        ]
        tensors = [weakref.ref(self._known[number].tensor) for number in state]
        fingerprint = TraceFingerprint(
            key,
            [
                (kind, tensors[index] if kind in (Source.STATE, Source.GRADIENT) else index)
                for kind, index in parameters
            ],
            names,
            constants,
            [self._calls.locations.get(_XLAC._xla_capture_data_address(c)) for c in constants],
            result,
            gradients,
            self._calls.operations,
            text,
            self._as_compiling,
        )
        return Replay(
            program,
            self._state,
            fingerprint,
            len(written),
            list(self._copies),
            copied_back,
            [self._known[number].tensor for number in state],
            lowered.compilation,
        )
