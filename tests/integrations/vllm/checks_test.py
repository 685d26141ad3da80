"""Unsupported models and settings are refused at start, with a remedy."""

import importlib.metadata
import os
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import families
import pytest
import torch
import transformers
from testing.scripts import run_script
from vllm import LLM
from vllm.config import PoolerConfig
from vllm.engine.arg_utils import AsyncEngineArgs, EngineArgs
from vllm.model_executor.layers.fused_moe import FusedMoE
from vllm_xla_gpu import environment, memory, moe, overrides
from vllm_xla_gpu.attention import XlaGpuAttention
from vllm_xla_gpu.limits import UnsupportedError


def _refusal(model: str, **options: object) -> str:
    with pytest.raises(ValueError) as error:
        EngineArgs(model, skip_tokenizer_init=True, **options).create_engine_config()
    return str(error.value)


NGRAM = {"method": "ngram", "num_speculative_tokens": 2}
IN_STEPS = {"enable_chunked_prefill": True, "max_num_batched_tokens": 128, "max_num_seqs": 8}
# By the model's family: settings, and a part of the error.
REFUSED: dict[str, list[tuple[dict[str, object], str]]] = {
    "llama": [
        ({"kv_cache_dtype": "fp8_e5m2"}, "auto, fp8, fp8_e4m3"),
        ({"block_size": 1}, "choose one of 8, 16, 32, 64, 128"),
        ({"quantization": "awq"}, "does not support quantized weights (awq)"),
        ({"enable_lora": True, "enable_lora_bias": True}, "merge the adapter into the model's"),
        ({"enable_lora": True, "fully_sharded_loras": True}, "adapters are divided as the layers"),
        ({"data_parallel_size": 2}, "start one server for each GPU"),
        ({"logits_processors": ["module:Name"]}, "logits_processors; use logit_bias"),
        ({"logprobs_mode": "processed_logprobs"}, "other than raw_logprobs; leave it out"),
        ({"max_logprobs": -1}, "set it to the most that a request may ask for"),
        ({"cpu_offload_gb": 1}, "does not support cpu_offload_gb; leave it out"),
        ({"calculate_kv_scales": True}, "the scales of an fp8 cache are the model's own, or 1"),
        ({"num_gpu_blocks_override": 16}, "a sequence of max_model_len=256 needs 17"),
        ({"enable_prompt_embeds": True}, "does not support --enable-prompt-embeds; leave it out"),
        ({"tensor_parallel_size": 4}, "2 key and value heads on 4 devices; set tensor_par"),
        ({"pipeline_parallel_size": 2}, "start one server for each GPU"),
        ({"distributed_executor_backend": "mp"}, "='mp'; leave it out: one process drives"),
        (
            {"distributed_executor_backend": "ray", "tensor_parallel_size": 2},
            "='ray'; leave it out: one process drives all GPUs of tensor_parallel_size",
        ),
        (
            {"runner": "pooling", "convert": "classify"},
            "scores, classes and rewards; serve a decoder that generates",
        ),
        (
            {"runner": "pooling", "pooler_config": PoolerConfig(pooling_type="STEP")},
            "choose one of LAST, CLS, MEAN",
        ),
        (
            {"runner": "pooling", "pooler_config": PoolerConfig(pooling_type="MEAN"), **IN_STEPS},
            "max_num_batched_tokens=128 with pooling_type='MEAN'; a step needs all tokens",
        ),
        (
            {"runner": "pooling", "enable_lora": True},
            "enable_lora for embeddings; leave it out, and merge the adapter",
        ),
        (
            {"runner": "pooling", "speculative_config": {**NGRAM}},
            "speculative decoding for embeddings; leave it out",
        ),
        (
            {"dtype": "bfloat16", "quantization": "fp8", "enable_lora": True}
            | {"tensor_parallel_size": 2},
            "weights with enable_lora and tensor_parallel_size above 1; merge the adapter into",
        ),
    ],
    "mixtral": [({"enable_expert_parallel": True}, "each GPU has a part of every expert")],
    "deepseek_v2": [
        ({}, "latent attention in torch.float32; choose dtype='bfloat16', or set VLLM_MLA_DISABLE"),
        (
            {"dtype": "bfloat16", "quantization": "fp8"},
            "quantized weights with multi-head latent attention; set VLLM_MLA_DISABLE=1, or serve",
        ),
        (
            {"dtype": "bfloat16", "hf_overrides": {"kv_lora_rank": 256}},
            "latent rows of 256 and 64 elements; set VLLM_MLA_DISABLE=1, for attention with heads",
        ),
        (
            {"dtype": "bfloat16", "hf_overrides": {"index_topk": 8}},
            "latent attention to chosen tokens; serve another model",
        ),
        (
            {"dtype": "bfloat16", "enable_lora": True},
            "enable_lora with multi-head latent attention; merge the adapter",
        ),
    ],
}


