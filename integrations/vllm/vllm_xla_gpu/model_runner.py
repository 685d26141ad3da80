"""vLLM's model runner for TPUs, on another device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch_xla
from vllm.model_executor.layers.fused_moe import layer as moe
from vllm.model_executor.layers.fused_moe.moe_torch_iterative import fused_moe
from vllm.model_executor.model_loader import get_model_loader
from vllm.model_executor.model_loader.utils import (
    initialize_model,
    process_weights_after_loading,
    set_default_torch_dtype,
)
from vllm.v1.sample.tpu.sampler import Sampler
from vllm.v1.worker import tpu_model_runner
from vllm.v1.worker.tpu_model_runner import TPUModelRunner

from vllm_xla_gpu import checks
from vllm_xla_gpu.attention import XlaGpuAttentionBackend
from vllm_xla_gpu.memory import DeviceMemory

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

moe.fused_moe_pallas = fused_moe  # the other one calls torch_xla's gmm, a TPU kernel
# The runner takes the caches' shape from this name, whatever the attention's backend is.
tpu_model_runner.PallasAttentionBackend = XlaGpuAttentionBackend


class XlaGpuModelRunner(TPUModelRunner):
    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        super().__init__(vllm_config, device)
        self.kv_cache_dtype = checks.dtype_of_cache(self.kv_cache_dtype)
        # A TPU has room for few page numbers; here a step takes all sequences at once.
        self.num_reqs_max_model_len = self.max_num_reqs

    def load_model(self) -> None:
        """As vLLM's loaders do it, with a look at the size before anything is allocated."""
        loader = get_model_loader(self.load_config)
        with set_default_torch_dtype(self.dtype):
            with self.device:
                model = initialize_model(vllm_config=self.vllm_config)
            # Nothing has been allocated so far: torch_xla does so when it has to.
            weights = sum(weight.nbytes for weight in (*model.parameters(), *model.buffers()))
            DeviceMemory.current(self.device).check_fits(weights)
            loader.load_weights(model, self.model_config)
            process_weights_after_loading(model, self.model_config, self.device)
        for module in model.modules():
            if isinstance(module, torch.nn.LayerNorm):
                # torch's own fails under openxla with a number of tokens that varies.
                module.forward = _layer_norm.__get__(module)
        torch_xla.sync(wait=True)
        self.model = model.eval()
        self.sampler = Sampler()

    def initialize_kv_cache(self, kv_cache_config: KVCacheConfig) -> None:
        # It makes them by torch.zeros on the default device, and moves them.
        with self.device:
            super().initialize_kv_cache(kv_cache_config)
        torch_xla.sync(wait=True)


def _layer_norm(norm: torch.nn.LayerNorm, x: torch.Tensor) -> torch.Tensor:
    dims = tuple(range(-len(norm.normalized_shape), 0))
    x32 = x.float()
    centered = x32 - x32.mean(dims, keepdim=True)
    normal = centered * torch.rsqrt(centered.square().mean(dims, keepdim=True) + norm.eps)
    if norm.weight is not None:
        normal = normal * norm.weight.float()
    if norm.bias is not None:
        normal = normal + norm.bias.float()
    return normal.to(x.dtype)
