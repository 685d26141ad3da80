"""Refuse unsupported configurations and requests, with errors that name a remedy."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from vllm_xla_gpu.limits import CACHE_DTYPES, HEAD_DIMS, PAGE_SIZES, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vllm.config import VllmConfig
    from vllm.engine.arg_utils import EngineArgs
    from vllm.sampling_params import SamplingParams

POOLING_TYPES = ("LAST", "CLS", "MEAN")
QUANTIZATIONS = ("fp8", "compressed-tensors", "mxfp4")
# Variables of torchrun, with which the processes find each other.
_LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR")


def check_config(config: VllmConfig) -> None:
    """Refuse settings that would fail later, or be ignored."""
    model, cache, parallel = config.model_config, config.cache_config, config.parallel_config
    devices = parallel.tensor_parallel_size
    refused = {
        "pipeline_parallel_size or data_parallel_size above 1": (
            parallel.pipeline_parallel_size > 1 or parallel.data_parallel_size > 1,
            "start one server for each GPU with CUDA_VISIBLE_DEVICES, or set tensor_parallel_size",
        ),
        "VLLM_USE_V1=0": (
            os.environ.get("VLLM_USE_V1") == "0",
            "leave it out: only vLLM's engine V1 runs on XLA",
        ),
        "PJRT_ALLOCATOR_PREALLOCATE=0": (
            os.environ.get("PJRT_ALLOCATOR_PREALLOCATE") == "0",
            "leave it out: an allocator that grows has no room for caches of most of its memory. "
            "A lower gpu_memory_utilization leaves memory to others",
        ),
        "VLLM_XLA_USE_SPMD": (
            os.environ.get("VLLM_XLA_USE_SPMD", "0") == "1",
            "set tensor_parallel_size instead",
        ),
        **_speculation(config),
        **_quantization(config),
        "enable_lora_bias": (
            config.lora_config is not None and config.lora_config.bias_enabled,
            "leave it out, or merge the adapter into the model's weights",
        ),
        "enable_expert_parallel": (
            parallel.enable_expert_parallel,
            "leave it out: with tensor_parallel_size each GPU has a part of every expert",
        ),
        "fully_sharded_loras": (
            config.lora_config is not None and config.lora_config.fully_sharded_loras,
            "leave it out: adapters are divided as the layers that they are added to",
        ),
        "logits_processors": (
            model is not None and bool(model.logits_processors),
            "use logit_bias, allowed_token_ids, bad_words or structured output",
        ),
        "logprobs_mode other than raw_logprobs": (
            model is not None and model.logprobs_mode != "raw_logprobs",
            "leave it out: vLLM returns the model's own log probabilities",
        ),
        "--enable-prompt-embeds": (
            model is not None and model.enable_prompt_embeds,
            "leave it out",
        ),
        "max_logprobs=-1": (
            model is not None and model.max_logprobs < 0,
            "set it to the most that a request may ask for",
        ),
        "cpu_offload_gb": (cache.cpu_offload_gb > 0, "leave it out"),
        "calculate_kv_scales": (
            cache.calculate_kv_scales,
            "leave it out: the scales of an fp8 cache are the model's own, or 1",
        ),
        "a KV connector": (config.kv_transfer_config is not None, "leave it out"),
        f"kv_cache_dtype={cache.cache_dtype!r}": (
            cache.cache_dtype not in CACHE_DTYPES,
            f"choose one of {', '.join(CACHE_DTYPES)}",
        ),
        f"block_size={cache.block_size}": (
            cache.block_size not in PAGE_SIZES,
            f"choose one of {', '.join(map(str, PAGE_SIZES))}",
        ),
    }
    if model is not None:
        pages, override = -(-model.max_model_len // cache.block_size), cache.num_gpu_blocks_override
        refused[f"num_gpu_blocks_override={override}"] = (
            override is not None and override <= pages,  # vLLM keeps one for itself
            f"a sequence of max_model_len={model.max_model_len} needs {pages + 1}",
        )
        name = f"{model.architecture} ({model.model})"
        refused |= {
            **_pooling(config, name),
            f"{name}: an encoder": (model.is_encoder_decoder, "serve a decoder-only model"),
            f"{name}: images, sound and other inputs that are not text": (
                model.is_multimodal_model,
                "serve a text model",
            ),
            **_latent_attention(config, name),
            f"{name}: layers with a state instead of a KV cache": (
                model.is_attention_free or model.is_hybrid,
                "serve a model all of whose layers are attention",
            ),
            f"{name}: {model.get_total_num_kv_heads()} key and value heads on {devices} devices": (
                model.get_total_num_kv_heads() % devices != 0,
                "set tensor_parallel_size to a number that divides them",
            ),
            f"{name}: heads of {model.get_head_size()}": (
                not model.use_mla and model.get_head_size() > HEAD_DIMS[-1],
                f"the operators take heads of up to {HEAD_DIMS[-1]}",
            ),
        }
    for what, (wrong, remedy) in refused.items():
        if wrong:
            raise UnsupportedError(f"vllm-xla-gpu does not support {what}; {remedy}")


def _speculation(config: VllmConfig) -> dict[str, tuple[bool, str]]:
    """Return the unsupported settings of speculative decoding, as in `check_config`."""
    speculative = config.speculative_config
    if speculative is None:
        return {}
    launched = config.parallel_config.distributed_executor_backend == "external_launcher"
    return {
        f"speculative decoding by {speculative.method!r}": (
            speculative.method != "ngram",
            "set method='ngram', or leave it out",
        ),
        "speculative decoding with external_launcher": (launched, "leave it out"),
        "speculative decoding for embeddings": (
            config.model_config.runner_type != "generate",
            "leave it out",
        ),
    }


def _quantization(config: VllmConfig) -> dict[str, tuple[bool, str]]:
    """Return the unsupported settings of quantized weights, as in `check_config`."""
    if config.quant_config is None:
        return {}
    devices = config.parallel_config.tensor_parallel_size
    return {
        "quantized weights with enable_lora and tensor_parallel_size above 1": (
            config.lora_config is not None and devices > 1,
            "merge the adapter into the model's weights, or serve it on one GPU",
        ),
        "quantized weights with multi-head latent attention": (
            config.model_config.use_mla,
            "set VLLM_MLA_DISABLE=1, or serve bfloat16 weights",
        ),
    }


def _latent_attention(config: VllmConfig, name: str) -> dict[str, tuple[bool, str]]:
    """Return the unsupported settings of multi-head latent attention, as in `check_config`."""
    model = config.model_config
    if not model.use_mla:
        return {}
    of_model, ordinary = model.hf_text_config, "set VLLM_MLA_DISABLE=1, for attention with heads"
    dims = (of_model.kv_lora_rank, of_model.qk_rope_head_dim)
    return {
        f"{name}: multi-head latent attention to chosen tokens": (
            hasattr(of_model, "index_topk"),
            "serve another model",
        ),
        f"{name}: latent rows of {dims[0]} and {dims[1]} elements": (dims != (512, 64), ordinary),
        f"{name}: multi-head latent attention in {model.dtype}": (
            model.dtype.itemsize != 2,
            f"choose dtype='bfloat16', or {ordinary}",
        ),
        f"{name}: enable_lora with multi-head latent attention": (
            config.lora_config is not None,
            f"merge the adapter into the model's weights, or {ordinary}",
        ),
    }


def _pooling(config: VllmConfig, name: str) -> dict[str, tuple[bool, str]]:
    """Return the unsupported settings of a pooling model, as in `check_config`."""
    model, scheduler = config.model_config, config.scheduler_config
    if model.runner_type == "generate":
        return {}
    kind = model.pooler_config.pooling_type
    tokens = scheduler.max_num_batched_tokens
    return {
        f"{name}: scores, classes and rewards": (
            model.convert_type != "embed",
            "serve a decoder that generates text, or its embeddings with runner='pooling' and "
            "convert='embed'",
        ),
        f"pooling_type={kind!r}": (
            kind not in POOLING_TYPES,
            f"choose one of {', '.join(POOLING_TYPES)}",
        ),
        f"max_num_batched_tokens={tokens} with pooling_type={kind!r}": (
            not scheduler.chunked_prefill_enabled and tokens < model.max_model_len,
            f"a step needs all tokens of a prompt: set it to max_model_len={model.max_model_len}",
        ),
        "enable_lora for embeddings": (
            config.lora_config is not None,
            "leave it out, and merge the adapter into the model's weights",
        ),
        "external_launcher for embeddings": (
            config.parallel_config.distributed_executor_backend == "external_launcher",
            "leave it out: one process drives all GPUs of its host",
        ),
    }


def check_arguments(arguments: EngineArgs, environ: Mapping[str, str]) -> None:
    """Check the user's arguments, before vLLM chooses an executor.

    Raises:
        UnsupportedError: an unsupported executor, or one for which the process was not started
            correctly.
    """
    from vllm.engine.arg_utils import AsyncEngineArgs

    backend, devices = arguments.distributed_executor_backend, arguments.tensor_parallel_size
    launcher = "distributed_executor_backend='external_launcher'"
    count = environ.get("WORLD_SIZE", "1")
    if backend not in (None, "uni", "external_launcher"):
        raise UnsupportedError(
            f"vllm-xla-gpu does not support distributed_executor_backend={backend!r}; leave it "
            "out: one process drives all GPUs of tensor_parallel_size. For several hosts, set "
            f"{launcher} and start the script with torchrun"
        )
    if backend != "external_launcher":
        if count != "1":
            raise UnsupportedError(
                f"WORLD_SIZE={count}: this process is one of several. For one engine in all of "
                f"them, set {launcher}; for an engine in only this process, remove WORLD_SIZE and "
                "RANK from the environment"
            )
        return
    if isinstance(arguments, AsyncEngineArgs):
        raise UnsupportedError(
            f"vllm-xla-gpu does not support {launcher} for a server; use vllm.LLM in a script that "
            "torchrun starts, or leave it out: one process drives all GPUs of its host"
        )
    missing = [name for name in _LAUNCHED if name not in environ]
    if missing:
        raise UnsupportedError(
            f"{launcher} needs {', '.join(missing)} in the environment; start the script with "
            "torchrun"
        )
    if devices % int(count) != 0:
        raise UnsupportedError(
            f"tensor_parallel_size={devices} with {count} processes; set it to the number of GPUs "
            "of all processes together"
        )
    if arguments.seed is None:
        raise UnsupportedError(
            f"{launcher} needs a seed, so that all processes choose the same tokens; set seed=0"
        )


def refuse_engine_v0(feature_name: str | list[str], recommend_to_remove: bool) -> None:
    """Refuse vLLM's fallback to its engine V0, which does not support XLA."""
    if isinstance(feature_name, str):
        raise UnsupportedError(f"vllm-xla-gpu does not support {feature_name}; leave it out")
    raise UnsupportedError(
        f"vllm-xla-gpu does not support {', '.join(feature_name)}: vLLM's engine V1 does not run "
        "this model (it has ALiBi, an encoder or layers with a state); serve another model"
    )


def check_quantization(method: str) -> None:
    if method not in QUANTIZATIONS:
        raise UnsupportedError(
            f"vllm-xla-gpu does not support quantized weights ({method}); serve the model's "
            "bfloat16 weights with quantization='fp8', or a checkpoint in fp8"
        )


def check_sampling(params: SamplingParams) -> None:
    """Refuse sampling parameters that vLLM's backend for XLA ignores."""
    if params.prompt_logprobs is not None:
        raise UnsupportedError(
            "vllm-xla-gpu does not support prompt_logprobs; leave it out. The tokens of an answer "
            "have logprobs"
        )


def check_prompt(length: int, max_model_len: int) -> None:
    """Refuse a prompt that is too long: vLLM's scheduler would never compute its last token."""
    if length >= max_model_len:
        raise UnsupportedError(
            f"the prompt has {length} tokens: with max_model_len={max_model_len} there is no room "
            "for an answer"
        )
