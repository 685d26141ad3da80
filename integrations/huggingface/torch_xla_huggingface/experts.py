"""Run the experts of transformers 5, which has one weight tensor for all experts of a layer.

``experts_implementation="grouped_mm"``, the default, multiplies by the weights with
``torch._grouped_mm``. Before and after that, transformers sorts, counts and indexes, and the
gradient of an index adds rows one by one. Here the wheel's kernel sorts the tokens and returns the
inverse permutation, so that gradients are gathers and sums, too.

``experts_implementation="eager"`` is a loop over the experts (moe.py).
"""

import functools
from collections.abc import Callable
from types import FunctionType

import torch
from torch import Tensor, nn

from torch_xla_ext import ops
from torch_xla_huggingface import moe

# Maps the forward function of each class of experts to its replacement without reads.
_loops: dict[FunctionType, FunctionType] = {}


def without_reads(original: Callable[..., Callable]) -> Callable[..., Callable]:
    """Replace ExpertsInterface.get_interface, which chooses the function of a layer's experts."""
    grouped = original.__globals__["grouped_mm_experts_forward"]

    @functools.wraps(original)
    def get_interface(self: object, implementation: str, default: FunctionType) -> Callable:
        found = original(self, implementation, default)
        if found is grouped:
            return functools.partial(_grouped, found)
        return _loop(default) if found is default else found

    return get_interface


def _loop(forward: FunctionType) -> FunctionType:
    if forward not in _loops:
        _loops[forward] = moe.without_reads(forward)
    return _loops[forward]


# Dynamo's graph ends in the loop anyway.
_loop._torchdynamo_disable = True


def can_use_grouped_mm(original: Callable[..., bool]) -> Callable[..., bool]:
    """Replace the check whether torch._grouped_mm can be used: on XLA devices, it always can be.

    In compiled code, for dtypes other than bfloat16, transformers would use its own operator, which
    reads the groups' sizes, and writes to views, which XLA tensors lack inside of operators.
    """

    @functools.wraps(original)
    def can_use(input: Tensor, weight: Tensor, offs: Tensor) -> bool:  # transformers' names
        return weight.device.type == "xla" or original(input, weight, offs)

    return can_use


def _grouped(
    original: Callable[..., Tensor],
    experts: nn.Module,
    hidden_states: Tensor,
    top_k_index: Tensor,
    top_k_weights: Tensor,
) -> Tensor:
    """Compute the experts of a layer, as transformers' grouped_mm_experts_forward does.

    Args:
        hidden_states: [num_tokens, hidden].
        top_k_index, top_k_weights: [num_tokens, top_k].
    """
    if hidden_states.device.type != "xla" or experts._is_expert_parallel:
        return original(experts, hidden_states, top_k_index, top_k_weights)
    num_tokens, top_k = top_k_index.shape
    groups = top_k_index.flatten().int()
    order, position, ranges = ops.group_rows(groups, experts.num_experts)

    def product(name: str, rows: Tensor) -> Tensor:
        weight = getattr(experts, name)
        multiply = ops.grouped_matmul if experts.is_transposed else ops.grouped_linear
        result = multiply(rows.to(weight.dtype), weight, ranges)
        if not experts.has_bias:
            return result
        bias = getattr(experts, f"{name}_bias")
        return result + ops.rows_of_groups(bias, groups.index_select(0, order), ranges)

    rows = ops.gather_rows(hidden_states, order // top_k, position)
    if experts.has_gate:
        rows = experts._apply_gate(product("gate_up_proj", rows))
    else:
        rows = experts.act_fn(product("up_proj", rows))
    tensors = (rows, top_k_weights, experts.down_proj)
    is_recorded = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    is_plain = not (experts.is_transposed or experts.has_bias or experts.has_post_expert_norm)
    if is_plain and not is_recorded:
        down, position = experts.down_proj, position.view(num_tokens, top_k)
        rows, weights = rows.to(down.dtype), top_k_weights.float()
        result = ops.grouped_linear_sum(rows, down, ranges, position, weights)
        return result.to(hidden_states.dtype)
    rows = product("down_proj", rows)
    if experts.has_post_expert_norm:
        rows = experts.post_expert_norm(rows)
    rows = ops.gather_rows(rows, position, order).unflatten(0, (num_tokens, top_k))
    return (rows * top_k_weights[..., None]).sum(1).to(hidden_states.dtype)
