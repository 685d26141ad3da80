"""Mixtures of experts: every expert computes every token, in three matrix products.

The experts become one MLP whose inner width is that of all of them. With the experts last, in
[inner, experts], each of several devices has a part of each, and there is one sum over the devices.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch_xla
from torch import nn
from torch.nn import functional
from vllm.model_executor.layers.fused_moe import FusedMoE
from vllm.model_executor.layers.fused_moe.fused_moe import grouped_topk

from vllm_xla_gpu.limits import UnsupportedError
from vllm_xla_gpu.sharded_linear import ShardedLinear

_WEIGHTS = {"w13_weight", "w2_weight"}
_BIASES = {"w13_bias", "w2_bias"}
# gpt-oss's: the sigmoid's factor, and the bound of its two operands.
_SWIGLU_ALPHA, _SWIGLU_LIMIT = 1.702, 7.0


def _swiglu_oai(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    gate, up = gate.clamp(max=_SWIGLU_LIMIT), up.clamp(-_SWIGLU_LIMIT, _SWIGLU_LIMIT)
    return (up + 1) * gate * torch.sigmoid(gate * _SWIGLU_ALPHA)


# Of an expert, by vLLM's names.
_ACTIVATIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "silu": lambda gate, up: functional.silu(gate) * up,
    "gelu": lambda gate, up: functional.gelu(gate) * up,
    "swigluoai": _swiglu_oai,
}


def check(model: nn.Module) -> None:
    """Raise UnsupportedError for a mixture that would be computed in another way."""
    for layer in model.modules():
        if not isinstance(layer, FusedMoE):
            continue
        names = {name for name, _ in layer.named_parameters(recurse=False)}
        refused = {
            f"the activation {layer.activation!r}": layer.activation not in _ACTIVATIONS,
            "a choice of experts of its own": layer.custom_routing_function is not None,
            "weights of the router on the experts' input": layer.apply_router_weight_on_input,
            "experts that compute nothing": bool(getattr(layer, "zero_expert_num", 0)),
            "other weights than those of gate, up and down projections": (
                names - {"e_score_correction_bias"} not in (_WEIGHTS, _WEIGHTS | _BIASES)
            ),
        }
        for what, is_refused in refused.items():
            if is_refused:
                raise UnsupportedError(
                    f"vllm-xla-gpu does not support a mixture of experts with {what} "
                    f"({layer.layer_name}); serve another model"
                )


def merge(model: nn.Module) -> None:
    """Make one MLP of the experts of each mixture, when their weights are loaded."""
    for layer in model.modules():
        if isinstance(layer, FusedMoE):
            _merge_layer(layer)
            if layer.sharded[0].weight.device.type == "xla":
                torch_xla.sync()  # so that there is room for the next layer's


def _merge_layer(layer: FusedMoE) -> None:
    gate, up = _gate_and_up(layer, layer.w13_weight.data)
    down = layer.w2_weight.data.permute(1, 2, 0).flatten(1)
    gate_bias = up_bias = None
    others = []
    if hasattr(layer, "w13_bias"):
        gate_bias, up_bias = _gate_and_up(layer, layer.w13_bias.data)
        others = [ShardedLinear(layer.w2_bias.data, dim=None)]
    layer.sharded = nn.ModuleList(
        [
            ShardedLinear(gate, gate_bias),
            ShardedLinear(up, up_bias),
            ShardedLinear(down, dim=1),
            *others,
        ]
    )
    for name in _WEIGHTS | _BIASES:
        if hasattr(layer, name):
            delattr(layer, name)
    layer.forward_impl = functools.partial(_forward, layer)


def _gate_and_up(layer: FusedMoE, both: torch.Tensor) -> list[torch.Tensor]:
    """Return gate and up of all experts, [inner * experts, ...], from [experts, 2 * inner, ...]."""
    if layer.activation == "swigluoai":  # they alternate
        halves = (both[:, ::2], both[:, 1::2])
    else:
        halves = both.chunk(2, dim=1)
    return [half.transpose(0, 1).flatten(0, 1) for half in halves]


def _forward(
    layer: FusedMoE, hidden_states: torch.Tensor, router_logits: torch.Tensor
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Replace FusedMoE.forward_impl."""
    result = _experts(layer, hidden_states, router_logits)
    shared = getattr(layer, "shared_experts", None)  # of a SharedFusedMoE
    return result if shared is None else (shared(hidden_states), result)


def _experts(layer: FusedMoE, x: torch.Tensor, router_logits: torch.Tensor) -> torch.Tensor:
    """Compute all experts of all tokens, [num_tokens, hidden], weighted by the router."""
    weights, chosen = _route(layer, x, router_logits)
    count = layer.global_num_experts
    is_chosen = chosen[..., None] == torch.arange(count, device=x.device)
    of_experts = (weights[..., None] * is_chosen).sum(dim=1).to(x.dtype)
    gate, up, down, *others = layer.sharded
    inner = _ACTIVATIONS[layer.activation](gate(x), up(x))
    inner = inner.unflatten(-1, (-1, count)) * of_experts[:, None]
    result = down(inner.flatten(1))
    for bias in others:
        result = result + of_experts @ bias.weight
    return result


def _route(
    layer: FusedMoE, x: torch.Tensor, router_logits: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each token's experts and weights as FusedMoE.select_experts, in float32.

    Returns:
        The weights and the numbers of the experts, both [num_tokens, top_k].
    """
    scaling = getattr(layer, "routed_scaling_factor", 1.0)
    if layer.use_grouped_topk:
        return grouped_topk._torchdynamo_orig_callable(
            x,
            router_logits.float(),
            topk=layer.top_k,
            renormalize=layer.renormalize,
            num_expert_group=layer.num_expert_group,
            topk_group=layer.topk_group,
            scoring_func=layer.scoring_func,
            e_score_correction_bias=layer.e_score_correction_bias,
            routed_scaling_factor=scaling,
        )
    scores = router_logits.softmax(dim=-1, dtype=torch.float32)
    bias = layer.e_score_correction_bias
    if bias is None:
        weights, chosen = scores.topk(layer.top_k, dim=-1)
    else:
        chosen = (scores + bias).topk(layer.top_k, dim=-1).indices
        weights = scores.gather(1, chosen) * scaling
    if layer.renormalize:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return weights, chosen
