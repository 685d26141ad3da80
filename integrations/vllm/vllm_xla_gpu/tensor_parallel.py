"""Tensor parallelism: shard weights and caches over several devices.

XLA's partitioner divides the program (SPMD); vLLM sees one device. Weights are sharded as in
Megatron-LM (https://arxiv.org/abs/1909.08053), so that a layer needs two all-reduces, and caches by
kv heads, as the attention operators are sharded.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from torch import nn
from torch.nn import functional
from vllm.logger import init_logger
from vllm.lora.layers.base_linear import BaseLinearLayerWithLoRA
from vllm.model_executor.layers.fused_moe import FusedMoE
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.linear import (
    ColumnParallelLinear,
    LinearMethodBase,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    RowParallelLinear,
    UnquantizedLinearMethod,
)
from vllm.model_executor.layers.vocab_parallel_embedding import (
    UnquantizedEmbeddingMethod,
    VocabParallelEmbedding,
)

from torch_xla_ext import ops, sharding
from torch_xla_ext.ops.all_reduce import MAX_ROW_BYTES, WORKSPACE_BYTES
from vllm_xla_gpu import fp8, moe, weights
from vllm_xla_gpu.deferred import Operand, PendingSum
from vllm_xla_gpu.limits import UnsupportedError
from vllm_xla_gpu.linear import linear
from vllm_xla_gpu.mla import XlaGpuMla
from vllm_xla_gpu.processes import Peers
from vllm_xla_gpu.sharded_linear import ColumnsMethod, SeparateColumnsMethod, ShardedLinear

_AXIS = "model"
# Bytes of a row-parallel layer's sum, above which NCCL's all-reduce is faster than one exchange.
_MOST_IN_ONE_EXCHANGE = 512 * 1024
_MOST_EXACT_IN_FLOAT32 = 2**24  # of consecutive integers

logger = init_logger("vllm.xla_gpu")


class Devices:
    """The devices that share tensors: those of this process, and of its peers, if any.

    Attributes:
        count: the number of devices.
        peers: the other processes, if any.
    """

    def __init__(self, count: int, peers: Peers | None = None) -> None:
        """Initialize the devices; call this before the first device is used.

        Raises:
            UnsupportedError: the number of devices differs from `count`.
        """
        setting = f"CUDA_VISIBLE_DEVICES={','.join(map(str, range(count)))}"
        if os.environ["PJRT_DEVICE"] == "CPU":
            setting = f"CPU_NUM_DEVICES={count}"
            os.environ.setdefault(*setting.split("="))
        xr.use_spmd()
        found = xr.global_runtime_device_count()
        if found != count and peers is not None:
            raise UnsupportedError(
                f"tensor_parallel_size={count}, but the {peers.count} processes have {found} "
                f"devices in all; set tensor_parallel_size={found}, or start with torchrun as many "
                "processes as there are GPUs to use"
            )
        if found != count:
            raise UnsupportedError(
                f"tensor_parallel_size={count}, but this process has {found} devices; start it "
                f"with {setting}"
            )
        self.count, self.peers = count, peers
        self._mesh = xs.Mesh(np.arange(count), (count,), (_AXIS,))

    @functools.cached_property
    def _peer_memory(self) -> sharding.PeerMemory | None:
        """The memory for `ops.all_reduce`; None if it is unavailable or not needed.

        XLA:CPU may run two programs at once, in a different order on each device.
        """
        if os.environ["PJRT_DEVICE"] == "CPU" or self.count > 8 or self.peers is not None:
            return None
        try:
            return sharding.PeerMemory(self._mesh, WORKSPACE_BYTES)
        except RuntimeError as error:
            logger.warning("Sums over GPUs are computed by NCCL, which is slower: %s.", error)
            return None

    def sums_in_one_exchange(self, num_bytes: int) -> bool:
        """Return whether `ops.all_reduce` is the fastest way to sum this many bytes."""
        return num_bytes <= _MOST_IN_ONE_EXCHANGE and self._peer_memory is not None

    def place(self, tensor: torch.Tensor, dim: int | None = None) -> torch.Tensor:
        """Move the tensor to the devices, divided along a dimension or replicated."""
        if not self._divides(tensor, dim):
            dim = None
        result = tensor.to(torch_xla.device())
        if not sharding.is_marked(result):
            xs.mark_sharding(result, self._mesh, _partition(tensor, dim))
        return result

    def send(
        self, tensors: Sequence[torch.Tensor], dims: Sequence[int | None]
    ) -> list[torch.Tensor]:
        """Move host tensors to the devices as `place` does, in one transfer."""
        specs = [
            xs.ShardingSpec(
                self._mesh, _partition(tensor, dim if self._divides(tensor, dim) else None)
            )
            for tensor, dim in zip(tensors, dims, strict=True)
        ]
        return sharding.send(tensors, specs)

    def summed(
        self, function: Callable[..., torch.Tensor], operands: Sequence[Operand]
    ) -> torch.Tensor:
        """Return the sum over the devices of the function's results, which are matrices.

        Args:
            function: receives the device's shards of the operands.
            operands: tensors, and the dimensions along which the devices divide them; None if each
                device needs the whole tensor.
        """
        result = self._call_on_device(function, operands)
        if self.sums_in_one_exchange(result.nbytes):
            return self._exchanged(result)
        results = xs.disable_manual_sharding(
            result[None],
            (_AXIS, None, None),
            torch.Size((self.count, *result.shape)),
            mesh=self._mesh,
        )
        return results.global_tensor.sum(0)

    def embedding(self, tokens: torch.Tensor, weight: torch.Tensor) -> torch.Tensor | None:
        """Return the weight's rows for int tokens [n]; the weight is divided along dimension 0.

        None if XLA should compute the sum over the devices.
        """
        num_bytes = tokens.numel() * weight.shape[1] * weight.element_size()
        if not self._divides(weight, 0) or not self.sums_in_one_exchange(num_bytes):
            return None
        tokens, rows = self._of_device([(tokens, (None,)), (weight, (_AXIS, None))])
        rows_before = self._row_of_device[0, 0] * rows.shape[0]
        index = tokens - rows_before
        is_own = (index >= 0) & (index < rows.shape[0])
        own = functional.embedding(index.clamp(0, rows.shape[0] - 1), rows)
        return self._exchanged(torch.where(is_own[:, None], own, torch.zeros_like(own)))

    def argmax(self, logits: torch.Tensor) -> torch.Tensor:
        """Return int64 [n], the first index of the largest of each row of logits [n, vocabulary].

        The vocabulary is divided, and the devices exchange their largest logits and the indices in
        one sum, to which each device contributes its own values, and zeros for the others. With
        XLA's all-gathers, each step would rewrite its CUDA graphs.
        """
        num_rows, vocabulary = logits.shape
        num_bytes = num_rows * self.count * 2 * torch.float32.itemsize
        if (
            not self._divides(logits, 1)
            or vocabulary > _MOST_EXACT_IN_FLOAT32
            or not self.sums_in_one_exchange(num_bytes)
        ):
            return logits.argmax(-1)
        (own,) = self._of_device([(logits, (None, _AXIS))])
        rank = self._row_of_device[0, 0]
        values, indices = own.max(-1)
        largest = torch.stack([values.float(), (indices + rank * own.shape[1]).float()], dim=-1)
        is_own = torch.arange(self.count, device=rank.device) == rank
        largest = torch.where(
            is_own[None, :, None], largest[:, None], torch.zeros_like(largest)[:, None]
        )
        values, indices = (
            self._exchanged(largest.flatten(1)).unflatten(1, (self.count, 2)).unbind(-1)
        )
        return indices.gather(1, values.argmax(-1, keepdim=True))[:, 0].long()

    def normed_sum(
        self,
        function: Callable[..., torch.Tensor],
        operands: Sequence[Operand],
        residual: torch.Tensor,
        norm: RMSNorm,
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return the norm of a residual plus `summed`, and this sum; None if no kernel supports it.

        Args:
            function: as for `summed`.
            operands: as for `summed`; the results have the dtype of the first one.
            residual: [num_tokens, width].
            norm: the norm, for rows of this width.
        """
        is_plain = norm.has_weight and norm.variance_size_override is None
        dtypes = {operands[0][0].dtype, residual.dtype, norm.weight.dtype}
        row_bytes = norm.weight.nbytes
        if not is_plain or len(dtypes) > 1 or row_bytes % 16 or row_bytes > MAX_ROW_BYTES:
            return None
        if not self.sums_in_one_exchange(residual.nbytes):
            return None
        residual, factors = self._of_device([(residual, (None, None)), (norm.weight, (None,))])
        results = ops.all_reduce_rms_norm(
            self._call_on_device(function, operands),
            residual,
            factors,
            self._row_of_device,
            norm.variance_epsilon,
        )
        return tuple(map(self._of_all, results))

    def _call_on_device(
        self, function: Callable[..., torch.Tensor], operands: Sequence[Operand]
    ) -> torch.Tensor:
        shards = self._of_device([(tensor, _partition(tensor, dim)) for tensor, dim in operands])
        return function(*shards)

    def _of_device(
        self, operands: Sequence[tuple[torch.Tensor, tuple[str | None, ...]]]
    ) -> list[torch.Tensor]:
        """Return each device's shards of tensors, which are given with their partition specs."""
        return [
            xs.enable_manual_sharding(tensor, partition, mesh=self._mesh).global_tensor
            for tensor, partition in operands
        ]

    @property
    def _row_of_device(self) -> torch.Tensor:
        """The device's row of `PeerMemory.table`, [1, 1 + count]."""
        (row,) = self._of_device([(self._peer_memory.table, (_AXIS, None))])
        return row

    def _exchanged(self, matrix: torch.Tensor) -> torch.Tensor:
        """Return the sum over the devices of each device's matrix."""
        return self._of_all(ops.all_reduce(matrix, self._row_of_device))

    def _of_all(self, matrix: torch.Tensor) -> torch.Tensor:
        """Return a matrix that each device has, usable outside of the region of manual sharding."""
        return xs.disable_manual_sharding(
            matrix, (None, None), matrix.shape, mesh=self._mesh
        ).global_tensor

    def weights_of_one(self, model: nn.Module) -> int:
        """Return the bytes of a model's weights and adapters on each device."""
        sizes: dict[torch.Tensor, int] = {}
        for module in model.modules():
            dim = _divided_dimension(module)
            for tensor in weights.tensors_of(module).values():
                sizes[tensor] = self._bytes_of_one(tensor, dim)
            if isinstance(module, BaseLinearLayerWithLoRA):
                for part, dim in zip(stacks(module), adapter_dimensions(module), strict=True):
                    sizes |= {stack: self._bytes_of_one(stack, dim) for stack in part}
        return sum(sizes.values())

    def parts(self, module: nn.Module) -> list[weights.Part]:
        """Return the parts that `place_model` makes of a module's weight."""
        weight, parts = module.weight.data, [module.weight.data]
        if isinstance(module, ShardedLinear) and module.turns > 1:
            return [(moe.shards_in_turn(weight, module.turns), module.dim)]
        if isinstance(module, QKVParallelLinear | MergedColumnParallelLinear):
            parts = _parts(weight, module.output_sizes, self.count)
        dim = _divided_dimension(module)
        return [self._part(part, dim) for part in parts]

    def _part(self, part: torch.Tensor, dim: int | None) -> weights.Part:
        if not self._divides(part, dim):
            return [part], None
        return [shard.contiguous() for shard in part.chunk(self.count, dim)], dim

    def send_part(self, part: weights.Part) -> torch.Tensor:
        """Send one of the `parts` to the devices."""
        shards, dim = part
        if dim is None:
            return self.send(shards, [None])[0]
        return sharding.join(shards, self._mesh, dim)

    def place_model(
        self, model: nn.Module, sent: Mapping[torch.Tensor, Sequence[torch.Tensor]]
    ) -> None:
        """Move a model whose weights and adapters are on the host.

        Args:
            model: the model.
            sent: the `parts`, on the devices, of weights whose host values have been freed.
        """
        for module in model.modules():
            if isinstance(module, BaseLinearLayerWithLoRA):
                self._place_adapters(module)
            if isinstance(module, QKVParallelLinear | MergedColumnParallelLinear):
                _split(module, self.count, sent.get(module.weight))
            elif self._is_row_parallel(module):
                module.quant_method = _SummedMethod(self)
            elif isinstance(module, VocabParallelEmbedding) and isinstance(
                module.quant_method, UnquantizedEmbeddingMethod
            ):
                module.quant_method = _SummedEmbedding(self)
            elif isinstance(module, FusedMoE):
                module.devices = self
            elif type(module) is RMSNorm:
                module._forward_method = _norm_of_sums(module)

        def move(module: nn.Module, tensor: torch.Tensor) -> torch.Tensor:
            if tensor in sent:
                return sent[tensor][0]
            return self.place(tensor.data, _divided_dimension(module))

        weights.place(model, move)
        for module in model.modules():
            impl = getattr(module, "impl", None)
            if isinstance(impl, XlaGpuMla):
                impl.divide_heads = functools.partial(self.place, dim=1)

    def _place_adapters(self, layer: BaseLinearLayerWithLoRA) -> None:
        base = layer.base_layer
        if isinstance(base, QKVParallelLinear | MergedColumnParallelLinear):
            # Some models' adapters have a single matrix for all parts.
            (whole, *_) = layer.lora_b_stacked
            if len(layer.lora_b_stacked) == 1:
                layer.lora_b_stacked = whole.split(base.output_sizes, dim=2)
        elif isinstance(base, RowParallelLinear) and self._divides(base.weight, 1):
            base.quant_method = _SummedMethod(self, has_adapter=True)
        layer.lora_a_stacked, layer.lora_b_stacked = (
            tuple(self.place(stack, dim) for stack in part)
            for part, dim in zip(stacks(layer), adapter_dimensions(layer), strict=True)
        )

    def _is_row_parallel(self, module: nn.Module) -> bool:
        """Return whether `_SummedMethod` may compute the layer."""
        return (
            isinstance(module, RowParallelLinear)
            and isinstance(module.quant_method, UnquantizedLinearMethod)
            and self._divides(module.weight, 1)
        )

    def _bytes_of_one(self, tensor: torch.Tensor, dim: int | None) -> int:
        return tensor.nbytes // (self.count if self._divides(tensor, dim) else 1)

    def _divides(self, tensor: torch.Tensor, dim: int | None) -> bool:
        return dim is not None and dim < tensor.dim() and tensor.shape[dim] % self.count == 0


