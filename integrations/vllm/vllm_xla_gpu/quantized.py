"""Run vLLM's linear and MoE layers with fp8 weights, and experts in MXFP4.

vLLM's own layers call its CUDA operators. Here all kinds of checkpoints are brought into one form:
a weight [out_features, in_features], a scale for each output feature or block, and optionally a
scale for the inputs. fp8.linear multiplies; moe.py does so for experts.
"""

import functools
from collections.abc import Callable, Sequence

import torch
import torch_xla
from torch import nn
from torch.overrides import TorchFunctionMode
from vllm.model_executor.layers.fused_moe import FusedMoE, FusedMoEConfig, FusedMoEMethodBase
from vllm.model_executor.layers.linear import (
    ColumnParallelLinear,
    LinearBase,
    RowParallelLinear,
    UnquantizedLinearMethod,
)
from vllm.model_executor.layers.quantization import fp8 as of_vllm
from vllm.model_executor.layers.quantization import mxfp4
from vllm.model_executor.layers.quantization.compressed_tensors import compressed_tensors_moe
from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors import (
    CompressedTensorsConfig,
    CompressedTensorsLinearMethod,
)
from vllm.model_executor.layers.quantization.compressed_tensors.schemes import (
    CompressedTensorsW8A8Fp8,
)

from vllm_xla_gpu import fp8
from vllm_xla_gpu.limits import UnsupportedError


