"""A model's weights on their way from the files to the devices.

A host may have less memory than a model's weights need. So each layer's weights are sent to the
devices once all of them have been read, and their host memory is freed. Before they are read, they
take no memory, because the operating system allocates it when a weight is written.
"""

from __future__ import annotations

import functools
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import psutil
import torch
import torch_xla.core.xla_model as xm
from torch import nn
from vllm.attention import Attention
from vllm.model_executor.layers.fused_moe import FusedMoE
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.layers.vocab_parallel_embedding import (
    UnquantizedEmbeddingMethod,
    VocabParallelEmbedding,
)
from vllm.model_executor.model_loader import dummy_loader, weight_utils

from vllm_xla_gpu import moe
from vllm_xla_gpu.attention import XlaGpuAttention
from vllm_xla_gpu.limits import UnsupportedError
from vllm_xla_gpu.mla import XlaGpuMla

if TYPE_CHECKING:
    from vllm_xla_gpu.tensor_parallel import Devices

_MOST_THREADS = 8
# The number of bytes that may be on their way at once: a part of the free memory, within limits.
_WAITING_PART, _LEAST_WAITING, _MOST_WAITING = 1 / 16, 2**29, 2**33

# A part of a weight: the shards of the devices and along which dimension, or the whole and None.
Part = tuple[list[torch.Tensor], int | None]


class Placement:
    """Brings a layer's weights to the devices, in the form in which they are used."""

    def __init__(self, device: torch.device, devices: Devices | None) -> None:
        """Initialize for a device, or for the devices that share the model."""
        self._device, self._devices = device, devices

    def arrange(self, layer: nn.Module) -> Sequence[nn.Module]:
        """Process a layer whose weights have been read; return the modules that hold weights."""
        process_layer(layer)
        if not isinstance(layer, FusedMoE):
            return [layer]
        moe.divide_layer(layer, 1 if self._devices is None else self._devices.count)
        return list(layer.sharded)

    def parts(self, layer: nn.Module) -> list[Part]:
        """Return the parts of the layer's weight on the devices. May be called in any thread."""
        if self._devices is None:
            return [([layer.weight.data], None)]
        return self._devices.parts(layer)

    def send(self, part: Part) -> torch.Tensor:
        """Return the part on the devices."""
        if self._devices is None:
            return xm.send_cpu_data_to_device(part[0], self._device)[0]
        return self._devices.send_part(part)


class _Layer:
    """Weights that go to the devices together.

    Attributes:
        module: the layer.
        left, unbegun: for each weight, how many values are not read yet, and for how many reading
            has not begun.
        is_arranged: whether the layer has been changed, so that no more weights can be read.
    """

    def __init__(self, module: nn.Module, weights: Iterable[nn.Parameter]) -> None:
        self.module, self.is_arranged = module, False
        self.left = {weight: _count(module, weight) for weight in weights}
        self.unbegun = dict(self.left)

    @property
    def is_read(self) -> bool:
        return all(left <= 0 for left in self.left.values())

    @property
    def nbytes(self) -> int:
        return sum(weight.nbytes for weight in self.left)


