"""vLLM's worker for TPUs, adapted to other devices."""

from __future__ import annotations

import gc
import os
from typing import TYPE_CHECKING

import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from vllm.logger import init_logger
from vllm.model_executor import set_random_seed
from vllm.v1.worker.tpu_worker import TPUWorker
from vllm.v1.worker.utils import bind_kv_cache

from vllm_xla_gpu import memory
from vllm_xla_gpu.limits import UnsupportedError, padded_head_dim
from vllm_xla_gpu.model_runner import XlaGpuModelRunner
from vllm_xla_gpu.pooling import XlaGpuPoolingRunner
from vllm_xla_gpu.processes import Peers, settings
from vllm_xla_gpu.start import Start
from vllm_xla_gpu.tensor_parallel import Devices

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

logger = init_logger("vllm.xla_gpu")


class XlaGpuWorker(TPUWorker):
    def __init__(self, vllm_config: VllmConfig, *args: object, **kwargs: object) -> None:
        super().__init__(vllm_config, *args, **kwargs)
        self.start = Start()
        self._num_devices = self.parallel_config.tensor_parallel_size
        # vLLM sees one device, because XLA divides the program.
        self.parallel_config.tensor_parallel_size = self.parallel_config.world_size = 1

    def init_device(self) -> None:
        with self.start.part("devices"):
            self._init_device()

    def _init_device(self) -> None:
        """Initialize as the TPU worker does, but keep PJRT_DEVICE, and do not report it."""
        gc.collect()  # an engine before this one, whose caches are on the device
        self._peers = Peers.of_engine()
        if self._peers is not None:
            self._peers.check_same(
                settings(self.vllm_config, self._num_devices),
                "Give all processes the same model and settings",
            )
        torch.set_grad_enabled(False)
        torch.set_default_dtype(self.model_config.dtype)
        memory.set_allocator_fraction(self.cache_config.gpu_memory_utilization)
        devices = Devices(self._num_devices, self._peers) if self._num_devices > 1 else None
        self._init_tpu_worker_distributed_environment(
            self.vllm_config, self.rank, self.distributed_init_method, self.local_rank
        )
        self.device = torch_xla.device()
        self.device_config.device = self.device
        set_random_seed(self.model_config.seed)
        xm.set_rng_state(self.model_config.seed, self.device)
        self._earlier_peak = memory.allocator_peak(self.device)
        path = os.environ.get("VLLM_XLA_CACHE_PATH")
        # An earlier engine in this process may have set it.
        if path and not torch_xla._XLAC._xla_computation_cache_is_initialized():
            if self._peers is not None:
                path = self._peers.program_folder(path)
            # Programs that another wheel or plugin compiled have different keys.
            xr.initialize_cache(path, readonly=False)
        make_runner = self._runner_class()
        self.model_runner = make_runner(self.vllm_config, self.device, self.start, devices)

    def _runner_class(self) -> type[XlaGpuModelRunner]:
        if self.model_config.runner_type != "pooling":
            return XlaGpuModelRunner
        return XlaGpuPoolingRunner

    def load_model(self) -> None:
        with self.start.part("weights"):
            super().load_model()

    def initialize_from_config(self, kv_cache_config: KVCacheConfig) -> None:
        with self.start.part("caches"):
            super().initialize_from_config(kv_cache_config)

    def compile_or_warm_up_model(self) -> None:
        super().compile_or_warm_up_model()
        self.start.report()

    def sleep(self, level: int = 1) -> None:
        raise UnsupportedError("vllm-xla-gpu does not support sleep(); shut down the engine")

    def take_draft_token_ids(self) -> None:
        """Return None: the scheduler makes drafts."""

    # vLLM's GPU worker has these methods in addition to add_lora.
    def remove_lora(self, lora_id: int) -> bool:
        return self.model_runner.remove_lora(lora_id)

    def pin_lora(self, lora_id: int) -> bool:
        return self.model_runner.pin_lora(lora_id)

    def list_loras(self) -> set[int]:
        return self.model_runner.list_loras()

    def determine_available_memory(self) -> int:
        """Return the bytes for the KV caches as vLLM counts them, without padded heads."""
        if memory.allocator_info(self.device) is not None:
            with self.start.part("measuring memory"):
                self._run_without_caches()
        found = memory.DeviceMemory.current(
            self.device, self.model_runner.weights, self._earlier_peak
        )
        available = found.available_for_cache(self._num_devices)
        if self._peers is not None:
            available = self._peers.least(available)
        logger.info("%s for the KV cache.", memory.bytes_text(available))
        head_size = self.model_config.get_head_size()
        return available * head_size // padded_head_dim(head_size)

    def _run_without_caches(self) -> None:
        """Run the largest step, so that the allocator's peak has its activations."""
        runner = self.model_runner
        caches = {
            name: torch.empty(0, dtype=spec.dtype, device=self.device)
            for name, spec in runner.get_kv_cache_spec().items()
        }
        layers = self.vllm_config.compilation_config.static_forward_context
        bind_kv_cache(caches, layers, [])
        runner.profile_run(runner.max_num_tokens)
