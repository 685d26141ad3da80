"""transformers 5's layers of experts, with one weight for all experts.

The tests run with transformers 4: `Experts` is a layer as in transformers 5, and `get_interface`
chooses its implementation.
"""

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_xla
from testing.ways import run_by
from testing.xla import hlo
from torch import Tensor, nn

from integrations.huggingface import models
from torch_xla_huggingface import experts

NUM_EXPERTS, HIDDEN, INNER, TOP_K = 6, 16, 12, 2


class Experts(nn.Module):
    _is_expert_parallel = False
    num_experts = NUM_EXPERTS

    def __init__(
        self,
        is_transposed: bool = False,
        has_bias: bool = False,
        has_gate: bool = True,
        has_post_expert_norm: bool = False,
    ) -> None:
        super().__init__()
        self.is_transposed, self.has_bias = is_transposed, has_bias
        self.has_gate, self.has_post_expert_norm = has_gate, has_post_expert_norm
        self.up = "gate_up_proj" if has_gate else "up_proj"
        self.act_fn = nn.SiLU()
        if has_post_expert_norm:
            self.post_expert_norm = nn.LayerNorm(HIDDEN)
        for name, out, width in (
            (self.up, INNER * (1 + has_gate), HIDDEN),
            ("down_proj", HIDDEN, INNER),
        ):
            sizes = (width, out) if is_transposed else (out, width)
            setattr(self, name, nn.Parameter(torch.randn(NUM_EXPERTS, *sizes) / 4))
            if has_bias:
                setattr(self, f"{name}_bias", nn.Parameter(torch.randn(NUM_EXPERTS, out)))

    def _apply_gate(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return self.act_fn(gate) * up

    def product(self, name: str, rows: Tensor, expert: int) -> Tensor:
        weight = getattr(self, name)[expert]
        result = rows @ weight if self.is_transposed else nn.functional.linear(rows, weight)
        return result + getattr(self, f"{name}_bias")[expert] if self.has_bias else result

    def forward(self, x: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        result = torch.zeros_like(x)
        with torch.no_grad():
            mask = nn.functional.one_hot(top_k_index, num_classes=self.num_experts + 1)
            mask = mask.permute(2, 1, 0)
            hit = torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero()
        for expert in hit:
            expert = expert[0]
            if expert == self.num_experts:
                continue
            choice, token = torch.where(mask[expert])
            rows = self.product(self.up, x[token], expert)
            rows = self._apply_gate(rows) if self.has_gate else self.act_fn(rows)
            rows = self.product("down_proj", rows, expert)
            if self.has_post_expert_norm:
                rows = self.post_expert_norm(rows)
            rows = rows * top_k_weights[token, choice, None]
            result.index_add_(0, token, rows.to(result.dtype))
        return result


def grouped_mm_experts_forward(*args: Any) -> str:
    return "transformers'"


def another(*args: Any) -> str:
    return "another"


def interface(self: None, implementation: str, default: Callable) -> Callable:
    found = {"grouped_mm": grouped_mm_experts_forward, "another": another}
    return found.get(implementation, default)


get_interface = experts.without_reads(interface)
KINDS: dict[str, dict[str, bool]] = {
    "qwen": {},
    "gpt_oss": {"is_transposed": True, "has_bias": True},
    "without_gate": {"has_gate": False, "has_bias": True},
    "norm": {"has_post_expert_norm": True},
}


def inputs(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(10, HIDDEN, generator=generator)
    weights, index = torch.randn(10, NUM_EXPERTS, generator=generator).softmax(-1).topk(TOP_K)
    return x, index, weights


# The recording of the loop does not support a norm.
LAYERS = [(kind, way) for kind in KINDS for way in ("grouped_mm", "eager")]
LAYERS.remove(("norm", "eager"))


@pytest.mark.parametrize("way", ["lazy", "captured", "openxla"])
@pytest.mark.parametrize(("kind", "implementation"), LAYERS)
def test_results_and_gradients(kind: str, implementation: str, way: str) -> None:
    """The results equal the loop's, and one program serves all choices of experts."""
    torch.manual_seed(0)
    layer = Experts(**KINDS[kind])
    on_device = copy.deepcopy(layer).to("xla")

    def step(layer: Experts, forward: Callable, x: Tensor, index: Tensor, w: Tensor) -> tuple:
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        result = forward(layer, x, index, w)
        operands = [x, w, *layer.parameters()]
        return result.detach(), *torch.autograd.grad((result * result.cos()).sum(), operands)

    def on_xla(*args: Tensor) -> tuple:
        return step(on_device, get_interface(None, implementation, Experts.forward), *args)

    function = run_by(way, on_xla)
    for seed in range(6):
        args = inputs(seed)
        found = function(*(tensor.to("xla") for tensor in args))
        torch_xla.sync()
        expected = step(layer, Experts.forward, *args)
        for value, wanted in zip(found, expected, strict=True):
            torch.testing.assert_close(value.cpu(), wanted, rtol=1e-4, atol=1e-4)
        if seed == 4:
            compiled = models.compilations()
    assert models.compilations() == compiled


@pytest.mark.parametrize("implementation", ["grouped_mm", "eager"])
@pytest.mark.parametrize("kind", ["qwen", "gpt_oss"])
def test_weights_are_taken_whole(kind: str, implementation: str) -> None:
    layer = Experts(**KINDS[kind]).to("xla")
    args = [tensor.to("xla") for tensor in inputs(0)]
    torch_xla.sync()
    result = get_interface(None, implementation, Experts.forward)(layer, *args)
    gradients = torch.autograd.grad(result.sum(), list(layer.parameters()))
    program = hlo(result, *gradients)
    assert "XlaGpuGroupedOuter" in program
    assert not re.findall(rf"= f32\[{NUM_EXPERTS},\d+,\d+\]\S* (?:concatenate|transpose)", program)


def test_without_gradients() -> None:
    """Decoding has few tokens; the kernel for their products also adds up the experts' results."""
    torch.manual_seed(0)
    layer, args = Experts(), inputs(0)
    on_device = copy.deepcopy(layer).to("xla")
    with torch.no_grad():
        expected = layer(*args)
        forward = get_interface(None, "grouped_mm", Experts.forward)
        found = forward(on_device, *(tensor.to("xla") for tensor in args))
    assert "XlaGpuGroupedLinearSum" in hlo(found)
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-5, atol=1e-5)


def test_calls_that_run_transformers_own_code() -> None:
    args = inputs(0)
    assert get_interface(None, "grouped_mm", Experts.forward)(Experts(), *args) == "transformers'"
    on_device = [tensor.to("xla") for tensor in args]
    layer = Experts().to("xla")
    assert get_interface(None, "another", Experts.forward)(layer, *on_device) == "another"
    layer._is_expert_parallel = True
    forward = get_interface(None, "grouped_mm", Experts.forward)
    assert forward(layer, *on_device) == "transformers'"


def test_grouped_mm_can_always_be_used() -> None:
    can_use = experts.can_use_grouped_mm(lambda *args: False)
    x = torch.ones(2)
    assert can_use(x.to("xla"), x.to("xla"), x.to("xla"))
    assert not can_use(x, x, x)