@pytest.mark.parametrize(
    ("family", "options", "text"),
    [(family, *each) for family, refused in REFUSED.items() for each in refused],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_settings(family: str, options: dict[str, object], text: str, models: Path) -> None:
    assert text in _refusal(families.write(family, models), **options)


def test_speculation_by_a_model(models: Path) -> None:
    model = families.write("llama", models)
    text = _refusal(model, speculative_config=NGRAM | {"method": "eagle", "model": model})
    assert "speculative decoding by 'eagle'; set method='ngram', or leave it out" in text


# quantization_config of a checkpoint's config.json.
BLOCKS = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [64, 64]}
INT8 = families.compressed_tensors("int")


@pytest.mark.parametrize(
    ("family", "options", "text"),
    [
        (
            "llama",
            {"hf_overrides": {"quantization_config": BLOCKS}},
            "weights with a scale of each block of [64, 64] (model.layers.0.self_attn.qkv_proj); s",
        ),
        (
            "qwen3_moe",
            {"hf_overrides": {"quantization_config": INT8 | {"ignore": ["re:.*self_attn.*"]}}},
            "an MoE layer whose quantized weights or inputs are not in fp8; serve a",
        ),
        (
            "llama",
            {"hf_overrides": {"quantization_config": INT8}},
            "weights with CompressedTensorsW8A8Int8 (model.layers.0.self_attn.qkv_proj); serve a",
        ),
    ],
    ids=["blocks", "experts", "int8"],
)
def test_quantized_layers(family: str, options: dict[str, object], text: str, models: Path) -> None:
    with pytest.raises(UnsupportedError) as error:
        LLM(families.write(family, models), dtype="bfloat16", max_model_len=64, **options)
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"attn_type": "encoder_only"}, r"non-causal attention \(encoder_only\); serve a decoder"),
        ({"alibi_slopes": [0.5, 0.25]}, "ALiBi; serve a model that encodes positions differently"),
        ({"lambda_init": 0.5}, "attention with lambda_init; serve a model"),
    ],
)
def test_attention_of_another_kind(options: dict[str, object], text: str) -> None:
    sizes = {"num_heads": 2, "head_size": 64, "scale": 1.0, "num_kv_heads": 2}
    others = {"alibi_slopes": None, "sliding_window": None, "kv_cache_dtype": "auto"}
    with pytest.raises(UnsupportedError, match=text):
        XlaGpuAttention(**sizes | others | options)


