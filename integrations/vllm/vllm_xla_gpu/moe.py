"""MoE layers: sort tokens by expert, and multiply them with grouped matmuls.

The weights stay as vLLM loads them. Each of several devices has a part of every expert's inner
width, and one all-reduce adds the results; `PendingSum` does so for few tokens.
"""

import functools

import torch
from torch import nn
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.fused_moe import FusedMoE

from torch_xla_ext import ops
from vllm_xla_gpu.batch import UNUSED_SLOT
from vllm_xla_gpu.deferred import PendingSum
from vllm_xla_gpu.limits import UnsupportedError
from vllm_xla_gpu.sharded_linear import ShardedLinear

_WEIGHTS = {"w13_weight", "w2_weight"}
_BIASES = {"w13_bias", "w2_bias"}
# The scales of weights in fp8 and of their inputs; loaders have other names for some.
_SCALES = {f"{w}_{of}_scale" for w in ("w13", "w2") for of in ("weight", "input")}
_STORED_SCALES = _SCALES | {"w13_weight_scale_inv", "w2_weight_scale_inv"}
# An expert's activations, with names that vLLM and fused_experts share.
_ACTIVATIONS = {"silu", "gelu", "swigluoai"}


def check(model: nn.Module) -> None:
    """Raise UnsupportedError for an MoE layer with unsupported options."""
    for layer in model.modules():
        if not isinstance(layer, FusedMoE):
            continue
        names = {name for name, _ in layer.named_parameters(recurse=False)}
        refused = {
            f"the activation {layer.activation!r}": layer.activation not in _ACTIVATIONS,
            "a custom routing function": layer.custom_routing_function is not None,
            "weights of the router on the experts' input": layer.apply_router_weight_on_input,
            "experts that compute nothing": bool(getattr(layer, "zero_expert_num", 0)),
            "weights besides those of gate, up and down projections": (
                names - _STORED_SCALES - {"e_score_correction_bias"}
                not in (_WEIGHTS, _WEIGHTS | _BIASES)
            ),
        }
        for what, is_refused in refused.items():
            if is_refused:
                raise UnsupportedError(
                    f"vllm-xla-gpu does not support an MoE layer with {what} "
                    f"({layer.layer_name}); serve another model"
                )


def divide(model: nn.Module, count: int) -> None:
    """Arrange the experts of all layers in which they are not arranged yet."""
    for layer in model.modules():
        if isinstance(layer, FusedMoE) and not hasattr(layer, "sharded"):
            divide_layer(layer, count)
            both = layer.sharded[0]
            if both.turns > 1:
                weight = torch.cat(shards_in_turn(both.weight.data, both.turns), dim=1)
                both.weight, both.turns = nn.Parameter(weight, requires_grad=False), 1


def divide_layer(layer: FusedMoE, count: int) -> None:
    """Arrange a layer's experts for `count` devices, when their weights are loaded.

    The rows of gate and up are only reordered later; `turns` records that they must be.
    """
    inner = layer.w13_weight.shape[1] // 2
    divides = inner % count == 0
    both, down = layer.w13_weight.data, layer.w2_weight.data
    both_bias, down_bias, both_scale, down_scale = (
        getattr(layer, name, None)
        for name in ("w13_bias", "w2_bias", "w13_weight_scale", "w2_weight_scale")
    )
    input_scales = (getattr(layer, f"{name}_input_scale", None) for name in ("w13", "w2"))
    layer.gate_rows = 1 if layer.activation == "swigluoai" else inner  # 1: they alternate
    is_in_turn = divides and count > 1 and layer.gate_rows == inner
    if is_in_turn:
        # Each device has the gate's and up's rows of its part of the inner width.
        layer.gate_rows = inner // count
        both_bias, both_scale = (
            None if tensor is None else torch.cat(shards_in_turn(tensor, count), dim=1)
            for tensor in (both_bias, both_scale)
        )
    dims = (1, 2) if divides else (None, None)
    linears = zip(
        (both, down),
        (both_bias, down_bias),
        dims,
        (both_scale, down_scale),
        input_scales,
        strict=True,
    )
    layer.sharded = nn.ModuleList(ShardedLinear(*tensors) for tensors in linears)
    if is_in_turn:
        layer.sharded[0].turns = count
    for name in _WEIGHTS | _BIASES | _SCALES:
        if hasattr(layer, name):
            delattr(layer, name)
    layer.devices = None  # tensor_parallel.py's, if several share the weights
    layer.forward_impl = functools.partial(_forward, layer)


