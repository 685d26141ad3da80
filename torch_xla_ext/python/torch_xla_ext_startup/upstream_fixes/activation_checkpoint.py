"""Make torch.utils.checkpoint work on XLA devices: backward() recomputes activations.

PyTorch's version fails because it needs a module torch.xla, which does not exist. And because the
forward and the backward pass are one XLA program, there are three more requirements:

- The recomputation's inputs go through an optimization barrier together with the gradients of its
  results. Otherwise XLA would merge both computations, and keep the activations.
- The same barrier contains the parameters' gradients of the region before the previous one.
  Otherwise, on several devices, XLA's scheduler would compute all such gradients at the end of the
  program, and keep the activations of all regions. The previous region's gradients are left out, so
  that they are communicated while this region is computed.
- The random state is a value in the program, so that dropout in a captured step draws the same
  numbers in both computations, and new ones in the next step.
"""

import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator

import torch
import torch.utils.checkpoint
import torch_xla
from torch.utils import _pytree as pytree

_XLAC = torch_xla._XLAC


def infer_device_type(original: Callable[..., str]) -> Callable[..., str]:
    def infer_device_type(*args: object) -> str:
        device_type = original(*args)
        # _Region keeps the state of XLA.
        default = torch.utils.checkpoint.DefaultDeviceType
        return default.get_device_type() if device_type == "xla" else device_type

    return infer_device_type


def checkpoint(_: Callable[..., object] | None) -> Callable[..., object]:
    """Replace the function that torch.utils.checkpoint.checkpoint calls via torch._disable_dynamo.

    torch.utils.checkpoint.checkpoint itself stays, because other modules may have imported it, and
    torch.compile looks for it.
    """
    upstream = torch.utils.checkpoint.checkpoint.__wrapped__

    @torch._disable_dynamo
    def checkpoint(function: Callable[..., object], *args: object, **kwargs: object) -> object:
        if not _XLAC._xla_runtime_is_initialized():
            return upstream(function, *args, **kwargs)
        region = _Region(function, kwargs.get("preserve_rng_state", True))
        results = upstream(region, *args, **kwargs)
        for result in pytree.tree_leaves(results):
            if isinstance(result, torch.Tensor) and result.requires_grad:
                result.register_hook(region.keep_gradient)
        return results

    return checkpoint


class _Parameter:
    """A parameter that a region reads, as it is when the backward pass reaches the region."""

    def __init__(self, parameter: weakref.ref[torch.Tensor]) -> None:
        self._parameter = parameter
        before = self._gradient()
        self._before = None if before is None else (weakref.ref(before), before._version)

    def computed_gradient(self) -> torch.Tensor | None:
        """Return the parameter's gradient, if it has been computed since."""
        gradient = self._gradient()
        if gradient is None or self._before is None:
            return gradient
        before, version = self._before
        return None if before() is gradient and version == gradient._version else gradient

    def _gradient(self) -> torch.Tensor | None:
        parameter = self._parameter()
        return parameter.grad if parameter is not None and _is_xla(parameter.grad) else None


class _BackwardPass(threading.local):
    """This thread's backward pass.

    Attributes:
        number: PyTorch's number of the pass.
        regions: the parameters of the last two regions that the pass has reached.
    """

    def __init__(self) -> None:
        self.number = -1
        self.regions: deque[list[_Parameter]] = deque(maxlen=2)

    def reach(self, parameters: list[_Parameter]) -> list[torch.Tensor]:
        """Begin a region; return the gradients of the region before the previous one."""
        number = torch._C._current_graph_task_id()
        if number != self.number:
            self.number = number
            self.regions.clear()
        found = []
        if len(self.regions) == self.regions.maxlen:
            gradients = (parameter.computed_gradient() for parameter in self.regions[0])
            found = [gradient for gradient in gradients if gradient is not None]
        self.regions.append(parameters)
        return found


_backward_pass = _BackwardPass()


def _parameters_of(results: object, first_node: int) -> list[weakref.ref[torch.Tensor]]:
    """Return the parameters in the results' graph, its leaves.

    Args:
        first_node: the sequence number of the region's first node.
    """
    tensors = [leaf for leaf in pytree.tree_leaves(results) if isinstance(leaf, torch.Tensor)]
    nodes = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    seen, found = set(nodes), []
    while nodes:
        node = nodes.pop()
        if node._sequence_nr() < first_node:
            continue
        if node.name() == "torch::autograd::AccumulateGrad":
            found.append(weakref.ref(node.variable))
        for function, _ in node.next_functions:  # in this order, in every trace
            if function is not None and function not in seen:
                seen.add(function)
                nodes.append(function)
    return found


class _Region:
    """A checkpointed function, which the forward pass calls and the backward pass calls again."""

    def __init__(self, function: Callable[..., object], preserve_rng_state: bool) -> None:
        self._function, self._preserve_rng_state = function, preserve_rng_state
        self._random_state = None
        self._gradient: torch.Tensor | None = None
        self._parameters: list[weakref.ref[torch.Tensor]] = []

    def keep_gradient(self, gradient: torch.Tensor) -> None:
        """Keep a result's gradient; no part of the region may be recomputed before it."""
        self._gradient = gradient

    def __call__(self, *args: object, **kwargs: object) -> object:
        if self._random_state is None:
            self._random_state = _XLAC._XlaRandomState()
            self._autocast = {
                "enabled": torch.is_autocast_enabled("xla"),
                "dtype": torch.get_autocast_dtype("xla"),
                "cache_enabled": torch.is_autocast_cache_enabled(),
            }
            first_node = torch._C._autograd._get_sequence_nr()
            results = self._function(*args, **kwargs)
            self._parameters = _parameters_of(results, first_node)
            return results
        leaves, spec = pytree.tree_flatten((args, kwargs))
        positions = [i for i, leaf in enumerate(leaves) if _is_xla(leaf)]
        seed = self._random_state.seed()
        tensors = [leaves[i] for i in positions] + [seed]
        if _is_xla(self._gradient):
            tensors.append(self._gradient)
        self._gradient = None
        parameters = [_Parameter(parameter) for parameter in self._parameters]
        tensors += _backward_pass.reach(parameters)
        again = _Barrier.apply(*tensors)
        for i, tensor in zip(positions, again, strict=False):
            leaves[i] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, spec)
        seed = again[len(positions)]
        first_node = torch._C._autograd._get_sequence_nr()
        with self._same_random_numbers(seed), torch.autocast("xla", **self._autocast):
            results = self._function(*args, **kwargs)
        # With use_reentrant=True, the first call has no graph.
        parameters[:] = map(_Parameter, _parameters_of(results, first_node))
        return results

    @contextlib.contextmanager
    def _same_random_numbers(self, seed: torch.Tensor) -> Iterator[None]:
        if not self._preserve_rng_state:
            yield
            return
        after = _XLAC._XlaRandomState()
        self._random_state.restore(seed)
        try:
            yield
        finally:
            after.restore()


class _Barrier(torch.autograd.Function):
    """An optimization barrier: XLA does not know that its outputs equal its inputs."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        copies = [tensor.clone() for tensor in tensors]
        _XLAC._xla_optimization_barrier_(copies)
        needed = zip(copies, ctx.needs_input_grad, strict=True)
        ctx.mark_non_differentiable(*(copy for copy, needs_grad in needed if not needs_grad))
        return tuple(copies)

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, *gradients: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        return gradients


def _is_xla(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "xla"
