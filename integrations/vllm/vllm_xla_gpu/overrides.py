"""What is replaced inside vLLM, and where the versions of vLLM that are served differ.

Nothing else in this package changes vLLM's modules or asks for its version. Each replacement names
the versions that it was written for and in which it was tested. worker.py, model_runner.py,
attention.py, sampling.py, engine.py and platform.py subclass vLLM's classes for TPUs.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.metadata
import os
import sys
import types
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn
    from vllm.config import VllmConfig
    from vllm.lora.layers.base_linear import BaseLinearLayerWithLoRA
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.engine.processor import Processor
    from vllm.v1.worker.tpu_model_runner import TPUModelRunner

# By the package that has it. vLLM 0.11.0 is the last one for torch 2.8.0; vllm-tpu is a build
# without CUDA.
SERVED = {"vllm": "0.11.0", "vllm-tpu": "0.10.1.1"}
OLD, NEW = SERVED["vllm-tpu"], SERVED["vllm"]


def installed() -> dict[str, str]:
    """The versions of vLLM in this environment, by the package that has them."""
    found = {}
    for package in SERVED:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def listed(versions: Mapping[str, str], word: str) -> str:
    return word.join(f"{package} {version}" for package, version in versions.items())


def unserved(found: Mapping[str, str]) -> str | None:
    """What is wrong with these packages, as `installed` tells them; None if they are served."""
    public = {package: version.split("+")[0] for package, version in found.items()}
    if len(found) == 1 and public.items() <= SERVED.items():
        return None
    return (
        f"vllm-xla-gpu is for {listed(SERVED, ' or ')}, but this environment has "
        f"{listed(found, ' and ') or 'neither'}"
    )


@functools.cache
def is_old() -> bool:
    """Whether this is OLD; it is NEW otherwise (checks.py refuses all others)."""
    return "vllm-tpu" in installed()


# Replacements.


@dataclasses.dataclass(frozen=True)
class Replacement:
    """Of an attribute of a module or class.

    Attributes:
        stage: when it takes place; see `apply`.
        module, path: of the attribute, such as vllm.v1.engine.async_llm and AsyncLLM.shutdown.
        versions: of vLLM that it was written for.
        make: makes the new value of the old one.
    """

    stage: str
    module: str
    path: str
    versions: tuple[str, ...]
    make: Callable[[Any], Any]

    def find(self) -> tuple[object, str]:
        """The attribute's owner and its name there."""
        *parents, name = self.path.split(".")
        return functools.reduce(getattr, parents, importlib.import_module(self.module)), name


REPLACEMENTS: list[Replacement] = []