def shards_in_turn(both: torch.Tensor, count: int) -> list[torch.Tensor]:
    """Return the rows of gate and up, or their scales, of each of `count` devices.

    Args:
        both: [experts, 2 * inner, ...].
        count: the number of devices.
    """
    parts = both.unflatten(1, (2, count, -1)).unbind(2)
    return [part.flatten(1, 2).contiguous() for part in parts]


def _forward(
    layer: FusedMoE, hidden_states: torch.Tensor, router_logits: torch.Tensor
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Replace FusedMoE.forward_impl."""
    result = _experts(layer, hidden_states, router_logits)
    shared = getattr(layer, "shared_experts", None)  # of a SharedFusedMoE
    return result if shared is None else (shared(hidden_states), result)


def _experts(
    layer: FusedMoE, x: torch.Tensor, router_logits: torch.Tensor
) -> torch.Tensor | PendingSum:
    """Compute the experts of each token, [num_tokens, hidden], weighted by the router."""
    weights, chosen = _route(layer, router_logits)
    both, down = layer.sharded
    if _is_summed_later(layer, x):
        return _experts_of_devices(layer, x, weights, chosen)
    input_scales = None
    if both.input_scale is not None:
        input_scales = both.input_scale, down.input_scale
    return ops.fused_experts(
        x,
        weights,
        chosen,
        both.weight,
        down.weight,
        activation=layer.activation,
        gate_up_bias=both.bias,
        down_bias=down.bias,
        gate_rows=layer.gate_rows,
        gate_up_scale=both.weight_scale,
        down_scale=down.weight_scale,
        input_scales=input_scales,
    )


def _is_summed_later(layer: FusedMoE, x: torch.Tensor) -> bool:
    """Return whether a layer's results are a PendingSum; XLA divides other layers."""
    both, down = layer.sharded
    is_divided = layer.devices is not None and down.dim is not None
    return is_divided and both.weight_scale is None and layer.devices.sums_in_one_exchange(x.nbytes)


def _experts_of_devices(
    layer: FusedMoE, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor
) -> PendingSum:
    """Return the sum of the results of each device's part of the experts' inner width."""
    both, down = layer.sharded
    count = layer.devices.count

    def of_device(*tensors: torch.Tensor) -> torch.Tensor:
        missing = () if both.bias is not None else (None, None)
        *others, gate_up_bias, down_bias = *tensors, *missing
        return ops.fused_experts(
            *others,
            activation=layer.activation,
            gate_up_bias=gate_up_bias,
            down_bias=None if down_bias is None else down_bias / count,
            gate_rows=1 if layer.gate_rows == 1 else None,
        )

    operands = [(x, None), (weights, None), (chosen, None), (both.weight, 1), (down.weight, 2)]
    if both.bias is not None:
        operands += [(both.bias, 1), (down.bias, None)]
    return PendingSum(layer.devices, of_device, operands, x.shape)


def _route(layer: FusedMoE, router_logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose each token's experts and weights as FusedMoE.select_experts does, in float32.

    Returns:
        The weights and the indices of the experts, both [num_tokens, top_k].
    """
    options = {}
    bias = layer.e_score_correction_bias
    batch = next(iter(get_forward_context().attn_metadata.values()))
    if layer.use_grouped_topk:
        options = {"scoring": layer.scoring_func, "num_groups": layer.num_expert_group}
        options["top_groups"] = layer.topk_group
    if layer.use_grouped_topk or bias is not None:
        options["scaling"] = getattr(layer, "routed_scaling_factor", 1.0)
    return ops.choose_experts(
        router_logits,
        layer.top_k,
        bias=None if bias is None else bias.float(),
        mask=batch.slots != UNUSED_SLOT,  # padding would read the weights of its experts
        renormalize=layer.renormalize,
        **options,
    )