class Fp8LinearMethod(of_vllm.Fp8LinearMethod):
    """The method for quantization="fp8": bfloat16 checkpoints, or fp8 with a scale per weight.

    vLLM chooses by its class name how weights are loaded.
    """

    def process_weights_after_loading(self, layer: LinearBase) -> None:
        if self.block_quant:
            _keep(layer, layer.weight.data, layer.weight_scale_inv.data, None)
            del layer.weight_scale_inv
            return
        if self.quant_config.is_checkpoint_fp8_serialized:
            _keep(layer, layer.weight.data, _of_outputs(layer), _of_inputs(layer))
            return
        weight = layer.weight.data
        # Divide on the host, because XLA:GPU does not round quotients exactly, which would change
        # 3% of the weights.
        scale = fp8.scale_of(weight.abs().amax().cpu())
        rounded = fp8.quantized(weight, scale)
        _keep(layer, rounded, scale.to(weight.device).expand(len(weight)), None)

    def apply(
        self, layer: LinearBase, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        return fp8.linear(x, layer.weight, layer.weight_scale, layer.input_scale, bias)


class XlaW8A8Fp8(CompressedTensorsW8A8Fp8):
    """The scheme for compressed-tensors: fp8 with scales per weight, output feature or block."""

    def process_weights_after_loading(self, layer: LinearBase) -> None:
        of_blocks = self.weight_block_size is not None
        scale = layer.weight_scale.data if of_blocks else _of_outputs(layer)
        _keep(layer, layer.weight.data, scale, _of_inputs(layer))

    def apply_weights(
        self, layer: LinearBase, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        return fp8.linear(x, layer.weight, layer.weight_scale, layer.input_scale, bias)


class Fp8MoEMethod(of_vllm.Fp8MoEMethod):
    """The method for quantization="fp8" in MoE layers, which moe.py computes."""

    def process_weights_after_loading(self, layer: FusedMoE) -> None:
        if not self.quant_config.is_checkpoint_fp8_serialized:
            for name in ("w13", "w2"):
                weight = getattr(layer, f"{name}_weight").data
                scale = fp8.scale_of(weight.abs().amax((1, 2)).cpu()).to(weight.device)
                rounded = fp8.quantized(weight, scale[:, None, None])
                setattr(layer, f"{name}_weight", _parameter(rounded))
                setattr(layer, f"{name}_weight_scale", _parameter(scale))
                _sync(rounded)
        _keep_experts(layer)


class CompressedTensorsW8A8Fp8MoEMethod(compressed_tensors_moe.CompressedTensorsW8A8Fp8MoEMethod):
    """The method for fp8 MoE layers in checkpoints of compressed-tensors."""

    def process_weights_after_loading(self, layer: FusedMoE) -> None:
        _keep_experts(layer)


def compressed_experts(
    config: CompressedTensorsConfig, layer: FusedMoE
) -> CompressedTensorsW8A8Fp8MoEMethod:
    """Return the method of an MoE layer; refuse checkpoints that are not in fp8."""
    scheme = config.target_scheme_map.get("Linear", {})
    weights, inputs = scheme.get("weights"), scheme.get("input_activations")
    if weights is None or inputs is None or not config._is_fp8_w8a8(weights, inputs):
        raise UnsupportedError(
            "vllm-xla-gpu does not support an MoE layer whose quantized weights or inputs "
            "are not in fp8; serve a checkpoint in fp8, or one of bfloat16"
        )
    return CompressedTensorsW8A8Fp8MoEMethod(config, layer.moe_config)


class Mxfp4MoEMethod(mxfp4.Mxfp4MoEMethod):
    """The method for gpt-oss's own checkpoints, whose weights stay unchanged."""

    def __init__(self, moe: FusedMoEConfig) -> None:
        FusedMoEMethodBase.__init__(self, moe)  # vLLM's own one needs a kernel for CUDA
        self.mxfp4_backend = mxfp4.Mxfp4Backend.NONE

    def process_weights_after_loading(self, layer: FusedMoE) -> None:
        pass


class _OnHost(TorchFunctionMode):
    """A mode in which `.cuda()` and similar calls leave tensors where they are."""

    def __torch_function__(
        self, function: Callable, types: object, args: tuple = (), kwargs: dict | None = None
    ) -> object:
        return args[0] if function is torch.Tensor.cuda else function(*args, **(kwargs or {}))


def load_without_cuda(load: Callable[..., object]) -> Callable[..., object]:
    """Return a function that loads weights without sending them to CUDA first, as vLLM's does."""

    @functools.wraps(load)
    def load_weights(*args: object, **options: object) -> object:
        with _OnHost():
            return load(*args, **options)

    return load_weights


def _keep_experts(layer: FusedMoE) -> None:
    """Bring the scales of experts to the shapes of `scaled_grouped_linear`."""
    for name in ("w13", "w2"):
        stored = getattr(layer, f"{name}_weight_scale_inv", None)
        if stored is None:
            stored = getattr(layer, f"{name}_weight_scale")
        else:
            delattr(layer, f"{name}_weight_scale_inv")
        scale, rows = stored.data, getattr(layer, f"{name}_weight").shape[1]
        if scale.dim() < 3:  # of each expert, or of its gate and its up projection
            parts = scale.reshape(len(scale), -1, 1)
            scale = parts.expand(-1, -1, rows // parts.shape[1]).flatten(1)[..., None]
        setattr(layer, f"{name}_weight_scale", _parameter(scale))
        input_scale = getattr(layer, f"{name}_input_scale", None)
        if input_scale is not None:
            setattr(layer, f"{name}_input_scale", _parameter(input_scale.data.max()))


def _of_outputs(layer: LinearBase) -> torch.Tensor:
    """Return one scale per output feature, from the scales of the layer or its parts."""
    scale = layer.weight_scale.data
    if scale.dim() == 2:
        return scale[:, 0]
    # Scales of queries, keys and values; vLLM leaves unused ones negative.
    scale = torch.where(scale > 0, scale, scale[0])
    widths = zip(scale, layer.logical_widths, strict=True)
    return torch.cat([part.expand(width) for part, width in widths])


def _of_inputs(layer: LinearBase) -> torch.Tensor | None:
    """Return the largest input scale of the layer's parts, which have one input."""
    scale = getattr(layer, "input_scale", None)
    return None if scale is None else scale.data.max()


def _keep(
    layer: LinearBase,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    input_scale: torch.Tensor | None,
) -> None:
    layer.weight, layer.weight_scale = _parameter(weight), _parameter(weight_scale)
    layer.input_scale = None if input_scale is None else _parameter(input_scale)
    _sync(weight)


def _sync(weight: torch.Tensor) -> None:
    """Compute a pending weight now, which frees memory for the next one."""
    if weight.device.type == "xla":
        torch_xla.sync()


def _parameter(tensor: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(tensor.contiguous(), requires_grad=False)


def _can_divide(layer: nn.Module, method: object, num_devices: int) -> bool:
    """Return whether the devices can share the layer in whole blocks, if it has blocks."""
    sizes: Sequence[int] = []
    if isinstance(method, Mxfp4MoEMethod):
        return layer.w13_weight.shape[1] // 2 % (32 * num_devices) == 0
    if getattr(method, "weight_block_size", None) is None:
        return True
    if isinstance(layer, FusedMoE):
        sizes = [layer.intermediate_size_per_partition]
    elif isinstance(layer, RowParallelLinear):
        sizes = [layer.input_size]
    elif isinstance(layer, ColumnParallelLinear):
        sizes = layer.logical_widths
    return all(size % (fp8.BLOCK[0] * num_devices) == 0 for size in sizes)


def check(model: nn.Module, num_devices: int) -> None:
    """Raise UnsupportedError for a layer that vLLM's CUDA operators would compute.

    Also raise it for a layer whose scaled blocks cannot be divided among the devices.
    """
    for layer in model.modules():
        if not isinstance(layer, LinearBase | FusedMoE):
            continue
        method = layer.quant_method
        if isinstance(method, CompressedTensorsLinearMethod):
            method = layer.scheme
        block = getattr(method, "weight_block_size", None)
        if block is not None and list(block) != fp8.BLOCK:
            what = f"a scale of each block of {block}"
        elif num_devices > 1 and not _can_divide(layer, method, num_devices):
            what = f"blocks that {num_devices} devices cannot divide"
        elif isinstance(layer, FusedMoE) or isinstance(
            method, Fp8LinearMethod | XlaW8A8Fp8 | UnquantizedLinearMethod
        ):
            continue
        else:
            what = type(method).__name__
        name = layer.layer_name if isinstance(layer, FusedMoE) else layer.prefix
        raise UnsupportedError(
            f"vllm-xla-gpu does not support weights with {what} ({name}); serve a checkpoint in "
            "fp8 with one scale per weight, output feature or block of 128 x 128, or one in "
            "bfloat16"
        )
