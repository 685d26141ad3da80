"""A model's weights on their way from the files to the devices.

A host may have less memory than a model has weights. So each weight goes to the devices when all of
it has been read, and its memory on the host is free then. Before, it takes none: the system gives
memory to a weight when it is written.
"""

from __future__ import annotations

import functools
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import nn
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import (
    UnquantizedEmbeddingMethod,
    VocabParallelEmbedding,
)

from vllm_xla_gpu.attention import XlaGpuAttention

_MOST_THREADS = 8
_MOST_WAITING = 2**29  # bytes that are read, or wait for that

# Returns the parts that a module has of its weight, on the devices.
Send = Callable[[nn.Module, torch.Tensor], list[torch.Tensor]]


class WeightStream:
    """Read weights in threads, and send each when it is complete.

    vLLM's loaders of weights are called as before. Those of the weights of linear layers and
    embeddings return before they have run.

    Attributes:
        sent: the parts of weights that are on the devices. The weights themselves have neither
            values nor memory then.
    """

    def __init__(self, model: nn.Module, send: Send) -> None:
        self.sent: dict[torch.Tensor, list[torch.Tensor]] = {}
        self._send = send
        self._threads = ThreadPoolExecutor(
            min(_MOST_THREADS, len(os.sched_getaffinity(0))), "weights"
        )
        # How many numbers of each weight have not been read, and have not begun to be read.
        self._left: dict[torch.Tensor, int] = {}
        self._unbegun: dict[torch.Tensor, int] = {}
        self._reads: deque[tuple[Future[object], nn.Module, nn.Parameter, torch.Tensor]] = deque()
        self._waiting = 0  # bytes of them
        for module, weight in _streamed(model):
            if weight not in self._left:
                self._unbegun[weight] = self._left[weight] = _count(module, weight)
                loader = weight.weight_loader
                weight.weight_loader = functools.partial(self._read, module, weight, loader)

    def _read(
        self,
        module: nn.Module,
        weight: nn.Parameter,
        loader: Callable[..., object],
        parameter: nn.Parameter,
        values: torch.Tensor,
        *arguments: object,
        **options: object,
    ) -> None:
        """Replace the weight's loader, which writes values of a file to it, or to a part."""
        if self._unbegun[weight] <= 0:  # the files have it twice, and the last counts
            self._finish_all()
            del self.sent[weight]
            self._unbegun[weight] = self._left[weight] = _count(module, weight)
            weight.data = torch.empty(weight.shape, dtype=weight.dtype)
        self._unbegun[weight] -= values.numel()
        read = self._threads.submit(loader, parameter, values, *arguments, **options)
        self._reads.append((read, module, weight, values))
        self._waiting += values.nbytes
        while self._reads and (self._waiting > _MOST_WAITING or self._reads[0][0].done()):
            self._finish_one()

    def _finish_one(self) -> None:
        read, module, weight, values = self._reads.popleft()
        read.result()
        self._waiting -= values.nbytes
        self._left[weight] -= values.numel()
        if self._left[weight] <= 0:
            # Here, not in a thread: torch_xla is faster as long as one thread uses it.
            self.sent[weight] = self._send(module, weight.data)
            weight.data = torch.empty(1, dtype=weight.dtype).expand(weight.shape)

    def _finish_all(self) -> None:
        while self._reads:
            self._finish_one()

    def finish(self) -> None:
        """Wait until everything is read."""
        self._finish_all()
        self._threads.shutdown()


def _count(module: nn.Module, weight: torch.Tensor) -> int:
    """Return the least number of values to read: a padded embedding has rows that no file has."""
    return 1 if isinstance(module, VocabParallelEmbedding) else weight.numel()


def _streamed(model: nn.Module) -> Iterator[tuple[nn.Module, nn.Parameter]]:
    """Yield the weights that are used as the files have them."""
    methods = UnquantizedLinearMethod | UnquantizedEmbeddingMethod
    for module in model.modules():
        is_plain = isinstance(getattr(module, "quant_method", None), methods)
        if is_plain and isinstance(module, LinearBase | VocabParallelEmbedding):
            weight = module.weight
            if isinstance(weight, nn.Parameter) and hasattr(weight, "weight_loader"):
                yield module, weight


def tensors_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return the module's own weights and buffers."""
    return {
        **dict(module.named_parameters(recurse=False)),
        **dict(module.named_buffers(recurse=False)),
    }


def place(model: nn.Module, move: Callable[[nn.Module, torch.Tensor], torch.Tensor]) -> None:
    """Move a model's weights and buffers."""
    placed: dict[torch.Tensor, torch.Tensor] = {}  # some weights are in two modules
    for module in model.modules():
        for name, tensor in tensors_of(module).items():
            if tensor not in placed:
                moved = move(module, tensor)
                if isinstance(tensor, nn.Parameter):
                    moved = nn.Parameter(moved, requires_grad=False)
                placed[tensor] = moved
            setattr(module, name, placed[tensor])
    for module in model.modules():
        impl = getattr(module, "impl", None)
        if isinstance(impl, XlaGpuAttention) and impl.sinks is not None:
            impl.sinks = placed[impl.sinks]