def test_an_allocator_that_grows(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PJRT_ALLOCATOR_PREALLOCATE", "0")
    text = "PREALLOCATE=0; leave it out: an allocator that grows has no room for caches"
    assert text in _refusal(families.write("llama", models))


@pytest.mark.parametrize("engine", [None, "0", "1"])
def test_a_model_with_alibi(
    engine: str | None, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    families.FAMILIES["bloom"] = transformers.BloomConfig(
        vocab_size=families.FAMILIES["llama"].vocab_size, hidden_size=64, n_layer=1, n_head=2
    )
    if engine is None:
        monkeypatch.delenv("VLLM_USE_V1", raising=False)
    else:
        monkeypatch.setenv("VLLM_USE_V1", engine)
    with pytest.raises(ValueError) as error:
        LLM(families.write("bloom", models), max_model_len=64, max_num_seqs=8)
    if engine == "0":
        text = "does not support VLLM_USE_V1=0; leave it out: only vLLM's engine V1 runs"
    else:
        text = "does not support ALiBi; serve a model that encodes positions differently"
    assert text in str(error.value)


def test_a_model_with_states(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    families.FAMILIES["mamba"] = transformers.MambaConfig(
        vocab_size=families.FAMILIES["llama"].vocab_size, hidden_size=64, num_hidden_layers=1
    )
    monkeypatch.delenv("VLLM_USE_V1", raising=False)
    text = _refusal(families.write("mamba", models), max_model_len=256)
    assert "layers with a state instead of a KV cache; serve a model all of whose layers" in text


def test_an_engine_in_a_thread(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM chooses the engine V1 in a thread, too."""
    monkeypatch.delenv("VLLM_USE_V1", raising=False)
    arguments = EngineArgs(families.write("llama", models), skip_tokenizer_init=True)
    with ThreadPoolExecutor(1) as threads:
        config = threads.submit(arguments.create_engine_config).result()
    assert os.environ["VLLM_USE_V1"] == "1"
    assert config.parallel_config.worker_cls == "vllm_xla_gpu.worker.XlaGpuWorker"


class Experts(FusedMoE):
    """A layer like vLLM's, without an engine."""

    def __init__(self, **changed: object) -> None:
        torch.nn.Module.__init__(self)
        self.layer_name, self.activation = "layers.0.experts", "silu"
        self.apply_router_weight_on_input, self.zero_expert_num = False, 0
        self.custom_routing_function = None
        for name in ("w13_weight", "w2_weight"):
            self.register_parameter(name, torch.nn.Parameter(torch.ones(1)))
        for name, value in changed.items():
            setattr(self, name, value)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"activation": "relu2"}, "with the activation 'relu2' (layers.0.experts); serve another"),
        ({"apply_router_weight_on_input": True}, "with weights of the router on the experts' inp"),
        ({"custom_routing_function": print}, "with a custom routing function (layers.0.exp"),
        ({"zero_expert_num": 2}, "with experts that compute nothing (layers.0.experts); serve"),
        ({"w13_scale": torch.nn.Parameter(torch.ones(1))}, "with weights besides those of gate"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_moe_of_another_kind_is_refused(changed: dict[str, object], text: str) -> None:
    moe.check(Experts())
    with pytest.raises(UnsupportedError) as error:
        moe.check(Experts(**changed))
    assert text in str(error.value)


def test_a_float32_model_is_rounded_if_the_user_says_so(models: Path) -> None:
    model = families.write("llama", models)
    for dtype, expected in [("auto", "float32"), ("half", "float16"), ("bfloat16", "bfloat16")]:
        config = EngineArgs(model, dtype=dtype, skip_tokenizer_init=True).create_engine_config()
        assert str(config.model_config.dtype) == f"torch.{expected}"


def test_a_model_without_a_head_dimension_of_ours(models: Path) -> None:
    config = families.FAMILIES["llama"].to_dict()
    families.FAMILIES["wide"] = type(families.FAMILIES["llama"])(**config | {"head_dim": 320})
    assert "the operators take heads of up to 256" in _refusal(families.write("wide", models))


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ({"vllm-tpu": "0.10.1.1"}, "is for vllm 0.11.0, but .* has vllm-tpu 0.10.1.1; run `python"),
        ({"vllm": "0.11.1+cu129"}, r"is for vllm 0.11.0, but this environment has vllm 0.11.1\+cu"),
        ({"vllm": "0.11.0", "vllm-tpu": "0.10.1.1"}, "has vllm 0.11.0 and vllm-tpu 0.10.1.1; run"),
        ({}, "this environment has none; run `python integrations/vllm/install.py` in an"),
    ],
    ids=["vllm-tpu", "vllm", "both", "neither"],
)
def test_another_vllm(found: dict[str, str], text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    environment.check_packages()
    monkeypatch.setattr(environment, "installed", lambda: found)
    with pytest.raises(UnsupportedError, match=text):
        environment.check_packages()


def test_a_build_of_the_version_that_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"vllm": f"{environment.VLLM_VERSION}+local"}
    monkeypatch.setattr(environment, "installed", lambda: found)
    environment.check_packages()


def test_replaced_attributes_exist() -> None:
    """Each replaced attribute belongs to the class itself, not to a parent class."""
    for replacement in overrides.REPLACEMENTS:
        owner, name = replacement.find()
        assert name in vars(owner), replacement


def test_another_torch_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"vllm": environment.VLLM_VERSION, "torch_xla": "2.9.0"}
    monkeypatch.setattr(environment, "_version", found.get)
    with pytest.raises(UnsupportedError, match=r"needs torch_xla 2\.8\.1 with the"):
        environment.check_packages()


