"""torch_xla_ext.capture traces and compiles a function of XLA tensors once, then replays it."""

import functools
import inspect
import logging
import threading
from collections.abc import Callable
from typing import Any, TypeVar, overload

import torch
import torch_xla
from torch.utils import _pytree as pytree
from torch_xla.distributed.spmd.xla_sharded_tensor import XLAShardedTensor

from torch_xla_ext import xla_options
from torch_xla_ext.graph import parallel_compilation
from torch_xla_ext.graph.capture_key import Key, flatten, modes, weakly
from torch_xla_ext.graph.copied_step import CopiedStep
from torch_xla_ext.graph.errors import CaptureError, ReadError
from torch_xla_ext.graph.guards import ON_THE_HOST
from torch_xla_ext.graph.parallel_compilation import Compiler
from torch_xla_ext.graph.replay import Replay
from torch_xla_ext.graph.tensors import Description, argument_names, refuse_marked, shardings_of
from torch_xla_ext.graph.trace import DisturbedError, NotRepeatableError, Tracer
from torch_xla_ext.graph.trace_fingerprint import TraceFingerprint

_XLAC = torch_xla._XLAC
_log = logging.getLogger("torch_xla_ext.capture")
_Function = TypeVar("_Function", bound=Callable[..., Any])
_MAX_CAPTURES = 8
_LAST_VERIFIED = 1024
_MAX_DISTURBANCES = 8
# A trace temporarily rewrites tensors that other steps may use, so steps run one after another.
_lock = threading.RLock()
_tracing = threading.local()
_trace_runs = False


def _kind_of_generator(function: Callable[..., Any]) -> str | None:
    while isinstance(function, functools.partial):
        function = function.func
    if not (inspect.isroutine(function) or isinstance(function, CapturedStep)):
        function = getattr(function, "forward", None) or type(function).__call__
    function = inspect.unwrap(function)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        return "a generator function"
    return "a coroutine function" if inspect.iscoroutinefunction(function) else None


