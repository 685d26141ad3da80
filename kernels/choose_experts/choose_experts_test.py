"""choose_experts against the steps of DeepSeek's router, on the CPU or a GPU."""

import pytest
import torch

from torch_xla_ext.ops import choose_experts


def chosen(
    logits: torch.Tensor,
    top_k: int,
    scoring: str,
    bias: torch.Tensor | None,
    groups: tuple[int, int],
) -> tuple[torch.Tensor, torch.Tensor]:
    """DeepSeek's choice of experts for one token, step by step."""
    scores = logits.softmax(0) if scoring == "softmax" else logits.sigmoid()
    ranked = scores if bias is None else scores + bias
    num_groups, top_groups = groups
    parts = ranked.chunk(num_groups)
    best = [part.max() if bias is None else part.sort().values[-2:].sum() for part in parts]
    kept = sorted(range(num_groups), key=lambda i: -best[i])[:top_groups]
    size = len(logits) // num_groups
    numbers = [group * size + i for group in kept for i in range(size)]
    numbers.sort(key=lambda i: -ranked[i])
    experts = torch.tensor(numbers[:top_k])
    return scores[experts], experts


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
@pytest.mark.parametrize("has_bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize(
    ("experts", "top_k", "groups"),
    [(8, 2, (1, 1)), (8, 2, (4, 2)), (256, 8, (8, 4)), (128, 8, (1, 1)), (33, 33, (1, 1))],
    ids=str,
)
@pytest.mark.parametrize("recorded", [False, True], ids=["kernel", "recorded"])
def test_choice(
    device: torch.device,
    scoring: str,
    has_bias: bool,
    experts: int,
    top_k: int,
    groups: tuple[int, int],
    recorded: bool,
) -> None:
    logits = torch.randn(9, experts)
    bias = torch.randn(experts) / 4 if has_bias else None
    on_device = None if bias is None else bias.to(device)
    options = {"scoring": scoring, "bias": on_device, "scaling": 2.5}
    options |= {"num_groups": groups[0], "top_groups": groups[1]}
    for renormalize in (False, True):
        leaf = logits.to(device).requires_grad_(recorded)
        weights, numbers = choose_experts(leaf, top_k, renormalize=renormalize, **options)
        assert weights.requires_grad == recorded
        weights, numbers = weights.detach().cpu(), numbers.cpu()
        assert (weights.dtype, numbers.dtype) == (torch.float32, torch.int32)
        for row, logit in enumerate(logits):
            right, right_numbers = chosen(logit, top_k, scoring, bias, groups)
            right = right / right.sum() if renormalize else right
            assert torch.equal(numbers[row], right_numbers.int())
            torch.testing.assert_close(weights[row], 2.5 * right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_dtypes(device: torch.device, dtype: torch.dtype) -> None:
    logits = torch.randn(300, 60).to(dtype)
    weights, numbers = choose_experts(logits.to(device), 4)
    right, right_numbers = choose_experts(logits.float(), 4)
    assert torch.equal(numbers.cpu(), right_numbers)
    torch.testing.assert_close(weights.cpu(), right, rtol=1e-5, atol=1e-6)


def test_equal_logits(device: torch.device) -> None:
    """The first experts and groups of equal logits are chosen."""
    _, numbers = choose_experts(torch.zeros(2, 64, device=device), 5)
    assert numbers.tolist() == [list(range(5))] * 2
    _, numbers = choose_experts(torch.zeros(2, 64, device=device), 5, num_groups=16, top_groups=2)
    assert numbers.tolist() == [list(range(5))] * 2


@pytest.mark.parametrize("recorded", [False, True], ids=["kernel", "recorded"])
def test_tokens_without_experts(device: torch.device, recorded: bool) -> None:
    logits, mask = torch.randn(9, 12), torch.arange(9) % 3 > 0
    leaf = logits.to(device).requires_grad_(recorded)
    weights, numbers = choose_experts(leaf, 2, mask=mask.to(device))
    right, right_numbers = choose_experts(logits, 2)
    assert numbers.dtype == torch.int32
    assert torch.equal(numbers.cpu(), right_numbers.masked_fill(~mask[:, None], 12))
    right = right.masked_fill(~mask[:, None], 0)
    torch.testing.assert_close(weights.detach().cpu(), right, rtol=1e-5, atol=1e-6)


def test_gradients(device: torch.device) -> None:
    logits = torch.randn(5, 8)
    for renormalize in (False, True):
        leaf = logits.to(device).requires_grad_()
        weights, numbers = choose_experts(leaf, 2, renormalize=renormalize)
        weights.square().sum().backward()
        right = logits.clone().requires_grad_()
        scores = right.softmax(-1).gather(1, numbers.cpu().long())
        scores = scores / scores.sum(1, keepdim=True) if renormalize else scores
        scores.square().sum().backward()
        torch.testing.assert_close(leaf.grad.cpu(), right.grad, rtol=1e-4, atol=1e-6)


def test_no_tokens(device: torch.device) -> None:
    weights, numbers = choose_experts(torch.zeros(0, 8, device=device), 2)
    assert weights.shape == numbers.shape == (0, 2)


def test_wrong_arguments(device: torch.device) -> None:
    logits = torch.zeros(2, 8, device=device)
    with pytest.raises(ValueError, match="expected scoring softmax or sigmoid but got relu"):
        choose_experts(logits, 2, scoring="relu")
    with pytest.raises(ValueError, match="num_groups: expected a divisor of 8 experts but got 3"):
        choose_experts(logits, 2, num_groups=3)
    with pytest.raises(ValueError, match="top_groups: expected at most 4 groups, with at least 3"):
        choose_experts(logits, 3, num_groups=4)
    with pytest.raises(ValueError, match="top_groups: expected at most 4 groups"):
        choose_experts(logits, 2, num_groups=4, top_groups=5)
    with pytest.raises(ValueError, match="top_k"):
        choose_experts(logits, 0)
    with pytest.raises(ValueError, match=r"operand 1 \(bias\): expected dimension 0 to be 8"):
        choose_experts(logits, 2, bias=torch.zeros(4, device=device))
