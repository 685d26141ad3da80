"""Requests with several LoRA adapters in one batch: each gets the tokens of merged weights."""

from __future__ import annotations

import json
from pathlib import Path

import families
import numpy as np
import pytest
import safetensors.torch
import torch
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as metrics
import transformers
from vllm import LLM, RequestOutput, SamplingParams
from vllm.lora.request import LoRARequest

ALPHA = 16
ATTENTION = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
MLP = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
# Of each adapter: rank, and the layers that it has.
ADAPTERS = {"all": (4, ATTENTION + MLP), "few": (8, ATTENTION[::2]), "third": (2, MLP[1:])}
SLOTS = 2  # fewer than there are adapters
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


class Adapter:
    """An adapter of random weights, in a folder, and the model with it merged."""

    def __init__(self, name: str, number: int, model: str, folder: Path) -> None:
        rank, layers = ADAPTERS[name]
        generator = torch.Generator().manual_seed(number)
        merged = transformers.AutoModelForCausalLM.from_pretrained(model)
        weights = {}
        for path, module in merged.named_modules():
            if not path.endswith(layers):
                continue
            a = torch.randn(rank, module.in_features, generator=generator) / 8
            b = torch.randn(module.out_features, rank, generator=generator) / 8
            module.weight.data += ALPHA / rank * b @ a
            key = f"base_model.model.{path}"
            weights |= {f"{key}.lora_A.weight": a, f"{key}.lora_B.weight": b}
        assert len(weights) == 2 * len(layers) * merged.config.num_hidden_layers
        self.merged = str(folder / f"merged-{name}")
        merged.save_pretrained(self.merged)
        path = folder / f"adapter-{name}"
        self.request = LoRARequest(name, number, str(path))
        save(path, weights, rank=rank, modules=[layer.split(".")[1] for layer in layers])


def save(path: Path, weights: dict[str, torch.Tensor], rank: int, modules: list[str]) -> None:
    path.mkdir()
    safetensors.torch.save_file(weights, path / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": ALPHA, "target_modules": modules}
    (path / "adapter_config.json").write_text(json.dumps(config | {"bias": "none"}))


@pytest.fixture(scope="module")
def model(models: Path) -> str:
    return families.write("llama", models)


@pytest.fixture(scope="module")
def adapters(model: str, tmp_path_factory: pytest.TempPathFactory) -> list[Adapter]:
    folder = tmp_path_factory.mktemp("adapters")
    return [Adapter(name, i + 1, model, folder) for i, name in enumerate(ADAPTERS)]


@pytest.fixture(scope="module")
def llm(model: str) -> LLM:
    return LLM(
        model,
        dtype="float32",
        max_model_len=128,
        max_num_seqs=8,
        max_num_batched_tokens=32,
        enable_lora=True,
        max_loras=SLOTS,
        max_lora_rank=8,
        seed=0,
    )


def generate(llm: LLM, adapters: list[Adapter | None]) -> list[RequestOutput]:
    """An answer to each of the families' prompts, with the adapters in turn."""
    prompts = [{"prompt_token_ids": prompt} for prompt in families.prompts()]
    requests = [adapters[i % len(adapters)] for i in range(len(prompts))]
    return llm.generate(
        prompts, GREEDY, use_tqdm=False, lora_request=[r and r.request for r in requests]
    )


def assert_right(answer: RequestOutput, weights: str) -> None:
    _, behind, distance = families.reference(
        weights, answer.prompt_token_ids, answer.outputs[0].token_ids
    )
    assert behind < distance / families.MARGIN


def test_tokens_are_those_of_merged_weights(llm: LLM, model: str, adapters: list[Adapter]) -> None:
    compiled = metrics.metric_data("CompileTime")[0]
    of_none = [answer.outputs[0].token_ids for answer in generate(llm, [None])]
    # Two at once, the third in the slot of one of them, and the first two again.
    for used in (adapters[:2], adapters[1:], adapters[:1], [adapters[2], None], adapters[:2]):
        with_others = [*used, None] if len(used) > 1 else used
        answers = generate(llm, with_others)
        for i, answer in enumerate(answers):
            adapter = with_others[i % len(with_others)]
            assert_right(answer, adapter.merged if adapter else model)
            same = answer.outputs[0].token_ids == of_none[i]
            assert same == (adapter is None)
    assert metrics.metric_data("CompileTime")[0] == compiled


def test_a_prefix_is_not_shared_by_adapters(llm: LLM, adapters: list[Adapter]) -> None:
    prompt = {"prompt_token_ids": families.prompts()[1]}
    for adapter in (*adapters, adapters[0]):
        (answer,) = llm.generate([prompt], GREEDY, use_tqdm=False, lora_request=adapter.request)
        assert_right(answer, adapter.merged)


def test_more_adapters_than_slots_at_once(llm: LLM, adapters: list[Adapter]) -> None:
    """The scheduler serves some of them later."""
    for i, answer in enumerate(generate(llm, adapters)):
        assert_right(answer, adapters[i % len(adapters)].merged)


def counts() -> list[int]:
    """Programs compiled and executed so far."""
    xm.wait_device_ops()
    return [metrics.metric_data(name)[0] for name in ("CompileTime", "ExecuteTime")]


def test_an_adapter_is_written_by_one_program(llm: LLM, adapters: list[Adapter]) -> None:
    """Whatever the number of layers, the slot, and the adapter's rank and layers."""
    runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
    runner.lora_manager.remove_all_adapters()
    slots = set()
    for adapter in (*adapters, *adapters):
        before = counts()
        llm.llm_engine.add_lora(adapter.request)  # takes the place of another one
        assert np.subtract(counts(), before).tolist() == [0, 1]
        slots.add(runner._adapter_manager.lora_index_to_id.index(adapter.request.lora_int_id))
        llm.llm_engine.add_lora(adapter.request)  # it is there
        assert np.subtract(counts(), before).tolist() == [0, 1]
    assert slots == set(range(SLOTS))


def test_adapters_that_are_refused(llm: LLM, model: str, tmp_path: Path) -> None:
    config = families.FAMILIES["llama"]
    key = "base_model.model.lm_head"
    weights = {
        f"{key}.lora_A.weight": torch.ones(4, config.hidden_size),
        f"{key}.lora_B.weight": torch.ones(config.vocab_size, 4),
    }
    save(tmp_path / "head", weights, rank=4, modules=["lm_head"])
    request = LoRARequest("head", 10, str(tmp_path / "head"))
    with pytest.raises(ValueError, match=r"target modules in .* but received .'lm_head'"):
        llm.llm_engine.add_lora(request)
    with pytest.raises(ValueError, match="enable_lora_bias; leave it out, or merge the adapter"):
        LLM(model, enable_lora=True, enable_lora_bias=True, max_num_seqs=8)