class CapturedStep(CopiedStep):
    """A function with its replays; see torch_xla_ext.capture."""

    def __init__(
        self,
        function: Callable[..., Any],
        max_captures: int = _MAX_CAPTURES,
        check_python: bool = True,
        verify: bool | int | None = None,
        as_compiling: bool = False,
        starts_here: bool = False,
    ) -> None:
        if not callable(function):
            raise TypeError(f"capture needs a function, not {type(function).__name__}")
        if max_captures < 1:
            raise ValueError(f"max_captures must be at least 1, but is {max_captures}")
        if kind := _kind_of_generator(function):
            raise CaptureError(
                "capture needs a function that runs to completion when it is called, but "
                f"{getattr(function, '__qualname__', type(function).__name__)} is {kind}: return "
                "a list instead of yielding, or capture the plain function that it calls"
            )
        functools.update_wrapper(self, function)
        self._function, self._max_captures = function, max_captures
        self._check_python, self._verify = check_python, verify
        self._starts_here = starts_here
        self._as_compiling = as_compiling  # from the first trace, not only after a read
        # Calls 2, 4, 8, … of a replay are traced and compared, up to this one.
        self._last_verified = int(_LAST_VERIFIED * check_python if verify is None else verify)
        self._verify_all = verify is True
        self._verifies = self._verify_all or self._last_verified >= 2
        self._name = getattr(function, "__qualname__", type(function).__name__)
        self._replays: list[tuple[Key, Replay]] = []
        self._compiler_options: bytes | None = None  # of the first trace, and of all
        self._changed: str | None = None  # what the last run changed besides tensors
        self._disturbances = 0  # traces in a row that another thread may have disturbed
        self._attribute = getattr(function, "__name__", "")
        self._unbound = None

    def _arguments(self) -> tuple:
        options = self._max_captures, self._check_python, self._verify
        return *options, self._as_compiling, self._starts_here

    @property
    def captured_function(self) -> Callable[..., Any]:
        """The captured function."""
        return self._function

    @property
    def num_captures(self) -> int:
        """The number of current replays."""
        return len(self._replays)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(args, kwargs, may_differ=True)

    def repeat(self, *args: Any) -> Any:
        """Repeat this thread's previous call, if no Python state has changed since then.

        Only the arguments are compared with those of the previous call.
        """
        return self._call(args, {}, may_differ=False)

    def prepare(self, *args: Any, **kwargs: Any) -> None:
        """Trace and compile the program of a call with these arguments, without running it.

        In a block of torch_xla_ext.parallel_compilation, another thread compiles the program.

        Raises:
            CaptureError: as for a call. Also if the function makes or changes Python objects in its
                first call, such as an optimizer's state: then that call has been made.
        """
        if getattr(_tracing, "active", False):
            raise CaptureError(
                f"{self._name}.prepare() is called by a captured function: call it outside"
            )
        with _lock:
            leaves, spec = flatten(args, kwargs)
            key, arguments, views = self._key(leaves, spec)
            reasons = []
            self._drop_outdated(reasons)
            for known, replay in self._replays:
                reason = known.difference(key) or replay.python_mismatch()
                reason = reason or replay.mismatch(arguments)
                if reason is None:
                    return
                reasons.append(reason)
            self._check_count(key, reasons)
            descriptions = [Description.of(tensor) for tensor in arguments]
            try:
                replay = self._trace(leaves, spec, views, compiler=parallel_compilation.current())
            except NotRepeatableError as result:
                self._finish_lazily(result)
                raise CaptureError(
                    f"{self._name} was run, not prepared, because it made or changed {result.name}:"
                    " call it once, and prepare other calls"
                ) from result
            self._keep(key, replay, descriptions)

    def _call(self, args: tuple, kwargs: dict[str, Any], *, may_differ: bool) -> Any:
        if getattr(_tracing, "active", False):
            return self._function(*args, **kwargs)  # a part of the step that is being captured
        if not _lock.acquire(blocking=False):
            # In a thread of autograd, this is a part of a step that another thread captures.
            if _trace_runs and torch._C._current_autograd_node() is not None:
                return self._function(*args, **kwargs)
            _lock.acquire()
        try:
            return self._run(args, kwargs, may_differ)
        finally:
            _lock.release()

    def _run(self, args: tuple, kwargs: dict[str, Any], may_differ: bool) -> Any:
        leaves, spec = flatten(args, kwargs)
        key, arguments, views = self._key(leaves, spec)
        reasons = []
        self._drop_outdated(reasons)
        for known, replay in list(self._replays):
            reason = known.difference(key) or (replay.python_mismatch() if may_differ else None)
            if reason is None:
                is_verified = self._is_verified(replay, replay.calls + 1)
                if not is_verified and (done := replay.run_if_matches(arguments)):
                    replay.calls += 1
                    return done[0]
                reason = replay.mismatch(arguments)
            if reason is None:
                replay.calls += 1
                if not is_verified:
                    return replay.run(arguments)
                return self._run_verified(replay, leaves, spec, key, arguments, views)
            reasons.append(reason)
        return self._capture(leaves, spec, key, arguments, views, reasons)

    def _key(
        self, leaves: list[Any], spec: pytree.TreeSpec
    ) -> tuple[Key, list[torch.Tensor], list[int]]:
        arguments: list[torch.Tensor] = []
        others: dict[int, Any] = {}
        for number, leaf in enumerate(leaves):
            if isinstance(leaf, XLAShardedTensor):
                if leaf.requires_grad:
                    refuse_marked(leaf, argument_names(spec)[number])
                leaves[number] = leaf = leaf.global_tensor
            if not isinstance(leaf, torch.Tensor):
                others[number] = leaf
            elif leaf.device.type == "xla":
                arguments.append(leaf)
            else:
                raise CaptureError(
                    f"{self._name}: {argument_names(spec)[number]} is a tensor on {leaf.device}, "
                    "whose values a replay would not see: move it to the XLA device"
                )
        signature, views = _XLAC._xla_capture_signature(arguments)
        shardings = shardings_of(arguments)
        return Key(spec, others, arguments, signature, shardings, modes()), arguments, views

    def _capture(
        self,
        leaves: list[Any],
        spec: pytree.TreeSpec,
        key: Key,
        arguments: list[torch.Tensor],
        views: list[int],
        reasons: list[str],
    ) -> Any:
        self._check_count(key, reasons)
        if reasons:
            _log.warning(
                "%s: captured again (%d of at most %d): %s",
                *(self._name, len(reasons) + 1, self._max_captures, reasons[-1]),
            )
        descriptions = [Description.of(tensor) for tensor in arguments]
        try:
            replay = self._trace(leaves, spec, views)
        except NotRepeatableError as result:
            return self._finish_lazily(result)
        self._keep(key, replay, descriptions)
        return replay.run(arguments)

    def _check_count(self, key: Key, reasons: list[str]) -> None:
        if len(self._replays) >= self._max_captures:
            raise CaptureError(
                f"{self._name} was captured {self._max_captures} times, the limit set by "
                f"max_captures; now {reasons[-1]}. {self._remedy(key, reasons[-1])}, or increase "
                "max_captures"
            )

    def _trace(
        self,
        leaves: list[Any],
        spec: pytree.TreeSpec,
        views: list[int],
        again: TraceFingerprint | None = None,
        compiler: Compiler | None = None,
    ) -> Replay:
        """Trace the function; if it reads a value, trace again with is_compiling() true.

        Some libraries read values, such as whether a mask is all ones, only if they are not
        compiled.
        """
        global _trace_runs
        _tracing.active = _trace_runs = True
        if self._compiler_options is None:
            self._compiler_options = xla_options.current()
        arguments = (self._function, leaves, spec, views, self._check_python, again)
        arguments += (self._verifies,)
        try:
            with xla_options.exactly(self._compiler_options):
                if again is not None:
                    return Tracer(*arguments, again.as_compiling).run()
                try:
                    return Tracer(*arguments, self._as_compiling, compiler).run()
                except ReadError as error:
                    if self._as_compiling or not error.can_repeat:
                        raise
                    return Tracer(*arguments, True, compiler).run()
        except CaptureError as error:
            raise CaptureError(f"{self._name}: {error}") from error
        finally:
            _tracing.active = _trace_runs = False

    def _keep(self, key: Key, replay: Replay, descriptions: list[Description]) -> None:
        self._changed, self._disturbances = None, 0
        key.tensors = descriptions
        key.others = {number: weakly(value) for number, value in key.others.items()}
        replay.starts_here = self._starts_here
        self._replays.append((key, replay))
        if not self._verifies:
            replay.fingerprint = None
        _log.info(
            "%s: captured: %d inputs, %d of them written in place",
            *(self._name, replay.num_inputs, replay.num_written),
        )

    def _is_verified(self, replay: Replay, call: int) -> bool:
        """Return whether this call is traced again, as calls 2, 4, 8 and so on are."""
        return replay.fingerprint is not None and (self._verify_all or not call & (call - 1))

    def _run_verified(
        self,
        replay: Replay,
        leaves: list[Any],
        spec: pytree.TreeSpec,
        key: Key,
        arguments: list[torch.Tensor],
        views: list[int],
    ) -> Any:
        """Trace the call again, and compare the trace with the replay's.

        Like any capture, a trace has the step's effects on Python, so it replaces a call of the
        function. Its effects on tensors are undone, and the replay makes them.
        """
        calls = replay.calls
        descriptions = [Description.of(tensor) for tensor in arguments]
        try:
            again = self._trace(leaves, spec, views, replay.fingerprint)
        except NotRepeatableError as result:
            self._drop(replay)
            return self._finish_lazily(result)
        except BaseException:
            self._drop(replay)
            raise
        difference = replay.fingerprint.difference(again.fingerprint)
        if difference is None:
            if not self._verify_all and calls * 2 > self._last_verified:
                replay.fingerprint = None
            return replay.run(arguments)
        self._drop(replay)
        if calls == 2 and not replay.replaces_another:
            _log.warning("%s: captured again, because %s", self._name, difference)
            again.replaces_another = True
            self._keep(key, again, descriptions)
            return again.run(arguments)
        replayed = ""
        if calls > 3 and not self._verify_all:
            replayed = f". Calls after call {calls // 2} of this capture replayed the older program"
        raise CaptureError(
            f"{self._name} was traced again, to verify its replays, and {difference}, although "
            "nothing that capture compares at each call has changed. Pass what changes as an "
            "argument, "
            f"best as a tensor on the device{replayed}"
        )

    def _drop_outdated(self, reasons: list[str]) -> None:
        for _, replay in list(self._replays):
            if reason := replay.is_outdated():
                self._drop(replay)
                reasons.append(reason)

    def _drop(self, replay: Replay) -> None:
        self._replays = [pair for pair in self._replays if pair[1] is not replay]

    def _remedy(self, key: Key, reason: str) -> str:
        if ON_THE_HOST in reason:
            return "Move it to the XLA device"
        last, _ = self._replays[-1]
        if last.spec == key.spec and last.others.keys() == key.others.keys():
            changed = last.changed_tensor(key)
            if (
                changed
                and reason.startswith(f"{changed[0]} ")
                and changed[1].shape != changed[2].shape
            ):
                return "Pad tensors to a few sizes"
        return "Pass changing values as tensors"

    def _finish_lazily(self, result: NotRepeatableError) -> Any:
        """Keep a first call lazy: it may create state that later calls update."""
        # The traceback's frames hold old values, and the sync can donate only values that nothing
        # holds.
        result.__traceback__ = None
        torch_xla.sync()
        if isinstance(result, DisturbedError):
            self._disturbances += 1
            if self._disturbances > _MAX_DISTURBANCES:
                raise CaptureError(f"{self._name}: {result.name}") from result
            _log.info("%s: not captured, because of this thread or another: %s", self._name, result)
            return result.outputs
        if self._changed is not None:
            remedy = result.remedy or "write into a tensor on the device, or return the value"
            if "['step']" in result.name:
                remedy = (
                    "make the optimizer with fused=True or capturable=True, which counts its steps "
                    "on the device, or call optimizer.step() outside the captured function"
                )
            if "['n_averaged']" in result.name:
                remedy = "call the average's update_parameters() outside the function"
            name = result.name.removesuffix(f", {ON_THE_HOST},")
            raise CaptureError(
                f"{self._name} changes {name} at each call, which a replay would not do: {remedy}"
            )
        self._changed = result.name
        _log.info("%s: not captured, because it made or changed %s", self._name, result.name)
        return result.outputs