class WeightStream:
    """Read weights in threads, and send those of each layer when they are complete.

    vLLM's loaders of weights are called as before. Those of linear layers, embeddings and experts
    return before they have run.

    Attributes:
        sent: the parts of weights that are on the devices. The weights themselves then have neither
            values nor memory.
        arranged: the layers that `Placement.arrange` has changed.
    """

    def __init__(self, model: nn.Module, placement: Placement) -> None:
        self.sent: dict[torch.Tensor, list[torch.Tensor]] = {}
        self.arranged: set[nn.Module] = set()
        self._model, self._placement = model, placement
        self._threads = ThreadPoolExecutor(
            min(_MOST_THREADS, len(os.sched_getaffinity(0))),
            "weights",
            # Grad mode is a setting of each thread.
            initializer=torch.set_grad_enabled,
            initargs=(False,),
        )
        # The threads' tasks: for each, its bytes in transit, and the function that receives its
        # result.
        self._tasks: deque[tuple[Future[Any], int, Callable[[Any], None]]] = deque()
        self._waiting = 0  # bytes of them
        free = int(psutil.virtual_memory().available * _WAITING_PART)
        self._most_waiting = min(max(free, _LEAST_WAITING), _MOST_WAITING)
        self._layers = [_Layer(module, weights) for module, weights in _streamed(model)]
        for layer in self._layers:
            for weight in layer.left:
                loader = weight.weight_loader
                weight.weight_loader = functools.partial(self._read, layer, weight, loader)

    def _read(
        self,
        layer: _Layer,
        weight: nn.Parameter,
        loader: Callable[..., object],
        parameter: nn.Parameter,
        values: torch.Tensor,
        *arguments: object,
        return_success: bool = False,
        **options: object,
    ) -> bool | None:
        """Replace the weight's loader, which writes values from a file to all or a part of it."""
        if layer.unbegun[weight] <= 0:  # the files have it twice, and the last counts
            self._finish_all()
            self._read_again(layer)
        layer.unbegun[weight] -= values.numel()

        def finish(_: object) -> None:
            layer.left[weight] -= values.numel()
            if layer.is_read:
                self._finish_layer(layer)

        task = self._threads.submit(loader, parameter, values, *arguments, **options)
        self._add(task, values.nbytes, finish)
        self._finish_some()
        return True if return_success else None

    def _read_again(self, layer: _Layer) -> None:
        """Forget the values that have been read of a layer, if it has been sent."""
        if not layer.is_read:
            return
        if layer.is_arranged:
            raise UnsupportedError(
                "the model's files contain weights of an expert or of a quantized layer twice; "
                "remove the duplicate files"
            )
        for weight in layer.left:
            del self.sent[weight]
            weight.data = torch.empty(weight.shape, dtype=weight.dtype)
            layer.unbegun[weight] = layer.left[weight] = _count(layer.module, weight)

    def _finish_layer(self, layer: _Layer, _: object = None) -> None:
        """Send a layer whose weights have been read."""
        owners = self._placement.arrange(layer.module)
        weights = [owner.weight for owner in owners]
        self.arranged.add(layer.module)
        own = set(layer.module.parameters())
        for weight in layer.left:
            if weight not in own:
                layer.is_arranged = True
                _free(weight)

        def parts() -> list[list[Part]]:
            return [self._placement.parts(owner) for owner in owners]

        def send(parts: list[list[Part]]) -> None:
            # Send from this thread, because torch_xla is faster as long as only one thread uses it.
            for weight, its_parts in zip(weights, parts, strict=True):
                self.sent[weight] = [self._placement.send(part) for part in its_parts]
                _free(weight)

        self._add(self._threads.submit(parts), sum(w.nbytes for w in weights), send)

    def fill(self, write: Callable[[nn.Module], object]) -> None:
        """Write all weights without files.

        Args:
            write: writes all parameters and buffers of a module; called in any thread.
        """
        streamed = {weight for layer in self._layers for weight in layer.left}
        tensors = self._model.state_dict(keep_vars=True).values()
        others = _holder(tensor for tensor in tensors if tensor not in streamed)
        for layer in self._layers:
            task = self._threads.submit(write, _holder(layer.left))
            self._add(task, layer.nbytes, functools.partial(self._finish_layer, layer))
            self._finish_some()
        write(others)

    def _add(self, task: Future, num_bytes: int, finish: Callable[[Any], None]) -> None:
        self._tasks.append((task, num_bytes, finish))
        self._waiting += num_bytes

    def _finish_some(self) -> None:
        """Pass on the results of finished tasks, and wait while too many bytes are on their way."""
        while self._tasks and (self._waiting > self._most_waiting or self._tasks[0][0].done()):
            self._finish_one()

    def _finish_one(self) -> None:
        task, num_bytes, finish = self._tasks.popleft()
        self._waiting -= num_bytes
        finish(task.result())

    def _finish_all(self) -> None:
        while self._tasks:
            self._finish_one()

    def finish(self) -> None:
        """Wait until everything is read."""
        self._finish_all()
        self._threads.shutdown()


