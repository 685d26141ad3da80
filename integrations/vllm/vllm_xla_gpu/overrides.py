"""Replace functions inside vLLM; nothing else in this package changes vLLM's modules.

The replacements were written for, and tested with, the version in environment.py. worker.py,
model_runner.py, attention.py, sampling.py, engine.py and platform.py subclass vLLM's classes for
TPUs.

A replacement imports its new value at its stage, because modules that import torch_xla must be
imported after vLLM has chosen its platform.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import os
import sys
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from vllm_xla_gpu import checks

if TYPE_CHECKING:
    from vllm.v1.engine.core import EngineCoreProc
    from vllm.v1.engine.processor import Processor


@dataclasses.dataclass(frozen=True)
class Replacement:
    """A replacement of an attribute of a module or class.

    Attributes:
        stage: when the replacement takes place; see `apply`.
        module, path: the attribute, such as vllm.v1.engine.async_llm and AsyncLLM.shutdown.
        make: makes the new value from the old one.
    """

    stage: str
    module: str
    path: str
    make: Callable[[Any], Any]

    def find(self) -> tuple[object, str]:
        """Return the object that has the attribute, and the attribute's name."""
        *parents, name = self.path.split(".")
        return functools.reduce(getattr, parents, importlib.import_module(self.module)), name


REPLACEMENTS: list[Replacement] = []


