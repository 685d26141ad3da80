"""Watch a step while it is traced: record the tensors that it uses, refuse unrepeatable effects."""

import contextlib
import cProfile
import dataclasses
import importlib
import pickle
import random
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch_xla
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch_xla.debug import metrics

from torch_xla_ext.graph.bytecode import assigned_globals
from torch_xla_ext.graph.errors import CaptureError, ReadError
from torch_xla_ext.graph.guards import is_library, is_plain, same_plain
from torch_xla_ext.graph.trace_fingerprint import Operation
from xla_kernels.replacement import temporarily_replaced

_XLAC = torch_xla._XLAC
# Functions of the binary that run all pending operations.
_SYNCS = ("_xla_step_marker", "_xla_sync_multi", "_xla_sync_live_tensors", "_xla_warm_up_cache")
_ABSENT = object()
# Modules that watch a step and are not part of it.
_WATCHING = (__name__.rpartition(".")[0], temporarily_replaced.__module__)
# The function that finds and executes a module that is not in sys.modules.
_IMPORT = importlib._bootstrap._find_and_load.__code__
_READ = "aten::_local_scalar_dense"  # counts reads of host scalars
# Arguments that torch reads as numbers, by operation. A device tensor is instead multiplied with an
# operand.
_FACTORS = {
    name + suffix: factor
    for name, factor in {
        **{"add": "alpha", "sub": "alpha"},
        **{"addcmul": "value", "addcdiv": "value"},
    }.items()
    for suffix in ("", "_")
}

# Methods of torch.Tensor that read values on the host.
_READS = {
    *("item", "tolist", "numpy", "cpu", "__bool__", "__int__", "__float__", "__index__"),
    *("__complex__", "__repr__", "__format__", "__array__", "__contains__", "is_nonzero"),
}
# Methods that change a tensor's shape, with those that return a new tensor of that shape.
_RESHAPES = {
    f"{name}_": name
    for name in ("as_strided", "squeeze", "swapaxes", "swapdims", "t", "transpose", "unsqueeze")
} | {"resize_": "reshape", "resize_as_": "reshape_as"}


def is_on_device(value: Any) -> bool:
    """Return whether a value is an XLA tensor with data; fake tensors on "xla" have none."""
    return (
        isinstance(value, torch.Tensor)
        and value.device.type == "xla"
        and not isinstance(value, FakeTensor | FunctionalTensor)
    )


def _leaves(args: tuple, kwargs: dict[str, Any]) -> list[Any]:
    """Return the leaves of an operation's arguments; fast, because these are seldom nested."""
    values = [*args, *kwargs.values()]
    nested = any(isinstance(value, (list, tuple, dict)) for value in values)
    return pytree.tree_leaves(values) if nested else values


@dataclasses.dataclass
class Calls:
    """The operations of torch in a trace.

    Attributes:
        operations: the calls, in their order.
        locations: the lines of code that moved data to the device, by the data's address.
        made: the tensors that the calls returned.
        read: the tensors that the last read of a number on the host may have read.
    """

    operations: list[Operation] = dataclasses.field(default_factory=list)
    locations: dict[int, str] = dataclasses.field(default_factory=dict)
    made: list[weakref.ref] = dataclasses.field(default_factory=list)
    read: tuple[torch.Tensor, str, str | None] | None = None


