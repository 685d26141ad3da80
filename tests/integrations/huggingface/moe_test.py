"""MoE layers of transformers give the CPU's numbers, without reading the router's choices."""

import copy
import logging
import re
import types
from typing import Any

import pytest
import torch
import torch_xla
import transformers
from testing.xla import custom_call_lines, hlo
from torch import nn
from torch._dynamo.utils import counters
from torch_xla.debug import metrics

import torch_xla_ext
from integrations.huggingface import models
from torch_xla_huggingface import moe

_SIZES = {
    **{"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128},
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
}
_QWEN = {"moe_intermediate_size": 24, "num_experts": 6, "num_experts_per_tok": 2}
_GROUPS = {
    **{"moe_intermediate_size": 24, "n_routed_experts": 8, "num_experts_per_tok": 2},
    **{"n_group": 4, "topk_group": 2, "n_shared_experts": 1, "first_k_dense_replace": 1},
    "head_dim": 8,
}
_LATENT = {
    **{"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8},
    **{"v_head_dim": 8, "head_dim": 8, "num_key_value_heads": 4},
}
_JAMBA = {
    **{key: value for key, value in _SIZES.items() if key != "max_position_embeddings"},
    **{"num_experts": 4, "use_mamba_kernels": False, "mamba_d_state": 4, "mamba_dt_rank": 4},
    **{"attn_layer_period": 2, "attn_layer_offset": 1},
    **{"expert_layer_period": 1, "expert_layer_offset": 0},
}
_LONGCAT = {
    **{"vocab_size": 97, "hidden_size": 32, "ffn_hidden_size": 48, "expert_ffn_hidden_size": 24},
    **{"num_layers": 1, "num_attention_heads": 4, "n_routed_experts": 6, "zero_expert_num": 2},
    "moe_topk": 2,
}
_ERNIE = {
    **{"moe_intermediate_size": 24, "moe_num_experts": 6, "moe_k": 2, "moe_num_shared_experts": 1},
    **{"moe_layer_start_index": 0, "moe_layer_end_index": 3},
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "mixtral": ("Mixtral", _SIZES | {"num_local_experts": 4}),
    "one_choice": ("Mixtral", _SIZES | {"num_local_experts": 4, "num_experts_per_tok": 1}),
    "qwen2_moe": ("Qwen2Moe", _SIZES | _QWEN | {"shared_expert_intermediate_size": 16}),
    "qwen3_moe": ("Qwen3Moe", _SIZES | _QWEN | {"head_dim": 8}),
    "olmoe": ("Olmoe", _SIZES | {"num_experts": 6, "num_experts_per_tok": 2}),
    "flex_olmo": ("FlexOlmo", _SIZES | {"num_experts": 6, "num_experts_per_tok": 2}),
    "phimoe": ("Phimoe", _SIZES | {"num_local_experts": 4}),
    "deepseek_v3": ("DeepseekV3", _SIZES | _GROUPS | _LATENT),
    "dots1": ("Dots1", _SIZES | _GROUPS),
    "glm4_moe": ("Glm4Moe", _SIZES | _GROUPS),
    "ernie4_5_moe": ("Ernie4_5_Moe", _SIZES | _ERNIE),
    "hunyuan": ("HunYuanMoEV1", _SIZES | {"num_experts": 4, "moe_topk": 2, "head_dim": 8}),
    "minimax": ("MiniMax", _SIZES | {"num_local_experts": 4, "head_dim": 8}),
    "jamba": ("Jamba", _JAMBA),
    "longcat": ("LongcatFlash", _LATENT | _LONGCAT),
    "gpt_oss": ("GptOss", _SIZES | {"num_local_experts": 4, "head_dim": 8}),
    "dbrx": (
        "Dbrx",
        {
            **{"d_model": 32, "n_heads": 4, "n_layers": 2, "vocab_size": 97, "max_seq_len": 128},
            "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2},
            # transformers 5 has no default for rope_theta.
            "attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 1e4},
        },
    ),
}


def pair(name: str, **others: Any) -> tuple[Any, Any]:
    """The model on the CPU and on the device."""
    kind, options = FAMILIES[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**options | others)
    cpu = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in cpu.parameters():
            parameter.mul_(4 if parameter.dim() > 1 else 1)
    return cpu, copy.deepcopy(cpu).to("xla")


def loss_of(model: Any, ids: torch.Tensor) -> torch.Tensor:
    model.zero_grad()
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    return loss.detach()


def gradients(model: Any) -> dict[str, torch.Tensor]:
    torch_xla.sync()  # one program, before the first is read
    return {
        name: torch.zeros_like(p, device="cpu") if p.grad is None else p.grad.cpu()
        for name, p in model.named_parameters()
    }


# LongCat has two kinds of experts, one of which computes nothing.
_MASKED = {"longcat"}


@pytest.mark.parametrize("name", FAMILIES)
def test_losses_and_gradients(name: str) -> None:
    cpu, xla = pair(name)
    if name == "gpt_oss":  # its code for inference has no loop
        cpu.train(), xla.train()
    compiled = None
    for seed in range(3):
        ids = torch.randint(3, 97, (2, 7), generator=torch.Generator().manual_seed(seed))
        expected, loss = loss_of(cpu, ids), loss_of(xla, ids.to("xla"))
        if seed == 0:  # each expert computes its own tokens
            calls = grouped_calls(xla, loss)
            is_grouped = name not in _MASKED
            assert ("XlaGpuGroupedLinear" in calls or "XlaGpuGroupedMatmul" in calls) == is_grouped
            assert ("XlaGpuGroupedOuter" in calls) == is_grouped
        wanted, found = gradients(cpu), gradients(xla)
        torch.testing.assert_close(loss.cpu(), expected, rtol=1e-5, atol=1e-5)
        for path, gradient in wanted.items():
            difference = (found[path] - gradient).abs().max()
            assert difference <= 1e-4 * gradient.abs().max() + 1e-6, path
        if seed == 1:  # the first pass may have made constants
            compiled = models.compilations()
    assert models.compilations() == compiled


def has_whole_weights(model: Any) -> bool:
    """Whether the weights of all experts are one tensor, as in transformers 5."""
    return any(name.endswith("gate_up_proj") for name, _ in model.named_parameters())


def test_few_rows() -> None:
    """For two rows and four experts, the weights are not copied."""
    _, xla = pair("mixtral")
    one = xla(input_ids=torch.tensor([[5]], device="xla")).logits
    assert not re.findall(r"= f32\[4,\d+,\d+\]\S* concatenate", hlo(one))
    assert bool(grouped_calls(xla, one)) == has_whole_weights(xla)
    assert grouped_calls(xla, xla(input_ids=torch.tensor([[5, 7]], device="xla")).logits)


def grouped_calls(model: Any, result: torch.Tensor) -> set[str]:
    """The grouped kernels in the pending program of the result and of its gradients."""
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    lines = "\n".join(custom_call_lines(result, *grads))
    return set(re.findall(r'custom_call_target="(XlaGpuGroup\w+)"', lines))


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe", "deepseek_v3", "dbrx"])
def test_generate(name: str) -> None:
    cpu, xla = pair(name)
    options = {"max_new_tokens": 12, "eos_token_id": None, "pad_token_id": 0}
    options |= {"do_sample": False, "no_repeat_ngram_size": 1}
    before = models.compilations()
    for seed in range(2):
        inputs = models.prompts(4, 9, seed=seed)
        expected = cpu.generate(**inputs, **options)
        assert xla.generate(**models.on_device(inputs), **options).tolist() == expected.tolist()
        if seed == 0:
            compiled = models.compilations()
            assert compiled - before <= 3
    assert models.compilations() == compiled


def test_captured_training() -> None:
    cpu, xla = pair("mixtral")
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.05) for model in (cpu, xla)]

    def step(model: Any, optimizer: torch.optim.Optimizer, ids: torch.Tensor) -> torch.Tensor:
        loss = loss_of(model, ids)
        optimizer.step()
        return loss

    captured = torch_xla_ext.capture(lambda ids: step(xla, optimizers[1], ids))
    losses = []
    for seed in range(5):
        ids = torch.randint(3, 97, (2, 7), generator=torch.Generator().manual_seed(seed))
        losses.append(step(cpu, optimizers[0], ids).item())
        torch.testing.assert_close(captured(ids.to("xla")).item(), losses[-1], rtol=1e-4, atol=1e-4)


