"""flex_attention of XLA tensors, compared with PyTorch on the CPU."""

import copy
from collections.abc import Callable

import pytest
import torch
from testing.as_on_the_cpu import CLOSE
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from torch_xla_ext import capture

ROWS = 70
Attention = Callable[..., Tensor]
WAYS: dict[str, Attention] = {
    "lazy": flex_attention,
    "compiled": torch.compile(flex_attention),
    "without a graph break": torch.compile(flex_attention, fullgraph=True),
}


def heads(count: int = 4, rows: int = ROWS) -> Tensor:
    return torch.randn(2, count, rows, 16)


def mask(device: str, rows: int = ROWS) -> BlockMask:
    """Causal in documents of 20 tokens; the first 5 queries see nothing."""
    document = (torch.arange(ROWS) // 20).to(device)

    def allowed(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (document[query] == document[key]) & (query >= key) & (query >= 5)

    return create_block_mask(allowed, None, None, rows, ROWS, device=device)


def compare(function: Callable[..., tuple[Tensor, ...]], way: str, *tensors: Tensor) -> None:
    """Compares results and gradients."""

    def found(device: str) -> list[Tensor]:
        torch._dynamo.reset()
        call = WAYS[way] if device == "xla" else flex_attention
        operands = [tensor.clone().to(device).requires_grad_() for tensor in tensors]
        results = function(call, device, *operands)
        results[0].square().sum().backward()
        gradients = [operand.grad for operand in operands]
        return [tensor.detach().cpu() for tensor in (*results, *gradients)]

    torch.testing.assert_close(found("xla"), found("cpu"), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("way", WAYS)
def test_bias(way: str) -> None:
    """The tensor that the modification captures has a gradient, too."""

    def with_bias(attention: Attention, device: str, *operands: Tensor) -> tuple[Tensor, ...]:
        query, key, value, bias = operands
        return (
            attention(
                *(query, key, value),
                score_mod=lambda score, b, h, i, j: 20 * torch.tanh(score / 20) + bias[h, i, j],
                block_mask=mask(device),
            ),
        )

    compare(with_bias, way, heads(), heads(), heads(), torch.randn(4, ROWS, ROWS))


@pytest.mark.parametrize("way", WAYS)
def test_groups_of_heads_and_sums(way: str) -> None:
    def grouped(attention: Attention, device: str, *operands: Tensor) -> tuple[Tensor, ...]:
        return attention(
            *operands, block_mask=mask(device, 9), enable_gqa=True, return_lse=True, scale=0.3
        )

    compare(grouped, way, heads(rows=9), heads(2), heads(2))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inputs = nn.Linear(64, 192)

    def forward(self, x: Tensor, block_mask: BlockMask) -> Tensor:
        q, k, v = self.inputs(x).view(2, ROWS, 3, 4, 16).permute(2, 0, 3, 1, 4)
        return flex_attention(q, k, v, block_mask=block_mask)


def test_models() -> None:
    model, x = Model(), torch.randn(2, ROWS, 64)
    expected = model(x, mask("cpu")).detach()
    on_xla, x, block_mask = copy.deepcopy(model).to("xla"), x.to("xla"), mask("xla")
    step = capture(lambda x: on_xla(x, block_mask).detach())
    for call in (on_xla, torch.compile(on_xla, backend="openxla")):
        torch.testing.assert_close(call(x, block_mask).detach().cpu(), expected, **CLOSE)
    for _ in range(3):
        torch.testing.assert_close(step(x).cpu(), expected, **CLOSE)
    with torch.autocast("xla", dtype=torch.bfloat16):
        rounded = on_xla(x, block_mask).detach()
    assert rounded.dtype == torch.bfloat16
    torch.testing.assert_close(rounded.cpu().float(), expected, rtol=3e-2, atol=3e-2)


def test_pytorchs_errors() -> None:
    query, key = heads().to("xla"), heads(2).to("xla")
    with pytest.raises(ValueError, match="same number of heads"):
        flex_attention(query, key, key)
    with pytest.raises(ValueError, match="block_mask was created for"):
        flex_attention(query, query, query, block_mask=mask("xla", 9))
    with pytest.raises(RuntimeError, match="on the same device"):
        flex_attention(query, query, query, block_mask=mask("cpu"))
