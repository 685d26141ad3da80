"""A model that several devices share; BUILD sets their number, for engine_test.py, too."""

import collections
import functools
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import families
import pytest
import rounded
import torch
import transformers
from testing import programs  # before the first computation
from vllm import LLM
from vllm_xla_gpu import linear, tensor_parallel
from vllm_xla_gpu.limits import LATENT_DIM, UnsupportedError

from torch_xla_ext import ops, sharding
from torch_xla_ext.ops.all_reduce import WORKSPACE_BYTES

# The numbers differ from engine_test.py's, because XLA would find equal programs again.
PAGES, PAGE_SIZE = 20, 16
# Families for which the kernel that writes the cache also applies rotations and heads' norms.
ROTATED = {"gemma2", "gemma3", "glm4_moe", "gpt_oss", "qwen3", "qwen3_moe"}
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
        is_rotated = 'custom_call_target="XlaGpuRopeKvPagesUpdate"' in program
        assert is_rotated == (family in ROTATED)
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


@pytest.mark.parametrize("family", families.OTHERS)
def test_tokens_of_others(family: str, models: Path) -> None:
    model = families.write(family, models)
    families.check_tokens(start(model), model)


@pytest.mark.parametrize("family", families.LATENT)
def test_latent_attention(family: str, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each device has its own heads, and the whole cache."""
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
    """The programs of steps, by their numbers of tokens; the order of compilation may vary."""
    steps = [text for text in compiled if f'custom_call_target="{target}' in text]
    assert len(steps) == 2
    steps.sort(key=lambda text: any("[32," in found for found in programs.collectives(text)))
    return dict(zip((16, 32), steps, strict=True))


def _check_collectives(program: str, tokens: int, config: transformers.PretrainedConfig) -> None:
    """Checks a step's collectives.

    There is a sum for the embedding, there are two for each layer, and one for each expert that
    serves all tokens. Each device sends each sequence's best token.
    """
    layers, width = config.num_hidden_layers, config.hidden_size
    shared = layers - config.first_k_dense_replace if hasattr(config, "n_shared_experts") else 0
    assert sorted(programs.collectives(program)) == sorted(
        [f"all-reduce f32[{tokens},{width}]{{1,0}}"] * (2 * layers + 1 + shared)
        + [f"all-gather {dtype}[8,{families.DEVICES}]{{0,1}}" for dtype in ("f32", "s32")]
    )


def _experts(config: transformers.PretrainedConfig) -> int:
    """The number of experts, for which families have different names."""
    names = ("num_local_experts", "num_experts", "n_routed_experts")
    return next((getattr(config, name) for name in names if hasattr(config, name)), 0)


def _use_peer_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = functools.cached_property(
        lambda devices: sharding.PeerMemory(devices._mesh, WORKSPACE_BYTES)
    )
    memory.__set_name__(tensor_parallel.Devices, "_peer_memory")
    monkeypatch.setattr(tensor_parallel.Devices, "_peer_memory", memory)


@pytest.mark.parametrize("has_peer_memory", [False, True])
def test_products_of_few_tokens(
    has_peer_memory: bool, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each device's kernels read its part of the weights."""
    monkeypatch.setenv("TORCH_XLA_EXT_REFUSE_GATHERS", "1")
    monkeypatch.setattr(linear, "LEAST_COLUMNS", 1)
    if has_peer_memory:
        _use_peer_memory(monkeypatch)
    model, config = families.write("llama", models), families.FAMILIES["llama"]
    with programs.compiled() as compiled:
        llm = start(model, "bfloat16")
    rounded.check_logits(llm, model, torch.bfloat16)
    (step,) = [text for text in compiled if 'custom_call_target="XlaGpuSkinnySwiglu"' in text]
    layers, inner = config.num_hidden_layers, config.intermediate_size // families.DEVICES
    assert step.count('custom_call_target="XlaGpuSkinnySwiglu"') == layers
    assert step.count('custom_call_target="XlaGpuSkinnyLinear"') == 3 * layers + 1
    assert (1, 2, inner, config.hidden_size) in programs.shapes(step)
    assert (config.hidden_size, inner) in programs.shapes(step)


@pytest.mark.parametrize("family", ["llama", "mixtral", "qwen3_moe", "glm4_moe", "gpt_oss"])
def test_sums_in_one_exchange(family: str, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All sums use ops.all_reduce, as on GPUs, and shared experts have no sum of their own.

    On GPUs, XLA would update a CUDA graph with a collective of its own in each step. On the CPU,
    ops.all_reduce uses XLA's collective.
    """
    _use_peer_memory(monkeypatch)
    calls = collections.Counter()

    def counted(name: str) -> Callable[..., Any]:
        def call(*args: object) -> object:
            calls[name] += 1
            return getattr(ops, name)(*args)

        return call

    names = ("all_reduce", "all_reduce_rms_norm")
    counting = types.SimpleNamespace(**{name: counted(name) for name in names})
    monkeypatch.setattr(tensor_parallel, "ops", counting)
    model = families.write(family, models)
    with programs.compiled() as compiled:
        llm = start(model)
    families.check_tokens(llm, model)
    steps = [text for text in compiled if 'custom_call_target="XlaGpuRaggedPaged' in text]
    layers = families.FAMILIES[family].num_hidden_layers
    # Exchanges for attention and MLPs, the embedding, and best tokens. Biases come before norms.
    with_norm = layers if family == "gpt_oss" else 2 * layers
    assert calls["all_reduce_rms_norm"] >= with_norm * len(steps) > 0
    assert calls["all_reduce"] >= (2 * layers + 2 - with_norm) * len(steps)
    for program in steps:
        kinds = collections.Counter(line.split()[0] for line in programs.collectives(program))
        assert kinds == {"all-reduce": 2 * layers + 2}
    _check_best_tokens(tensor_parallel.Devices(families.DEVICES))


def _check_best_tokens(devices: tensor_parallel.Devices) -> None:
    """Checks that equal logits, NaN and infinities give torch.argmax's tokens."""
    logits = torch.randn(64, families.VOCABULARY).round()
    logits[0] = 0
    logits[1, [5, 300]] = torch.inf
    logits[2, 400] = torch.nan
    logits[3] = -torch.inf
    logits[4, :] = -torch.inf
    logits[4, -1] = torch.finfo(torch.float32).min
    for dtype in (torch.float32, torch.bfloat16):
        expected = logits.to(dtype).argmax(-1)
        assert torch.equal(devices.argmax(devices.place(logits.to(dtype), 1)).cpu(), expected)


def test_another_number_of_devices() -> None:
    with pytest.raises(
        UnsupportedError,
        match=rf"this process has {families.DEVICES} devices; start it with CPU_NUM_DEVICES=16",
    ):
        tensor_parallel.Devices(16)
