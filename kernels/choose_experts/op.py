"""Choose experts, as the router of MoE (mixture of experts) layers does."""

import torch

from xla_kernels import Value, define_operator

__all__ = ["choose_experts"]


def _check(
    logits: torch.Tensor, top_k: int, num_groups: int, top_groups: int, **others: Value
) -> None:
    name, experts = "xla_gpu::choose_experts", logits.shape[1]
    if experts % num_groups != 0:
        raise ValueError(
            f"{name}: num_groups: expected a divisor of {experts} experts but got {num_groups}"
        )
    candidates = experts // num_groups * top_groups
    if top_groups > num_groups or candidates < top_k:
        raise ValueError(
            f"{name}: top_groups: expected at most {num_groups} groups, with at least {top_k} "
            f"experts, but got {top_groups} with {candidates}"
        )


define_operator(
    "xla_gpu::choose_experts(Tensor logits, Tensor? bias, Tensor? mask, int top_k, "
    "bool sigmoid=False, int num_groups=1, int top_groups=1, bool renormalize=True, "
    "float scaling=1.0) "
    "-> (Tensor, Tensor)",
    target="XlaGpuChooseExperts",
    environment=(),
    check=_check,
    sharding_rule="n _, _, n -> n _, n _",
)


def choose_experts(
    logits: torch.Tensor,
    top_k: int,
    *,
    scoring: str = "softmax",
    bias: torch.Tensor | None = None,
    mask: torch.Tensor | None = None,
    num_groups: int = 1,
    top_groups: int = 1,
    renormalize: bool = True,
    scaling: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose each token's experts from a router's logits, in float32.

    If neighboring experts form groups, the groups with the best expert are chosen first; with a
    bias, the groups with the best sum of two experts (DeepSeek-AI, "DeepSeek-V3", 2024).

    Args:
        logits: [num_tokens, num_experts], float16, bfloat16 or float32; at most 1024 experts.
        top_k: the number of experts for each token, at most 64.
        scoring: "softmax" or "sigmoid".
        bias: float32 [num_experts], added to the scores for the choice, not for the weights.
        mask: bool [num_tokens], False for tokens without experts, such as padding.
        num_groups, top_groups: the number of groups, at most 32, and of chosen groups.
        renormalize: whether to scale the weights of a token's experts so that their sum is
            `scaling`.
        scaling: a factor of the weights.

    Returns:
        The weights, float32, and the experts, int32, both [num_tokens, top_k]. Among equal experts,
        the first are chosen. A token without experts has the index num_experts and the weight 0.
        The weights are differentiable.

    Raises:
        TypeError, ValueError: an argument has an unsupported or mismatched dtype, shape or value.

    Example:
        >>> weights, experts = choose_experts(torch.tensor([[1.0, 3.0, 2.0, 0.0]]), 2)
        >>> experts
        tensor([[1, 2]], dtype=torch.int32)
        >>> weights
        tensor([[0.7311, 0.2689]])
    """
    if scoring not in ("softmax", "sigmoid"):
        raise ValueError(f"choose_experts: expected scoring softmax or sigmoid but got {scoring}")
    if not (torch.is_grad_enabled() and logits.requires_grad):
        return torch.ops.xla_gpu.choose_experts(
            *(logits, bias, mask, top_k, scoring == "sigmoid"),
            *(num_groups, top_groups, renormalize, scaling),
        )
    scores = logits.float()
    scores = scores.softmax(-1) if scoring == "softmax" else scores.sigmoid()
    ranked = scores if bias is None else scores + bias
    if num_groups > 1:
        grouped = ranked.unflatten(-1, (num_groups, -1))
        best = grouped.amax(-1)
        if bias is not None and grouped.shape[-1] > 1:
            best = grouped.topk(2, dim=-1).values.sum(-1)
        chosen = best.topk(top_groups, dim=-1, sorted=False).indices
        groups = torch.arange(num_groups, device=logits.device)
        is_chosen = (chosen[..., None] == groups).any(-2)
        ranked = grouped.masked_fill(~is_chosen[..., None], float("-inf")).flatten(-2)
    experts = ranked.topk(top_k, dim=-1).indices
    weights = scores.gather(-1, experts)
    if renormalize:
        weights = weights / weights.sum(-1, keepdim=True)
    weights, experts = weights * scaling, experts.int()
    if mask is not None:
        weights = torch.where(mask[:, None], weights, 0)
        experts = torch.where(mask[:, None], experts, logits.shape[-1])
    return weights, experts