def _replaces(
    stage: str, module: str, path: str, *versions: str
) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    def register(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
        REPLACEMENTS.append(Replacement(stage, module, path, versions, make))
        return make

    return register


@functools.cache
def apply(stage: str) -> None:
    """Makes the replacements of a stage, once in each process.

    Args:
        stage: `start`, when vLLM loads its plugins; `engine`, when an engine is configured;
            `runner`, when its model runner is imported, which imports torch_xla; `quantized`,
            before a model with quantized weights is made.
    """
    version = OLD if is_old() else NEW
    for replacement in REPLACEMENTS:
        if replacement.stage == stage and version in replacement.versions:
            owner, name = replacement.find()
            setattr(owner, name, replacement.make(getattr(owner, name)))


@_replaces("start", "vllm.engine.arg_utils", "_raise_or_fallback", OLD, NEW)
def _refuse_engine_v0(_: Callable) -> Callable:
    """vLLM falls back to its engine V0, which does not run here, for what V1 cannot do."""
    from vllm_xla_gpu import checks

    return checks.refuse_engine_v0


@_replaces("start", "vllm.engine.arg_utils", "_warn_or_fallback", OLD)
def _no_fallback(_: Callable) -> Callable:
    """Also for what V1 may do if VLLM_USE_V1=1 says so, such as an engine in a thread."""
    return lambda feature_name: False


@_replaces("start", "vllm.engine.arg_utils", "EngineArgs.create_engine_config", OLD, NEW)
def _check_arguments(create: Callable) -> Callable:
    """What the user asks for; later vLLM has chosen something."""
    from vllm_xla_gpu import checks

    @functools.wraps(create)
    def create_engine_config(arguments: object, *others: object, **options: object) -> object:
        checks.check_arguments(arguments, os.environ)
        return create(arguments, *others, **options)

    return create_engine_config


@_replaces("start", "vllm.model_executor.models.registry", "_run_in_subprocess", OLD, NEW)
def _inspect_here(_: Callable) -> Callable:
    """vLLM imports a model's class in a process of its own first, lest CUDA be initialized.

    Here that does not happen, and another process takes some ten seconds.
    """
    return lambda inspect: inspect()


@_replaces("start", "vllm.model_executor.models.interfaces_base", "supports_kw", NEW)
def _keep_no_model(supports_kw: Callable) -> Callable:
    """vLLM's cache keeps the models that it was asked about, with their weights and KV caches."""
    return supports_kw.__wrapped__


def _keep_float32(resolve: Callable) -> Callable:
    """dtype="auto": vLLM rounds float32 models. Here they are served as they are."""
    import torch

    @functools.wraps(resolve)
    def resolve_auto_dtype(model_type: str, own: torch.dtype, **options: object) -> torch.dtype:
        return own if own == torch.float32 else resolve(model_type, own, **options)

    return resolve_auto_dtype


_replaces("start", "vllm.config", "_resolve_auto_dtype", OLD)(_keep_float32)
_replaces("start", "vllm.config.model", "_resolve_auto_dtype", NEW)(_keep_float32)


@_replaces("engine", "vllm.v1.engine.async_llm", "AsyncLLM.shutdown", OLD, NEW)
def _end_requests(shutdown: Callable) -> Callable:
    """Incomplete requests end with an error, for which their clients would wait for ever."""
    from vllm_xla_gpu import ending

    return functools.partialmethod(ending.shutdown, shutdown)


@_replaces("engine", "vllm.v1.engine.core_client", "AsyncMPClient.shutdown", OLD)
def _end_client_in_its_loop(shutdown: Callable) -> Callable:
    from vllm_xla_gpu import ending

    return functools.partialmethod(ending.shutdown_client, shutdown)


@_replaces("engine", "vllm.v1.engine.core_client", "InprocClient.get_output", OLD)
def _overlap_in_process(_: Callable) -> Callable:
    """The client for an engine in the caller's process knows of no steps that overlap."""
    from vllm_xla_gpu import engine

    return engine.get_output


@_replaces("engine", "vllm.v1.engine.processor", "Processor._validate_model_input", OLD, NEW)
def _check_prompts(validate: Callable) -> Callable:
    """vLLM's scheduler never computes the last token of a prompt of max_model_len tokens."""
    from vllm_xla_gpu import checks

    @functools.wraps(validate)
    def validate_prompt(
        processor: Processor, prompt: dict, *args: object, **options: object
    ) -> None:
        validate(processor, prompt, *args, **options)
        model = processor.model_config
        if model.runner_type == "generate":
            checks.check_prompt(len(prompt["prompt_token_ids"]), model.max_model_len)

    return validate_prompt


@_replaces("runner", "vllm.model_executor.utils", "_make_synced_weight_loader", OLD)
def _tell_success(synced: Callable) -> Callable:
    """vLLM's loses what the loader returns, and then some mixtures of experts lack weights."""

    def make_synced_weight_loader(load: Callable) -> Callable:
        def load_synced(*args: object, **options: object) -> object:
            results = []
            synced(lambda *a, **o: results.append(load(*a, **o)))(*args, **options)
            return results[0]

        return load_synced

    return make_synced_weight_loader


_YARN = "vllm.model_executor.layers.rotary_embedding.yarn_scaling_rope"


@_replaces("runner", _YARN, "yarn_find_correction_range", OLD, NEW)
def _yarn_range(find: Callable) -> Callable:
    """vLLM rounds the range also for models that say that it is not rounded, such as gpt-oss."""
    from vllm.config import get_current_vllm_config
    from vllm.model_executor.layers.rotary_embedding.common import yarn_find_correction_dim

    def yarn_find_correction_range(
        low: float, high: float, dim: int, base: float, longest: int
    ) -> tuple[float, float]:
        model = get_current_vllm_config().model_config.hf_text_config
        if (getattr(model, "rope_scaling", None) or {}).get("truncate", True):
            return find(low, high, dim, base, longest)
        low, high = (yarn_find_correction_dim(n, dim, base, longest) for n in (low, high))
        return max(low, 0), min(high, dim - 1)

    return yarn_find_correction_range


_QUANTIZATION = "vllm.model_executor.layers.quantization"
_COMPRESSED = f"{_QUANTIZATION}.compressed_tensors.compressed_tensors"


@_replaces("quantized", f"{_QUANTIZATION}.fp8", "Fp8LinearMethod", NEW)
def _fp8_linear(_: type) -> type:
    """vLLM's computes by its CUDA operators, and without them by Marlin's."""
    from vllm_xla_gpu.quantized import Fp8LinearMethod

    return Fp8LinearMethod


@_replaces("quantized", _COMPRESSED, "CompressedTensorsW8A8Fp8", NEW)
def _compressed_fp8_linear(_: type) -> type:
    from vllm_xla_gpu.quantized import XlaW8A8Fp8

    return XlaW8A8Fp8


@_replaces("quantized", _COMPRESSED, "CompressedTensorsConfig._check_scheme_supported", NEW)
def _any_capability(_: Callable) -> Callable:
    """The platform tells none. Schemes that are not served are refused when the model is made."""
    return lambda config, least, error=True, match_exact=False: not match_exact


@_replaces("quantized", f"{_QUANTIZATION}.fp8", "Fp8MoEMethod", NEW)
def _no_fp8_experts(_: type) -> Callable:
    from vllm_xla_gpu.quantized import refuse_experts

    return refuse_experts


@_replaces("quantized", _COMPRESSED, "CompressedTensorsMoEMethod.get_moe_method", NEW)
def _no_compressed_experts(_: Callable) -> Callable:
    from vllm_xla_gpu.quantized import refuse_experts

    return refuse_experts


@_replaces("runner", "vllm.v1.worker.tpu_model_runner", "PallasAttentionBackend", OLD, NEW)
def _attention(_: type) -> type:
    """The runner takes the caches' shape from this name, whatever the attention's backend is."""
    from vllm_xla_gpu.attention import XlaGpuAttentionBackend

    return XlaGpuAttentionBackend


@_replaces("runner", "vllm.v1.worker.tpu_model_runner", "TPUSupportedSamplingMetadata", OLD, NEW)
def _metadata(_: type) -> type:
    from vllm_xla_gpu.sampling import SamplingMetadata

    return SamplingMetadata


def stand_in_for_tpu_info() -> None:
    """Before vllm.platforms.tpu is imported, which takes the names of TPU chips from there."""
    sys.modules.setdefault("tpu_info", types.ModuleType("tpu_info")).device = None


# Differences between the versions.


def structured_outputs(config: VllmConfig) -> object:
    """The settings of structured output."""
    return config.decoding_config if is_old() else config.structured_outputs_config


def empty_step() -> SchedulerOutput:
    """What a scheduler returns that starts nothing."""
    from vllm.v1.core.sched.output import CachedRequestData, SchedulerOutput

    freed = "free_encoder_input_ids" if is_old() else "free_encoder_mm_hashes"
    return SchedulerOutput(
        scheduled_new_reqs=[],
        scheduled_cached_reqs=CachedRequestData.make_empty(),
        num_scheduled_tokens={},
        total_num_scheduled_tokens=0,
        scheduled_spec_decode_tokens={},
        scheduled_encoder_inputs={},
        num_common_prefix_blocks=[],
        finished_req_ids=set(),
        structured_output_request_ids={},
        grammar_bitmask=None,
        **{freed: []},
    )


def with_adapters(runner: TPUModelRunner, model: nn.Module) -> nn.Module:
    """The model with vLLM's layers for LoRA."""
    config = runner.vllm_config
    settings = (
        (config.model_config, config.scheduler_config, config.lora_config)
        if is_old()
        else (config,)
    )
    return runner.load_lora_model(model, *settings, runner.device)


def linear_with_adapters() -> type[BaseLinearLayerWithLoRA]:
    """The class of vLLM's linear layers for LoRA."""
    module = "vllm.lora.layers" if is_old() else "vllm.lora.layers.base_linear"
    return importlib.import_module(module).BaseLinearLayerWithLoRA


def apply_top_k_top_p(logits: torch.Tensor, k: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    """vLLM's, without a scatter; it writes into `logits`."""
    if is_old():
        from vllm.v1.sample.ops import topk_topp_sampler

        return topk_topp_sampler.apply_top_k_top_p_tpu(logits, k, p)
    from vllm.v1.sample.tpu import sampler

    return sampler.apply_top_k_top_p(logits, k, p)
