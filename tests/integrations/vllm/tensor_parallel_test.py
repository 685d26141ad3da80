"""A model that several devices share; BUILD says how many. engine_test.py runs on them, too."""

from __future__ import annotations

import functools
import types
from pathlib import Path

import families
import pytest
import rounded
import torch
import transformers
from testing import programs  # before the first computation
from vllm import LLM
from vllm_xla_gpu import tensor_parallel
from vllm_xla_gpu.limits import LATENT_DIM, UnsupportedError

from torch_xla_ext import ops, sharding
from torch_xla_ext.ops.all_reduce import WORKSPACE_BYTES

# Not those of engine_test.py, whose programs XLA would find again.
PAGES, PAGE_SIZE = 20, 16
LIMITS = {"max_model_len": 128, "max_num_seqs": 8, "max_num_batched_tokens": 32, "seed": 0}


def start(model: str, dtype: str = "auto") -> LLM:
    return LLM(
        model,
        dtype=dtype,
        tensor_parallel_size=families.DEVICES,
        num_gpu_blocks_override=PAGES,
        block_size=PAGE_SIZE,
        **LIMITS,
    )


@pytest.mark.parametrize("family", families.FAMILIES)
def test_tokens_and_programs(family: str, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_XLA_EXT_REFUSE_GATHERS", "1")
    model = families.write(family, models)
    config = families.FAMILIES[family]
    with programs.compiled() as compiled:
        llm = start(model)
    families.check_tokens(llm, model)

    width = config.hidden_size
    for tokens, program in _steps(compiled, "XlaGpuRaggedPaged").items():
        _check_collectives(program, tokens, config)
        kv_heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
        caches = {shape[2] for shape in programs.shapes(program) if shape[:2] == (PAGES, PAGE_SIZE)}
        assert caches == {2 * kv_heads // families.DEVICES}
        # Each device has its part of every weight that is large.
        assert (families.VOCABULARY, width) not in programs.shapes(program)
        assert (families.VOCABULARY // families.DEVICES, width) in programs.shapes(program)
        if experts := _experts(config):
            inner = getattr(config, "moe_intermediate_size", config.intermediate_size)
            assert (experts, 2 * inner, width) not in programs.shapes(program)
            assert (experts, 2 * inner // families.DEVICES, width) in programs.shapes(program)
            assert (experts, width, inner) not in programs.shapes(program)
            assert (experts, width, inner // families.DEVICES) in programs.shapes(program)
            for target in ("XlaGpuGroupedLinear", "XlaGpuGroupedLinearSum"):
                assert f'custom_call_target="{target}"' in program


@pytest.mark.parametrize("family", families.LATENT)
def test_latent_attention(family: str, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each device has its heads, and all rows of the cache."""
    monkeypatch.setenv("TORCH_XLA_EXT_REFUSE_GATHERS", "1")
    model, config = families.write(family, models), families.LATENT[family]
    with programs.compiled() as compiled:
        llm = start(model, "bfloat16")
    rounded.check_logits(llm, model, torch.bfloat16)
    for tokens, program in _steps(compiled, "XlaGpuMlaPaged").items():
        _check_collectives(program, tokens, config)
        assert (PAGES, PAGE_SIZE, LATENT_DIM) in programs.shapes(program)
        heads = config.num_attention_heads // families.DEVICES
        assert (tokens, heads, LATENT_DIM) in programs.shapes(program)


def _steps(compiled: programs.Programs, target: str) -> dict[int, str]:
    """The programs of steps, by their tokens: which is compiled first may change."""
    steps = [text for text in compiled if f'custom_call_target="{target}' in text]
    assert len(steps) == 2
    steps.sort(key=lambda text: any("[32," in found for found in programs.collectives(text)))
    return dict(zip((16, 32), steps, strict=True))


def _check_collectives(program: str, tokens: int, config: transformers.PretrainedConfig) -> None:
    """A sum of the embedding, two a layer, and one for an expert that all tokens have.

    Of each sequence the best token of each device.
    """
    layers, width = config.num_hidden_layers, config.hidden_size
    shared = layers - config.first_k_dense_replace if hasattr(config, "n_shared_experts") else 0
    assert sorted(programs.collectives(program)) == sorted(
        [f"all-reduce f32[{tokens},{width}]{{1,0}}"] * (2 * layers + 1 + shared)
        + [f"all-gather {dtype}[8,{families.DEVICES}]{{0,1}}" for dtype in ("f32", "s32")]
    )


def _experts(config: transformers.PretrainedConfig) -> int:
    """Their number; families have different names for it."""
    names = ("num_local_experts", "num_experts", "n_routed_experts")
    return next((getattr(config, name) for name in names if hasattr(config, name)), 0)


@pytest.mark.parametrize("family", ["llama", "glm4_moe"])
def test_sums_in_one_exchange(family: str, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on GPUs: row-parallel layers add by ops.all_reduce, which on the CPU is XLA's own."""
    memory = functools.cached_property(
        lambda devices: sharding.PeerMemory(devices._mesh, WORKSPACE_BYTES)
    )
    memory.__set_name__(tensor_parallel.Devices, "_peer_memory")
    monkeypatch.setattr(tensor_parallel.Devices, "_peer_memory", memory)
    num_calls = 0

    def counted(x: torch.Tensor, peers: torch.Tensor) -> torch.Tensor:
        nonlocal num_calls
        num_calls += 1
        return ops.all_reduce(x, peers)

    monkeypatch.setattr(tensor_parallel, "ops", types.SimpleNamespace(all_reduce=counted))
    model = families.write(family, models)
    with programs.compiled() as compiled:
        llm = start(model)
    families.check_tokens(llm, model)
    steps = [text for text in compiled if 'custom_call_target="XlaGpuRaggedPaged' in text]
    layers = families.FAMILIES[family].num_hidden_layers
    assert num_calls >= 2 * layers * len(steps) > 0
    others = 2 if family == "glm4_moe" else 1  # the experts', the embedding's
    for program in steps:
        sums = [line for line in programs.collectives(program) if line.startswith("all-reduce")]
        assert len(sums) == 2 * layers + others


def test_another_number_of_devices() -> None:
    with pytest.raises(
        UnsupportedError,
        match=rf"this process has {families.DEVICES} devices; start it with CPU_NUM_DEVICES=16",
    ):
        tensor_parallel.Devices(16)
