"""Keep a module's parameters when it moves to an XLA device, or from one.

PyTorch moves a module from CPU to CUDA by replacing its parameters' data. XLA tensors have a
different implementation, so PyTorch gives the module new parameters instead. Then tied weights
become separate weights, and an existing optimizer updates parameters that no module uses any more.
Here the parameters stay the same objects. A module of torch.jit.load, whose parameters are plain
tensors, fails an assertion of PyTorch's; here they become parameters first.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Mapping

import torch
from torch.nn import Module, Parameter

_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


class _Move(threading.local):
    """The moves of modules that are in progress in this thread.

    Attributes:
        depth: how many nested modules are being moved.
        replaced: new parameters by the ids of the old ones, which are kept alive.
    """

    def __init__(self) -> None:
        self.depth = 0
        self.replaced: dict[int, tuple[Parameter, Parameter]] = {}


_move = _Move()


def apply(original: Callable[..., Module]) -> Callable[..., Module]:
    """Wrap Module._apply, which all moves and conversions of modules call."""

    @functools.wraps(original)
    def apply(
        self: Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
    ) -> Module:
        if isinstance(self, torch.jit.ScriptModule):
            for name, tensor in self._parameters.items():
                if tensor is not None and not isinstance(tensor, Parameter):
                    self._parameters[name] = Parameter(tensor, tensor.requires_grad)
        before = dict(self._parameters)
        _move.depth += 1
        try:
            result = original(self, fn, recurse)
            for name, old in before.items():
                new = self._parameters[name]
                if old is not new and "xla" in (old.device.type, new.device.type):
                    self._parameters[name] = _kept(old, new)
        finally:
            _move.depth -= 1
            if not _move.depth:
                _move.replaced.clear()
        return result

    return apply


def _kept(old: Parameter, new: Parameter) -> Parameter:
    """Return `old` with the tensor of `new`, or, if impossible, the replacement for all modules."""
    if torch.__future__.get_overwrite_module_params_on_conversion():
        return new
    with torch._C.DisableTorchFunctionSubclass():  # UninitializedParameter allows few functions
        hooks = {name: getattr(old, name) for name in _HOOKS}
        if old._use_count() == 1:  # no graph refers to its tensor
            with contextlib.suppress(RuntimeError):  # a weak reference of PyTorch's own does
                torch._C._swap_tensor_impl(old, new)
                _set_hooks(old, hooks)
                return old
        if id(old) not in _move.replaced:
            _set_hooks(new, hooks)
    return _move.replaced.setdefault(id(old), (old, new))[1]


def _set_hooks(parameter: Parameter, hooks: Mapping[str, object]) -> None:
    """Set a parameter's hooks, which its tensor implementation would otherwise lose."""
    for name, registered in hooks.items():
        if registered:
            setattr(parameter, name, registered)