def _partition(tensor: torch.Tensor, dim: int | None) -> tuple[str | None, ...]:
    return tuple(_AXIS if i == dim else None for i in range(tensor.dim()))


def stacks(layer: BaseLinearLayerWithLoRA) -> tuple[tuple[torch.Tensor, ...], ...]:
    """Return the matrices A [slots, 1, rank, in_features] and B [slots, 1, out_features, rank]."""
    return layer.lora_a_stacked, layer.lora_b_stacked


def adapter_dimensions(layer: BaseLinearLayerWithLoRA) -> tuple[int | None, int | None]:
    """Return the dimensions along which A and B are divided, as their weight is."""
    if isinstance(layer.base_layer, RowParallelLinear):
        return 3, None
    return None, 2 if isinstance(layer.base_layer, ColumnParallelLinear) else None


def _divided_dimension(module: nn.Module) -> int | None:
    """Return the divided dimension of a module's weights and biases; None if replicated."""
    if isinstance(module, ShardedLinear):
        return module.dim
    if isinstance(module, ColumnParallelLinear | VocabParallelEmbedding):
        return 0
    # For experts this only affects sizes, because moe.divide removes their weights.
    return 1 if isinstance(module, RowParallelLinear | FusedMoE) else None


def _norm_of_sums(norm: RMSNorm) -> Callable[..., Any]:
    """Return the norm's `forward`, in one kernel with the sum of a row-parallel layer."""
    forward = norm._forward_method

    def forward_of_sum(
        x: torch.Tensor | PendingSum, residual: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        if isinstance(x, PendingSum) and isinstance(residual, torch.Tensor):
            results = x.normed(residual, norm)
            if results is not None:
                return results
        return forward(x, residual)

    return forward_of_sum


class _SummedMethod(LinearMethodBase):
    """A row-parallel layer whose sum over the devices is one exchange if it is small."""

    def __init__(self, devices: Devices, *, has_adapter: bool = False) -> None:
        """Take the devices, and whether vLLM's layer adds an adapter's product to this one."""
        self._devices = devices
        self._has_adapter = has_adapter

    def create_weights(self, *args: object, **kwargs: object) -> None:
        raise NotImplementedError

    def apply(
        self, layer: RowParallelLinear, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor | PendingSum:
        """Return x [num_tokens, in_features] times the layer's weight, plus its bias."""
        num_bytes = x.shape[0] * layer.weight.shape[0] * x.element_size()
        if not self._has_adapter and not self._devices.sums_in_one_exchange(num_bytes):
            return linear(x, layer.weight, bias)
        shape = torch.Size((*x.shape[:-1], layer.weight.shape[0]))
        total = PendingSum(self._devices, linear, [(x, 1), (layer.weight, 1)], shape)
        return total if bias is None else total + bias


class _SummedEmbedding(UnquantizedEmbeddingMethod):
    """An embedding whose sum over the devices is one exchange if it is small."""

    def __init__(self, devices: Devices) -> None:
        self._devices = devices

    def embedding(self, layer: VocabParallelEmbedding, tokens: torch.Tensor) -> torch.Tensor:
        """Return [num_tokens, width], the rows of the layer's weight."""
        summed = self._devices.embedding(tokens, layer.weight)
        return super().embedding(layer, tokens) if summed is None else summed


def _split(
    layer: QKVParallelLinear | MergedColumnParallelLinear,
    count: int,
    sent: Sequence[torch.Tensor] | None = None,
) -> None:
    """Split a layer; `sent` are the parts of a weight that has been sent already."""
    if layer.bias is not None and layer.skip_bias_add:
        raise UnsupportedError(
            f"vllm-xla-gpu does not support tensor_parallel_size above 1 for {layer.prefix}, whose "
            "bias is added later; serve the model on one GPU"
        )
    sizes = layer.output_sizes
    parts = _parts(layer.weight.data, sizes, count) if sent is None else sent
    scale = getattr(layer, "weight_scale", None)
    of_blocks = scale is not None and scale.dim() == 2
    scale_sizes = [size // fp8.BLOCK[0] for size in sizes] if of_blocks else sizes
    biases, scales = (
        [None] * len(parts) if tensor is None else _parts(tensor.data, its_sizes, count)
        for tensor, its_sizes in ((layer.bias, sizes), (scale, scale_sizes))
    )
    input_scale = getattr(layer, "input_scale", None)
    layer.sharded = nn.ModuleList(
        ShardedLinear(weight, bias, weight_scale=scale, input_scale=input_scale)
        for weight, bias, scale in zip(parts, biases, scales, strict=True)
    )
    if _are_by_device(sizes, count):
        layer.quant_method = ColumnsMethod(sizes, count)
    else:
        layer.quant_method = SeparateColumnsMethod()
    layer.weight = layer.bias = layer.weight_scale = layer.input_scale = None


def _are_by_device(sizes: Sequence[int], count: int) -> bool:
    """Return whether rows of these sizes are one tensor, in order of devices."""
    return all(size % count == 0 for size in sizes)


def _parts(tensor: torch.Tensor, sizes: Sequence[int], count: int) -> list[torch.Tensor]:
    """Return the rows in order of devices: for each device, its part of each of the sizes.

    Return one tensor per size if they cannot be divided equally among the devices.
    """
    parts = list(tensor.split(list(sizes)))
    if not _are_by_device(sizes, count):
        return parts
    return [torch.cat([part.unflatten(0, (count, -1)) for part in parts], dim=1).flatten(0, 1)]
