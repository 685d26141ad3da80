"""The platform class for vLLM, which inherits from vLLM's TPU platform."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

from vllm_xla_gpu import checks, environment, overrides

environment.check_packages()
environment.check_device()

overrides.stand_in_for_tpu_info()

from vllm.platforms.tpu import TpuPlatform  # noqa: E402

if TYPE_CHECKING:  # vllm.config imports this module
    from vllm.config import VllmConfig
    from vllm.sampling_params import SamplingParams

DEFAULT_PAGE_SIZE = 16


class XlaGpuPlatform(TpuPlatform):
    """The platform for GPUs; it claims to be a TPU, so that vLLM uses its code for XLA."""

    device_control_env_var = "CUDA_VISIBLE_DEVICES"
    additional_env_vars = ("PJRT_DEVICE", "XLA_FLAGS")

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        return f"XLA {os.environ['PJRT_DEVICE']}"

    @classmethod
    def set_device(cls, device: torch.device) -> None:
        pass

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        return False

    @classmethod
    def get_attn_backend_cls(
        cls,
        selected_backend: object,
        head_size: int,
        dtype: torch.dtype,
        kv_cache_dtype: str | None,
        block_size: int,
        use_v1: bool,
        use_mla: bool,
        *args: object,
    ) -> str:
        if use_mla:
            return "vllm_xla_gpu.mla.XlaGpuMlaBackend"
        return "vllm_xla_gpu.attention.XlaGpuAttentionBackend"

    @classmethod
    def get_punica_wrapper(cls) -> str:
        return "vllm_xla_gpu.lora.Adapters"

    @classmethod
    def get_lora_vocab_padding_size(cls) -> int:
        return 64  # as without adapters

    @classmethod
    def verify_quantization(cls, quant: str) -> None:
        checks.check_quantization(quant)

    @classmethod
    def is_kv_cache_dtype_supported(cls, kv_cache_dtype: str, *args: object) -> bool:
        return True  # check_config refuses the others with a better error

    @classmethod
    def validate_request(
        cls, prompt: object, params: SamplingParams, processed_inputs: object
    ) -> None:
        from vllm.sampling_params import SamplingParams

        if isinstance(params, SamplingParams):
            checks.check_sampling(params)

    @classmethod
    def check_and_update_config(cls, vllm_config: VllmConfig) -> None:
        """Raise UnsupportedError for a configuration that cannot be served."""
        from vllm.config import CompilationLevel, CUDAGraphMode

        from vllm_xla_gpu.engine import LaunchedExecutor, XlaGpuExecutor, XlaGpuScheduler

        overrides.apply("engine")
        cache = vllm_config.cache_config
        cache.block_size = cache.block_size or DEFAULT_PAGE_SIZE
        checks.check_config(vllm_config)
        parallel = vllm_config.parallel_config
        parallel.worker_cls = "vllm_xla_gpu.worker.XlaGpuWorker"
        if parallel.distributed_executor_backend == "external_launcher":
            parallel.distributed_executor_backend = LaunchedExecutor
        elif not isinstance(parallel.distributed_executor_backend, type):
            parallel.distributed_executor_backend = XlaGpuExecutor
        vllm_config.scheduler_config.scheduler_cls = XlaGpuScheduler
        if vllm_config.lora_config is not None:
            # Adapters add no tokens, because they have linear layers only. Logits of additional
            # tokens would be computed, and cutting them off would make several devices exchange
            # logits.
            vllm_config.lora_config.lora_extra_vocab_size = 0
        # The runner captures whole steps.
        compilation = vllm_config.compilation_config
        compilation.level = CompilationLevel.NO_COMPILATION
        compilation.cudagraph_mode = CUDAGraphMode.NONE