def _free(weight: torch.Tensor) -> None:
    weight.data = torch.empty(1, dtype=weight.dtype).expand(weight.shape)


def _holder(tensors: Iterable[torch.Tensor]) -> nn.Module:
    """Return a module that has these tensors, each once."""
    holder = nn.Module()
    for i, tensor in enumerate(dict.fromkeys(tensors)):
        if isinstance(tensor, nn.Parameter):
            holder.register_parameter(f"tensor{i}", tensor)
        else:
            holder.register_buffer(f"tensor{i}", tensor)
    return holder


def _count(module: nn.Module, weight: torch.Tensor) -> int:
    """Return the number of values in the files: a padded embedding has rows that no file has."""
    return 1 if isinstance(module, VocabParallelEmbedding) else weight.numel()


def _streamed(model: nn.Module) -> Iterator[tuple[nn.Module, list[nn.Parameter]]]:
    """Yield layers, each with the weights that are sent to the devices once all are read."""
    impls = [getattr(module, "impl", None) for module in model.modules()]
    # Not streamed, because their form on the devices depends on the weights of several layers.
    of_latents = {impl.kv_b_proj for impl in impls if isinstance(impl, XlaGpuMla)}
    found: set[torch.Tensor] = set()
    for module in model.modules():
        if module in of_latents:
            continue
        weights = [w for w in _loaded(module) if w not in found]
        found.update(weights)
        if weights:
            yield module, weights


def _loaded(module: nn.Module) -> list[nn.Parameter]:
    """Return the layer's weights without biases, but with scales; none if it is not streamed."""
    own = {
        name: p for name, p in module.named_parameters(recurse=False) if hasattr(p, "weight_loader")
    }
    if isinstance(module, FusedMoE):
        # Not streamed with input scales, because files may have more of their values than are used.
        return [] if any("input_scale" in name for name in own) else list(own.values())
    if not isinstance(module, LinearBase | VocabParallelEmbedding):
        return []
    is_plain = isinstance(module.quant_method, UnquantizedLinearMethod | UnquantizedEmbeddingMethod)
    return [p for name, p in own.items() if name == "weight" or not (is_plain or name == "bias")]


def process(model: nn.Module, dtype: torch.dtype, done: set[nn.Module]) -> None:
    """Call the layers' methods that process loaded weights.

    Args:
        model: the model.
        dtype: the dtype of activations.
        done: layers whose methods have already been called.
    """
    for module in model.modules():
        if module not in done:
            process_layer(module)
    for module in model.modules():
        if isinstance(module, Attention):  # for latents, of layers that are processed
            module.process_weights_after_loading(dtype)


def process_layer(layer: nn.Module) -> None:
    """Call the layer's method that processes loaded weights."""
    method = getattr(layer, "quant_method", None)
    if isinstance(method, QuantizeMethodBase):
        method.process_weights_after_loading(layer)


def random_writer() -> Callable[[nn.Module], object]:
    """Return a writer for load_format="dummy"; vLLM's own accepts only tensors on devices."""
    write = dummy_loader.initialize_dummy_weights
    return _draw if write is weight_utils.initialize_dummy_weights else write


def _draw(model: nn.Module, low: float = -1e-3, high: float = 1e-3, seed: int = 1234) -> None:
    """Write the same random values as vLLM's function."""
    for tensor in model.state_dict().values():
        if tensor.is_floating_point():
            generator = torch.Generator().manual_seed(seed)
            dtype = torch.float16 if tensor.itemsize == 1 else tensor.dtype
            values = torch.rand(tensor.shape, generator=generator, dtype=dtype)
            tensor.copy_((high - low) * values + low)


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