def test_compiled_training() -> None:
    """Dynamo's graphs of a layer end at a loop over experts, which runs lazily.

    Nothing is compiled again.
    """
    cpu, xla = pair("mixtral", num_hidden_layers=1)
    xla.model.layers[0].compile(backend="openxla")
    counters.clear()
    compiled = None
    for seed in range(4):
        ids = torch.randint(3, 97, (2, 7), generator=torch.Generator().manual_seed(seed))
        expected, loss = loss_of(cpu, ids), loss_of(xla, ids.to("xla"))
        wanted, found = gradients(cpu), gradients(xla)
        torch.testing.assert_close(loss.cpu(), expected, rtol=1e-5, atol=1e-5)
        for path, gradient in wanted.items():
            difference = (found[path] - gradient).abs().max()
            assert difference <= 1e-4 * gradient.abs().max() + 1e-6, path
        if seed == 2:
            compiled = models.compilations()
    assert models.compilations() == compiled
    assert counters["stats"]["unique_graphs"] == (1 if has_whole_weights(xla) else 2)


class Block(nn.Module):
    """A block like those of transformers; `use` is applied to the chosen tokens."""

    def __init__(self, use: Any) -> None:
        super().__init__()
        self.use = use

    def forward(self, x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        result = torch.zeros_like(x)
        mask = nn.functional.one_hot(chosen, num_classes=3).permute(2, 1, 0)
        for expert in range(3):
            _, rows = torch.where(mask[expert])
            result.index_add_(0, rows, self.use(x, rows) * (expert + 1))
        return result


def fixed(use: Any) -> Block:
    forward = types.FunctionType(Block.forward.__code__, globals(), "forward")  # one of its own
    return type("Block", (Block,), {"forward": moe.without_reads(forward)})(use)


class Layer(nn.Module):
    """A block with given functions that find the chosen experts and an expert's number."""

    def __init__(self, find: Any, number: Any, is_grouped: bool, num_classes: int = 3) -> None:
        super().__init__()
        self.find, self.number, self.is_grouped = find, number, is_grouped
        self.num_classes = num_classes
        self.weights = nn.Parameter(torch.randn(3, 4, 4))

    def forward(self, x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        result = torch.zeros_like(x)
        mask = nn.functional.one_hot(chosen, num_classes=self.num_classes).permute(2, 1, 0)
        for found in self.find(torch.greater(mask.sum(dim=(-1, -2)), 0)):
            expert = self.number(found)
            _, rows = torch.where(mask[expert])
            if rows.numel() == 0:
                continue
            value = nn.functional.linear(x[rows], self.weights[expert])
            # A factor that differs between experts prevents grouping.
            result.index_add_(0, rows, value if self.is_grouped else value * (expert + 1))
        return result


WAYS = {
    "one element": (lambda hit: hit.nonzero(), lambda found: found[0]),
    "item": (lambda hit: hit.nonzero(as_tuple=False), lambda found: int(found.item())),
    "squeezed": (lambda hit: hit.nonzero().squeeze(-1), lambda found: found.item()),
}


def check_layer(*args: Any) -> Layer:
    """Compares a layer without reads with the CPU; returns it."""
    layer = Layer(*args)
    x, chosen = torch.randn(5, 4), torch.tensor([[0, 1], [1, 0], [1, 0], [0, 1], [1, 0]])
    expected = layer(x, chosen)
    forward = types.FunctionType(Layer.forward.__code__, globals(), "forward")
    on_device = type("Layer", (Layer,), {"forward": moe.without_reads(forward)})(*args)
    on_device.load_state_dict(layer.state_dict())
    on_device.to("xla")
    for _ in range(2):
        reads = metrics.metric_data("TransferFromDeviceTime")
        found = on_device(x.to("xla"), chosen.to("xla"))
        assert metrics.metric_data("TransferFromDeviceTime") == reads
        assert bool(grouped_calls(on_device, found)) == layer.is_grouped
        torch.testing.assert_close(found.cpu(), expected)
    return on_device


@pytest.mark.parametrize("is_grouped", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_ways_to_find_the_experts(
    way: str, is_grouped: bool, caplog: pytest.LogCaptureFixture
) -> None:
    check_layer(*WAYS[way], is_grouped)
    assert not caplog.text


@pytest.mark.parametrize("is_grouped", [True, False])
def test_a_class_without_an_expert(is_grouped: bool, caplog: pytest.LogCaptureFixture) -> None:
    """transformers 5's DBRX has one class more than experts, and looks for its expert if chosen."""
    layer = check_layer(*WAYS["one element"], is_grouped, 4)
    assert not caplog.text
    x = torch.randn(5, 4, device="xla")
    layer.weights = nn.Parameter(layer.weights[:2])
    with pytest.raises(IndexError):
        layer(x, torch.tensor([[0, 1]] * 5, device="xla"))


USES = {
    "the number": lambda x, rows: x[rows] * rows.numel(),
    "an index in float": lambda x, rows: x[rows] * rows.float()[:, None],
    "a part": lambda x, rows: torch.cat([x[rows[:1]], x[rows[1:]] * 2]),
    "another dimension": lambda x, rows: x.t()[:, rows].t(),
}


@pytest.mark.parametrize("use", USES)
def test_other_uses_of_the_indices(use: str, caplog: pytest.LogCaptureFixture) -> None:
    """transformers' own code computes these uses, and a warning says that this is slow."""
    block = fixed(USES[use])
    x, chosen = torch.randn(5, 4), torch.tensor([[0, 1], [1, 2], [2, 0], [0, 2], [1, 0]])
    expected = Block.forward(block, x, chosen)
    with caplog.at_level(logging.WARNING, "torch_xla_ext.moe"):
        for _ in range(2):
            torch.testing.assert_close(block(x.to("xla"), chosen.to("xla")).cpu(), expected)
    assert caplog.text.count("waits for the device") == 1


def test_a_row_that_is_not_chosen_has_no_effect() -> None:
    """An expert does not compute rows that have not chosen it, so they cannot overflow."""
    block = fixed(lambda x, rows: x[rows] + (x[rows] * 1e38).square().clamp(max=1) * 0)
    x = torch.tensor([[1e-30], [torch.inf], [2.0]]).requires_grad_()
    on_device = x.detach().to("xla").requires_grad_()
    chosen = torch.tensor([[0], [0], [1]])
    expected, found = block(x, chosen), block(on_device, chosen.to("xla"))
    torch.testing.assert_close(found.cpu(), expected, equal_nan=True)
    expected[[0, 2]].sum().backward()
    found[[0, 2]].sum().backward()
    torch.testing.assert_close(on_device.grad.cpu(), x.grad, equal_nan=True)