def _replaces(
    stage: str, module: str, path: str
) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    def register(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
        REPLACEMENTS.append(Replacement(stage, module, path, make))
        return make

    return register


@functools.cache
def apply(stage: str) -> None:
    """Make the replacements of a stage, once in each process.

    Args:
        stage: `start`, when vLLM loads its plugins; `engine`, when an engine is configured;
            `runner`, when its model runner is imported, which imports torch_xla; `quantized`,
            before a model with quantized weights is made.
    """
    for replacement in REPLACEMENTS:
        if replacement.stage == stage:
            owner, name = replacement.find()
            setattr(owner, name, replacement.make(getattr(owner, name)))


@_replaces("start", "vllm.engine.arg_utils", "_raise_or_fallback")
def _refuse_engine_v0(_: Callable) -> Callable:
    """Refuse vLLM's fallback to its engine V0, which does not run here."""
    return checks.refuse_engine_v0


@_replaces("start", "vllm.engine.arg_utils", "EngineArgs.create_engine_config")
def _check_arguments(create: Callable) -> Callable:
    """Check the user's arguments, before vLLM chooses defaults."""

    @functools.wraps(create)
    def create_engine_config(arguments: object, *others: object, **options: object) -> object:
        checks.check_arguments(arguments, os.environ)
        return create(arguments, *others, **options)

    return create_engine_config


@_replaces("start", "vllm.model_executor.models.registry", "_run_in_subprocess")
def _inspect_here(_: Callable) -> Callable:
    """Import a model's class in this process.

    vLLM uses another process, so that CUDA stays uninitialized in this one. CUDA is not
    initialized here, and another process would take some ten seconds.
    """
    return lambda inspect: inspect()


@_replaces("start", "vllm.model_executor.models.interfaces_base", "supports_kw")
def _keep_no_model(supports_kw: Callable) -> Callable:
    """Keep models out of vLLM's cache, which would keep their weights and KV caches."""
    return supports_kw.__wrapped__


@_replaces("start", "vllm.config.model", "_resolve_auto_dtype")
def _keep_float32(resolve: Callable) -> Callable:
    """Serve float32 models in float32 with dtype="auto", for which vLLM would round them."""

    @functools.wraps(resolve)
    def resolve_auto_dtype(model_type: str, own: torch.dtype, **options: object) -> torch.dtype:
        return own if own == torch.float32 else resolve(model_type, own, **options)

    return resolve_auto_dtype


@_replaces("engine", "vllm.v1.engine.async_llm", "AsyncLLM.shutdown")
def _end_requests(shutdown: Callable) -> Callable:
    """End incomplete requests with an error, because their clients would wait forever."""
    from vllm_xla_gpu.shutdown import end_requests

    return functools.partialmethod(end_requests, shutdown)


@_replaces("engine", "vllm.v1.engine.processor", "Processor._validate_model_input")
def _check_prompts(validate: Callable) -> Callable:
    """Refuse prompts of max_model_len tokens, whose last token vLLM would never compute."""

    @functools.wraps(validate)
    def validate_prompt(
        processor: Processor, prompt: dict, *args: object, **options: object
    ) -> None:
        validate(processor, prompt, *args, **options)
        model = processor.model_config
        if model.runner_type == "generate":
            checks.check_prompt(len(prompt["prompt_token_ids"]), model.max_model_len)

    return validate_prompt


_YARN = "vllm.model_executor.layers.rotary_embedding.yarn_scaling_rope"


@_replaces("runner", _YARN, "yarn_find_correction_range")
def _yarn_range(find: Callable) -> Callable:
    """Do not round the YaRN range for models that request this, such as gpt-oss."""
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


_ROPE = "vllm.model_executor.layers.rotary_embedding.base"


@_replaces("runner", _ROPE, "RotaryEmbedding.forward_native")
def _defer_rotation(forward: Callable) -> Callable:
    """Let the kernel that writes the cache apply the rotary embedding, if nothing comes between."""
    from vllm_xla_gpu.deferred import rotated

    def forward_native(
        layer: object, positions: torch.Tensor, query: object, key: object | None = None
    ) -> tuple[object, object]:
        deferred = rotated(forward, layer, positions, query, key)
        return forward(layer, positions, query, key) if deferred is None else deferred

    return forward_native


_NORM = "vllm.model_executor.layers.layernorm"


@_replaces("runner", _NORM, "RMSNorm.forward_native")
def _defer_norm(forward: Callable, *, adds_one: bool = False) -> Callable:
    """Let the kernel that writes the cache compute the norms of queries and keys.

    Add a residual in its dtype, as transformers and vLLM's CUDA kernel do: XLA makes this sum a
    part of the matmul before it. A sum in float32, as here in vLLM, XLA computes anew in each of
    the norms that follow.
    """
    from vllm_xla_gpu.deferred import normed

    def forward_native(layer: object, x: object, residual: torch.Tensor | None = None) -> object:
        if residual is None:
            deferred = normed(forward, layer, x, adds_one=adds_one)
            return forward(layer, x) if deferred is None else deferred
        if adds_one:
            return forward(layer, x, residual)
        residual = x + residual
        return forward(layer, residual), residual

    return forward_native


@_replaces("runner", _NORM, "GemmaRMSNorm.forward_native")
def _defer_gemma_norm(forward: Callable) -> Callable:
    return _defer_norm(forward, adds_one=True)


@_replaces("runner", "vllm.model_executor.layers.linear", "QKVParallelLinear.forward")
def _keep_columns(forward: Callable) -> Callable:
    """Keep queries, keys and values in one tensor, as on several devices."""
    from vllm_xla_gpu.deferred import ShardedColumns

    def forward_of_columns(layer: torch.nn.Module, x: torch.Tensor) -> object:
        result = forward(layer, x)
        output, *bias = result if isinstance(result, tuple) else (result,)
        if isinstance(output, torch.Tensor) and output.dim() == 2:
            output = ShardedColumns(output[:, None], layer.output_sizes)
        return (output, *bias) if isinstance(result, tuple) else output

    return forward_of_columns


@_replaces("runner", "vllm.model_executor.layers.utils", "default_unquantized_gemm")
def _linear(_: Callable) -> Callable:
    """Let the kernels for few rows multiply few tokens by weights."""
    from vllm_xla_gpu.linear import linear

    return lambda layer, x, weight, bias=None: linear(x, weight, bias)


@_replaces("runner", "vllm.model_executor.layers.linear", "MergedColumnParallelLinear.forward")
def _defer_gate_and_up(forward: Callable) -> Callable:
    """Let the kernel of `_swiglu` compute the product, as on several devices."""
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod

    from vllm_xla_gpu.deferred import gate_and_up

    def forward_of_two(layer: torch.nn.Module, x: torch.Tensor) -> object:
        output = None
        if type(layer.quant_method) is UnquantizedLinearMethod and layer.bias is None:
            output = gate_and_up(x, layer.weight, layer.output_sizes)
        if output is None:
            return forward(layer, x)
        return (output, None) if layer.return_bias else output

    return forward_of_two


@_replaces("runner", "vllm.model_executor.layers.activation", "SiluAndMul.forward_native")
def _swiglu(forward: Callable) -> Callable:
    """Let the kernel that multiplies by both weights apply the activation."""
    from vllm_xla_gpu.deferred import GateAndUp

    def forward_native(layer: object, x: object) -> torch.Tensor:
        result = x.swiglu() if isinstance(x, GateAndUp) else None
        return forward(layer, x) if result is None else result

    return forward_native


@_replaces("runner", "vllm.v1.engine.core", "EngineCoreProc._process_input_queue")
def _take_requests_late(take: Callable) -> Callable:
    """Take requests that arrive until shortly before the next step must be scheduled."""

    @functools.wraps(take)
    def process_input_queue(core: EngineCoreProc) -> None:
        if not core.scheduler.waiting:  # those would come first
            core.model_executor.sleep_until_needed(len(core.scheduler.running))
        take(core)

    return process_input_queue


_QUANTIZATION = "vllm.model_executor.layers.quantization"
_COMPRESSED = f"{_QUANTIZATION}.compressed_tensors.compressed_tensors"


@_replaces("quantized", f"{_QUANTIZATION}.fp8", "Fp8LinearMethod")
def _fp8_linear(_: type) -> type:
    """Replace vLLM's fp8 method, which needs vLLM's or Marlin's CUDA operators."""
    from vllm_xla_gpu.quantized import Fp8LinearMethod

    return Fp8LinearMethod


@_replaces("quantized", _COMPRESSED, "CompressedTensorsW8A8Fp8")
def _compressed_fp8_linear(_: type) -> type:
    from vllm_xla_gpu.quantized import XlaW8A8Fp8

    return XlaW8A8Fp8


@_replaces("quantized", _COMPRESSED, "CompressedTensorsConfig._check_scheme_supported")
def _any_capability(_: Callable) -> Callable:
    """Accept any compute capability; quantized.check refuses unsupported schemes."""
    return lambda config, least, error=True, match_exact=False: not match_exact


@_replaces("quantized", f"{_QUANTIZATION}.fp8", "Fp8MoEMethod")
def _fp8_experts(_: type) -> type:
    from vllm_xla_gpu.quantized import Fp8MoEMethod

    return Fp8MoEMethod


@_replaces("quantized", _COMPRESSED, "CompressedTensorsMoEMethod.get_moe_method")
def _compressed_experts(_: Callable) -> Callable:
    from vllm_xla_gpu.quantized import compressed_experts

    return compressed_experts


@_replaces("quantized", f"{_QUANTIZATION}.mxfp4", "Mxfp4MoEMethod")
def _mxfp4_experts(_: type) -> type:
    from vllm_xla_gpu.quantized import Mxfp4MoEMethod

    return Mxfp4MoEMethod


@_replaces("quantized", "vllm.model_executor.models.gpt_oss", "GptOssModel._load_weights_mxfp4")
def _load_without_cuda(load: Callable) -> Callable:
    from vllm_xla_gpu.quantized import load_without_cuda

    return load_without_cuda(load)


@_replaces("runner", "vllm.v1.worker.tpu_model_runner", "PallasAttentionBackend")
def _attention(_: type) -> type:
    """Return this package's attention backend, which determines the caches' shape."""
    from vllm_xla_gpu.attention import XlaGpuAttentionBackend

    return XlaGpuAttentionBackend


def stand_in_for_tpu_info() -> None:
    """Provide a stand-in for the module from which vllm.platforms.tpu imports TPU chip names."""
    sys.modules.setdefault("tpu_info", types.ModuleType("tpu_info")).device = None