def test_upstream_torch_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match="without it; install the wheel that"):
        environment.check_packages()


# Chooses the platform as at vLLM's start; the forked process may have inherited one.
CHOICE = """
import sys
import vllm.platforms
vllm.platforms._current_platform = None
sys.modules.pop("vllm_xla_gpu.platform", None)
from vllm.platforms import current_platform
"""


@pytest.mark.parametrize(("device", "found"), [(None, "not set"), ("", "not set"), ("TPU", "TPU")])
def test_no_device_is_chosen(
    device: str | None, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PJRT_DEVICE")
    result = run_script(CHOICE, **({} if device is None else {"PJRT_DEVICE": device}))
    assert result.returncode == 0, result.stderr
    text = f"vllm-xla-gpu is not used: PJRT_DEVICE is {found}; set it to CUDA or CPU"
    assert (result.stdout + result.stderr).count(text) == 1


def test_no_cuda_plugin() -> None:
    result = run_script(CHOICE, PJRT_DEVICE="CUDA", TORCH_XLA_EXT_PJRT_PLUGIN="/nowhere/p.so")
    assert result.returncode != 0
    assert "/nowhere/p.so" in result.stderr.splitlines()[-1]
    assert "TORCH_XLA_EXT_PJRT_PLUGIN" in result.stderr


def test_set_up_without_the_wheel() -> None:
    site = [sysconfig.get_path("purelib")]
    if list(importlib.metadata.distributions(name="torch_xla", path=site)):
        pytest.skip("this environment has the wheel: the script would install vLLM in it")
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    result = subprocess.run(
        [sys.executable, "integrations/vllm/install.py"],
        env=environ,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1
    assert result.stdout == ""
    assert "has torch_xla none, and vLLM needs 2.8.1 of this project: `./bazelw" in result.stderr


def test_memory_in_words() -> None:
    gpu = memory.DeviceMemory("the GPU's memory", 12 << 30, 14 << 30)
    with pytest.raises(UnsupportedError) as error:
        gpu.check_fits(16 << 30)
    assert str(error.value) == (
        "the model's weights are 16.0 GiB, but vLLM may use 12.0 GiB of the GPU's memory; serve a "
        "smaller model, or raise gpu_memory_utilization"
    )
    gpu.check_fits(11 << 30)
    with pytest.raises(UnsupportedError, match=r"took 14\.0 GiB, and vLLM may use 12\.0"):
        gpu.available_for_cache()
    roomy = memory.DeviceMemory("the GPU's memory", 100 << 30, 20 << 30)
    assert roomy.available_for_cache() == 77 << 30
    assert roomy.available_for_cache(devices=4) == 308 << 30


def test_memory_after_another_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The allocator's peak includes earlier engines of the process."""
    info = {"bytes_limit": 100 << 30, "bytes_used": 5 << 30, "peak_bytes_used": 97 << 30}
    monkeypatch.setattr(memory, "allocator_info", lambda device: info)
    device = torch.device("meta")
    assert memory.DeviceMemory.current(device, earlier_peak=97 << 30).peak == 15 << 30
    assert memory.DeviceMemory.current(device, earlier_peak=96 << 30).peak == 97 << 30
    info["peak_bytes_used"] = 7 << 30
    assert memory.DeviceMemory.current(device, earlier_peak=7 << 30).peak == 7 << 30


def test_memory_of_gpus_that_tell_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several GPUs, torch_xla reports the one with the least free memory."""
    info = {"bytes_limit": 80 << 30, "bytes_used": 10 << 30, "peak_bytes_used": 14 << 30}
    monkeypatch.setattr(memory.xm, "get_memory_info", lambda device: info)
    monkeypatch.setenv("PJRT_DEVICE", "CUDA")
    found = memory.DeviceMemory.current(torch.device("meta"), weights=10 << 30)
    assert found.available_for_cache(devices=2) // 2 == int(0.97 * (80 << 30)) - (14 << 30)


def test_memory_of_gpus_that_do_not_tell_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(device: torch.device) -> None:
        raise RuntimeError("GetAllocatorStats is not implemented\nand a stack")

    monkeypatch.setattr(memory.xm, "get_memory_info", fail)
    monkeypatch.setattr(memory, "gpu_memory", lambda: 100 << 30)
    monkeypatch.setenv("PJRT_DEVICE", "CUDA")
    monkeypatch.setenv("PJRT_ALLOCATOR_FRACTION", "0.8")
    found = memory.DeviceMemory.current(torch.device("meta"), weights=10 << 30)
    assert found.limit == 80 << 30
    # 97% of 80 GiB, less 10 for weights and 8 for activations.
    assert found.available_for_cache(devices=2) // 2 == int(0.97 * (80 << 30)) - (18 << 30)


LAUNCHED = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}


@pytest.mark.parametrize(
    ("options", "environment", "text"),
    [
        (
            {},
            {"WORLD_SIZE": "2", "RANK": "1"},
            "WORLD_SIZE=2: this process is one of several. For ",
        ),
        ({"launched": True}, {}, "needs RANK, WORLD_SIZE, MASTER_ADDR in the environment; start "),
        ({"launched": True, "seed": None}, LAUNCHED, "the same tokens; set seed=0"),
        (
            {"launched": True, "tensor_parallel_size": 1},
            LAUNCHED,
            "tensor_parallel_size=1 with 2 processes; set it to the number of GPUs of all",
        ),
    ],
    ids=["not asked for", "not launched", "no seed", "devices"],
)
def test_several_processes(
    options: dict[str, object],
    environment: dict[str, str],
    text: str,
    models: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in LAUNCHED:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    options = {"seed": 0, "tensor_parallel_size": 2} | options
    if options.pop("launched", False):
        options["distributed_executor_backend"] = "external_launcher"
    assert text in _refusal(families.write("llama", models), **options)


def test_a_server_in_several_processes(models: Path) -> None:
    arguments = AsyncEngineArgs(
        families.write("llama", models), distributed_executor_backend="external_launcher"
    )
    with pytest.raises(UnsupportedError, match=r"for a server; use vllm\.LLM in a script"):
        arguments.create_engine_config()


def test_memory_of_the_gpus_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    # Three GPUs.
    monkeypatch.setattr(memory.driver, "device_count", lambda: 3)
    monkeypatch.setattr(memory.driver, "total_memory", lambda number: [80, 100, 90][number] << 30)
    assert memory.gpu_memory() == 80 << 30
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    assert memory.gpu_memory() == 100 << 30