class WatchedTensors(TorchFunctionMode):
    """A watch that calls `see` with each XLA tensor before torch uses it.

    It refuses operations that read a value on the host, which a replay would not repeat. `name_of`
    returns a tensor's name, if it is known. A factor that torch would read on the host, such as
    SGD's learning rate, stays on the device.
    """

    def __init__(
        self,
        see: Callable[[torch.Tensor], None],
        name_of: Callable[[torch.Tensor], str | None],
        calls: Calls,
    ) -> None:
        super().__init__()
        self._see, self._known_name, self._calls = see, name_of, calls
        self._names: dict[int, tuple[weakref.ref, str]] = {}  # device scalars made from known ones

    def _name_of(self, tensor: torch.Tensor) -> str | None:
        reference, name = self._names.get(id(tensor), (None, None))
        known = self._known_name(tensor)
        if known is None and reference is not None and reference() is tensor:
            return name
        return known

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        # Otherwise the profile function would run for each call in this function.
        profile = sys.getprofile()
        sys.setprofile(None)
        try:
            return self._run(profile, func, args, kwargs or {})
        finally:
            sys.setprofile(profile)

    def _run(self, profile: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        name = getattr(func, "__name__", "")
        values = _leaves(args, kwargs)
        tensors = [value for value in values if is_on_device(value)]
        for tensor in tensors:
            if name in _READS:
                refuse_read(tensor, name, self._name_of(tensor))
            self._see(tensor)
        if name in _RESHAPES and tensors and (known := self._known_name(tensors[0])):
            raise CaptureError(
                f"{name}() changes the shape of {known}, which a replay would not do: make a new "
                f"tensor of it, with {_RESHAPES[name]}()"
            )
        if name == "__get__":  # an attribute, such as shape
            result = func(*args, **kwargs)
            if is_on_device(result):
                self._calls.made.append(weakref.ref(result))
            return result
        operation = Operation.of(name, values)
        self._calls.operations.append(operation)
        factor = kwargs.get(_FACTORS.get(name, ""))
        if is_on_device(factor):
            kwargs = {key: value for key, value in kwargs.items() if value is not factor}
            args = (args[0], args[1] * factor.reshape(()), *args[2:])
        filled = name == "full_like" and len(args) > 1 and is_on_device(args[1])
        numbers = [tensor for tensor in tensors if not tensor.dim()]
        reads = metrics.counter_value(_READ) if numbers else None
        sys.setprofile(profile)
        try:
            if filled:
                result = func(args[0], 0, *args[2:], **kwargs)
                result.copy_(args[1].reshape(()))
            else:
                result = func(*args, **kwargs)
        except RuntimeError as error:
            self._refuse_host_tensor(name, tensors, values, error)
            raise
        finally:
            sys.setprofile(None)
        if tensors and isinstance(result, torch.Tensor) and result.device.type == "cpu":
            self._refuse_host_tensor(name, tensors, values)
            refuse_read(tensors[0], name, self._name_of(tensors[0]))
        if numbers:
            named = next((found for found in map(self._name_of, numbers) if found), None)
            if metrics.counter_value(_READ) != reads:
                self._calls.read = (numbers[-1], name, named)
            if named and is_on_device(result) and not result.dim():
                self._names[id(result)] = weakref.ref(result), named
        for made in result if isinstance(result, (tuple, list)) else (result,):
            if is_on_device(made):
                self._calls.made.append(weakref.ref(made))
                if not tensors:
                    address = _XLAC._xla_capture_data_address(made)
                    self._calls.locations[address] = operation.location
        return result

    def _refuse_host_tensor(
        self,
        by: str,
        tensors: list[torch.Tensor],
        values: list[Any],
        error: RuntimeError | None = None,
    ) -> None:
        for value in values if tensors else ():
            if isinstance(value, torch.Tensor) and value.dim() and value.device.type == "cpu":
                name = self._known_name(value)
                raise CaptureError(
                    f"{'a tensor' if name is None else name + ', a tensor'} {describe(value)} is "
                    f"on the CPU, and {by} uses it together with a tensor of the XLA device: move "
                    "it there"
                ) from error


@contextlib.contextmanager
def leaves_of_backward(see: Callable[[torch.Tensor], None]) -> Iterator[None]:
    """Call `see` with the tensors whose .grad a backward() is about to write."""
    original, tracing = torch.autograd._engine_run_backward, threading.get_ident()

    def run(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != tracing:
            return original(outputs, *args, **kwargs)
        nodes, seen = [tensor.grad_fn for tensor in pytree.tree_leaves(outputs)], set()
        while nodes:
            node = nodes.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if hasattr(node, "variable"):
                see(node.variable)
            nodes.extend(following for following, _ in node.next_functions)
        return original(outputs, *args, **kwargs)

    with temporarily_replaced(torch.autograd, "_engine_run_backward", run):
        yield


@contextlib.contextmanager
def functions_of_backward(*contexts: Callable[[], Any]) -> Iterator[None]:
    """Run each autograd.Function's backward(), in autograd's thread, with `contexts`."""
    kind, tracing = torch.autograd.function.BackwardCFunction, threading.get_ident()
    original = kind.apply

    def apply(node: Any, *gradients: Any) -> Any:
        if threading.get_ident() == tracing:
            return original(node, *gradients)
        with contextlib.ExitStack() as stack:
            for context in contexts:
                stack.enter_context(context())
            return original(node, *gradients)

    with temporarily_replaced(kind, "apply", apply):
        yield


def refuse_read(tensor: torch.Tensor, by: str, name: str | None) -> None:
    what = describe(tensor) if name is None else f"{describe(tensor)}, {name},"
    remedy = "return the tensor, and read it outside"
    if name is not None and name.endswith("['lr']"):
        remedy = (
            "this optimizer needs its lr as a number; step it outside, or use one that takes a "
            "tensor, such as SGD or Adam with capturable=True"
        )
    elif _is_in("torch.amp.grad_scaler"):
        remedy = "make the optimizer with fused=True, which looks at found_inf on the device"
    raise ReadError(
        f"the function reads the value of a tensor {what} on the host, by {by}; a replay runs on "
        f"the device only: {remedy}"
    )


def _is_in(module: str) -> bool:
    """Return whether code of the module is running."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") != module:
        frame = frame.f_back
    return frame is not None


def describe(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


@contextlib.contextmanager
def answers_as_compiling() -> Iterator[None]:
    """Make torch.compiler.is_compiling() true in this thread, except in PyTorch's own code.

    Libraries call it before they read a value: `if not is_compiling() and mask.all()`. PyTorch's
    own code is excepted, because its optimizers would then round differently.
    """
    original, tracing = torch.compiler.is_compiling, threading.get_ident()

    def is_compiling() -> bool:
        asks = sys._getframe(1).f_globals.get("__name__", "")
        return original() or (
            threading.get_ident() == tracing and asks.partition(".")[0] != "torch"
        )

    with temporarily_replaced(torch.compiler, "is_compiling", is_compiling):
        yield


@contextlib.contextmanager
def syncs_refused() -> Iterator[None]:
    """Refuse torch_xla.sync() in this thread and in autograd's; a read computes only its value."""
    tracing = threading.get_ident()

    def refusing(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != tracing and torch._C._current_autograd_node() is None:
                return original(*args, **kwargs)
            raise CaptureError(
                "the function calls torch_xla.sync(), directly or indirectly; a captured step is "
                "one program: remove the call"
            )

        return call

    with contextlib.ExitStack() as stack:
        for name in _SYNCS:
            function = refusing(getattr(_XLAC, name))
            stack.enter_context(temporarily_replaced(_XLAC, name, function))
        stack.callback(_XLAC._xla_pause_computing_pending_values, False)
        _XLAC._xla_pause_computing_pending_values(True)
        yield


def _host_random_states() -> dict[str, Callable[[], Any]]:
    states: dict[str, Callable[[], Any]] = {
        "random": random.getstate,
        "torch's generator for the host": lambda: torch.get_rng_state().numpy().tobytes(),
    }
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        states["numpy.random"] = lambda: pickle.dumps(numpy.random.get_state())
    return states


class ByAThreadError(CaptureError):
    """An event that capture refuses happened, perhaps in another thread of the process."""


def _refuse(text: str) -> None:
    """Refuse an event that process-wide counters report."""
    raise (CaptureError if threading.active_count() == 1 else ByAThreadError)(text)


@contextlib.contextmanager
def host_random_numbers_refused() -> Iterator[None]:
    states = {name: (get, get()) for name, get in _host_random_states().items()}
    yield
    for name, (get, before) in states.items():
        if get() != before:
            _refuse(
                f"the function draws random numbers on the host ({name}); every replay would use "
                "those of the capture: draw them on the device, or pass them as an argument"
            )


@contextlib.contextmanager
def transfers_refused(calls: Calls) -> Iterator[None]:
    def count() -> dict[str, int]:
        names = [name for name in metrics.counter_names() if name.startswith("aten::")]
        counts = {name: metrics.counter_value(name) or 0 for name in names}
        data = metrics.metric_data("TransferFromDeviceTime")
        counts["a transfer from the device"] = data[0] if data else 0
        return counts

    before = count()
    yield
    for name, after in count().items():
        if after != before.get(name, 0):
            if name == _READ and calls.read is not None:
                refuse_read(*calls.read)
            _refuse(
                f"the function runs {name} on the host, which a replay would not repeat; "
                "torch_xla does not implement it"
            )


class ExecutedCode:
    """Collects the code that a thread runs within `with self.in_this_thread()`.

    Code that an import runs is not collected, because in the next call the module is already
    imported.

    Attributes:
        codes: the code objects, with their globals.
    """

    def __init__(self) -> None:
        self.codes: dict[types.CodeType, dict[str, Any]] = {}
        # Globals that user code assigns, by module and name, with their former values.
        self._assigned: dict[tuple[int, str], tuple[dict[str, Any], Any]] = {}

    @contextlib.contextmanager
    def in_this_thread(self) -> Iterator[None]:
        profile = sys.getprofile()
        sys.setprofile(self._see)
        try:
            yield
        finally:
            if isinstance(profile, cProfile.Profile):  # sys.setprofile does not remove it
                profile.enable()
            else:
                sys.setprofile(profile)

    def _see(self, frame: types.FrameType, event: str, _argument: object) -> None:
        code, variables = frame.f_code, frame.f_globals
        if event != "call" or code in self.codes:
            return
        if variables.get("__name__", "").startswith(_WATCHING):
            return
        if code is _IMPORT:
            sys.setprofile(self._importing(frame))
            return
        self.codes[code] = variables
        if is_library(variables.get("__name__", "")):
            return
        for name in assigned_globals(code):
            known = (variables, variables.get(name, _ABSENT))
            self._assigned.setdefault((id(variables), name), known)

    def _importing(self, importing: types.FrameType) -> Callable[..., None]:
        """Return a function to call instead of `_see` until the import in this frame ends."""
        inside, existing, outside = ExecutedCode(), set(sys.modules), sys.getprofile()

        def see(frame: types.FrameType, event: str, module: object) -> None:
            if event != "return" or frame is not importing:
                inside._see(frame, event, module)
                return
            sys.setprofile(outside)
            failed = module is None  # the code runs again at the next call
            if failed:
                self.codes |= inside.codes
            for key, (variables, before) in inside._assigned.items():
                # The globals of new modules now have their initial values.
                if failed or variables.get("__name__") in existing:
                    self._assigned.setdefault(key, (variables, before))

        return see

    def changed_global(self) -> str | None:
        for (_, name), (variables, before) in self._assigned.items():
            after = variables.get(name, _ABSENT)
            if after is not before and not (is_plain(after) and same_plain(before, after)):
                return f"the global {variables.get('__name__', '?')}.{name}"
        return None
