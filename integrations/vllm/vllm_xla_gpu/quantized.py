"""vLLM's linear layers with fp8 weights, whose products are fp8.linear.

vLLM's own are calls of its CUDA operators. Here all kinds of checkpoint become the same: a weight
[out_features, in_features], a scale of each output feature, and none or one of the inputs.
"""

from __future__ import annotations

from typing import NoReturn

import torch
import torch_xla
from torch import nn
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.quantization import fp8 as of_vllm
from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors import (
    CompressedTensorsLinearMethod,
)
from vllm.model_executor.layers.quantization.compressed_tensors.schemes import (
    CompressedTensorsW8A8Fp8,
)

from vllm_xla_gpu import fp8
from vllm_xla_gpu.limits import UnsupportedError


class Fp8LinearMethod(of_vllm.Fp8LinearMethod):
    """The method of quantization="fp8": bfloat16 checkpoints, or fp8 with a scale of each weight.

    Its name is one of those by which vLLM chooses how weights are loaded.
    """

    def process_weights_after_loading(self, layer: LinearBase) -> None:
        if self.quant_config.is_checkpoint_fp8_serialized:
            _keep(layer, layer.weight.data, _of_outputs(layer), _of_inputs(layer))
            return
        weight = layer.weight.data
        # On the host: XLA:GPU does not round quotients exactly, which changes 3% of the weights.
        scale = fp8.scale_of(weight.abs().amax().cpu())
        rounded = fp8.quantized(weight, scale)
        _keep(layer, rounded, scale.to(weight.device).expand(len(weight)), None)

    def apply(
        self, layer: LinearBase, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        return fp8.linear(x, layer.weight, layer.weight_scale, layer.input_scale, bias)


class XlaW8A8Fp8(CompressedTensorsW8A8Fp8):
    """The scheme of compressed-tensors: fp8 with a scale of each weight or output feature."""

    def process_weights_after_loading(self, layer: LinearBase) -> None:
        _keep(layer, layer.weight.data, _of_outputs(layer), _of_inputs(layer))

    def apply_weights(
        self, layer: LinearBase, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        return fp8.linear(x, layer.weight, layer.weight_scale, layer.input_scale, bias)


def _of_outputs(layer: LinearBase) -> torch.Tensor:
    """Return each output feature's scale, from those of the layer or its parts."""
    scale = layer.weight_scale.data
    if scale.dim() == 2:
        return scale[:, 0]
    # Of queries, keys and values, or one for all, where vLLM leaves the others negative.
    scale = torch.where(scale > 0, scale, scale[0])
    widths = zip(scale, layer.logical_widths, strict=True)
    return torch.cat([part.expand(width) for part, width in widths])


def _of_inputs(layer: LinearBase) -> torch.Tensor | None:
    """Return the largest of those of the layer's parts, which have one input."""
    scale = getattr(layer, "input_scale", None)
    return None if scale is None else scale.data.max()


def _keep(
    layer: LinearBase,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    input_scale: torch.Tensor | None,
) -> None:
    def parameter(tensor: torch.Tensor) -> nn.Parameter:
        return nn.Parameter(tensor.contiguous(), requires_grad=False)

    layer.weight, layer.weight_scale = parameter(weight), parameter(weight_scale)
    layer.input_scale = None if input_scale is None else parameter(input_scale)
    if weight.device.type == "xla":
        torch_xla.sync()  # so that there is room for the next layer's


def refuse_experts(*_: object) -> NoReturn:
    """Refuse quantized experts, in place of their method."""
    raise UnsupportedError(
        "vllm-xla-gpu does not support mixtures of experts with quantized weights; serve a "
        "checkpoint of bfloat16 weights without `quantization`"
    )


def check(model: nn.Module) -> None:
    """Raise UnsupportedError for a layer that would be computed by vLLM's CUDA operators."""
    for layer in model.modules():
        if not isinstance(layer, LinearBase):
            continue
        method = layer.quant_method
        if isinstance(method, CompressedTensorsLinearMethod):
            method = layer.scheme
        if isinstance(method, XlaW8A8Fp8) and method.weight_block_size is not None:
            what = "a scale of each block"
        elif isinstance(method, Fp8LinearMethod | XlaW8A8Fp8 | UnquantizedLinearMethod):
            continue
        else:
            what = type(method).__name__
        raise UnsupportedError(
            f"vllm-xla-gpu does not support weights with {what} ({layer.prefix}); serve a "
            "checkpoint in fp8 with a scale of each weight or output feature, or one of bfloat16"
        )