@overload
def capture(
    function: _Function,
    *,
    max_captures: int = _MAX_CAPTURES,
    check_python: bool = True,
    verify: bool | int | None = None,
    as_compiling: bool = False,
    starts_here: bool = False,
) -> _Function: ...


@overload
def capture(
    *,
    max_captures: int = _MAX_CAPTURES,
    check_python: bool = True,
    verify: bool | int | None = None,
    as_compiling: bool = False,
    starts_here: bool = False,
) -> Callable[[_Function], _Function]: ...


def capture(
    function: Callable[..., Any] | None = None,
    *,
    max_captures: int = _MAX_CAPTURES,
    check_python: bool = True,
    verify: bool | int | None = None,
    as_compiling: bool = False,
    starts_here: bool = False,
) -> CapturedStep | Callable[[Callable[..., Any]], CapturedStep]:
    """Trace and compile a step once, then replay it without running its Python code.

    As a decorator or a function: ``step = torch_xla_ext.capture(step)``. For the step's tensors, a
    call is equivalent to ``function(...)`` followed by torch_xla.sync(). Capture also finds tensors
    besides the arguments that the function reads and writes, such as modules' parameters, caches
    and an optimizer's state. Tensors that it writes are updated in place and their buffers are
    donated, as with ``jax.jit(donate_argnums=…)``. The random seed advances as in lazy mode.

    A call that no replay matches captures again, and the logger ``torch_xla_ext.capture`` says why:
    other shapes, dtypes, shardings, numbers, strings or objects in the arguments, other closures,
    globals or attributes, or a replaced parameter.

    A step that reads a tensor's value is traced once more with torch.compiler.is_compiling() true,
    for libraries that check values only where they are not compiled.

    Calls 2, 4, 8, … of each capture, up to `verify`, are traced again, and the program, its
    constants and its results must equal the first ones. A difference in call 2, when nothing has
    been replayed yet, captures again; in a later call it is a CaptureError.

    Args:
        function: a function of XLA tensors and other values, passed by position or keyword, nested
            in lists, tuples and dictionaries. It may run backward() and an optimizer's step. The
            first call may create Python objects that later calls use, such as an optimizer's state;
            it then runs without being captured.
        max_captures: the maximum number of captures.
        check_python: False for a function whose Python code depends only on its arguments, such as
            the forward pass of a model in a server. Closures, globals and attributes are then not
            compared, and assignments to them are not repeated; tensors are still found and
            compared. Use it for code that keeps its settings in large or changing objects.
        verify: the last call of a capture that is traced again. True traces every call again, for
            tests; 0 none. The default is 1,024, and 0 with check_python=False.
        as_compiling: whether torch.compiler.is_compiling() is true from the first trace on, for
            libraries that check values only where they are not compiled.
        starts_here: whether a replay starts its program in the calling thread, and returns when the
            devices have its work. Use it if the caller waits for a result before it calls the step
            again. Otherwise another thread starts it, which is faster for steps that follow each
            other.

    Returns:
        A callable with the same arguments and results. Its method `repeat` makes a call right after
        another one, without changes in Python in between; `prepare` traces and compiles a call
        without running it. Results do not require gradients. Objects that the function makes are
        made at each replay, from the parts that pickle would store. A copy of the callable, by copy
        or pickle, has captures of its own.

    Raises:
        CaptureError: the function does something on the host that a replay would not repeat: it
            reads a tensor's value (.item(), print), draws random numbers, rebinds an attribute or a
            global in each call, or calls torch_xla.sync(). Or it is a generator function. Or a
            trace for verification differs; the text names the operation. Or a replay failed; the
            text names the tensor. Other output of the Python code, such as to files, and reading
            the time happen only during a trace, without an error.
    """
    if function is None:
        return functools.partial(
            capture,
            max_captures=max_captures,
            check_python=check_python,
            verify=verify,
            as_compiling=as_compiling,
            starts_here=starts_here,
        )
    return CapturedStep(function, max_captures, check_python, verify, as_compiling, starts_here)
