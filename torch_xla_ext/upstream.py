"""torch_xla's own operators on the devices for which upstream has no kernel.

``torch.ops.xla.ragged_paged_attention`` is a kernel for TPUs. On XLA's CPU and GPUs its calls go to
``torch.ops.xla_gpu.ragged_paged_attention`` here, so that code for TPUs runs unchanged. So do calls
of the Python function of the same name in torch_xla.experimental.custom_kernel, which upstream's
operator calls, and calls with CPU and CUDA tensors, for which upstream's operator returns memory
that nobody has written to. On TPUs, and with ``use_kernel=False``, everything is upstream's.

The function is replaced when its module is imported, which torch_xla does not do by itself.
"""

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

import torch
import torch_xla

_MODULE = "torch_xla.experimental.custom_kernel"
# XLA's device types for which there is a kernel in this wheel, and torch's own.
_XLA_DEVICE_TYPES = ("CPU", "CUDA")
_DEVICE_TYPES = ("cpu", "cuda")
_LIBRARY = torch.library.Library("xla", "IMPL")


def install() -> None:
    """Has the function replaced once its module is imported."""
    if _MODULE in sys.modules:
        _replace(sys.modules[_MODULE])
    else:
        sys.meta_path.insert(0, _Finder())


def _replace(module: ModuleType) -> None:
    module.ragged_paged_attention = _dispatching(module.ragged_paged_attention)
    for key in ("CPU", "CUDA"):
        _LIBRARY.impl("ragged_paged_attention", module.ragged_paged_attention_xla, key)


def _has_kernel(device: torch.device) -> bool:
    if device.type == "xla":
        return torch_xla.runtime.device_type() in _XLA_DEVICE_TYPES
    return device.type in _DEVICE_TYPES


def _dispatching(upstream: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(upstream)
    def ragged_paged_attention(
        q: torch.Tensor,
        kv_pages: torch.Tensor,
        kv_lens: torch.Tensor,
        page_indices: torch.Tensor,
        cu_q_lens: torch.Tensor,
        num_seqs: torch.Tensor,
        *,
        sm_scale: float = 1.0,
        sliding_window: int | None = None,
        soft_cap: float | None = None,
        mask_value: float | None = None,
        k_scale: float | None = None,
        v_scale: float | None = None,
        use_kernel: bool = True,
        **tuning: int | None,
    ) -> torch.Tensor:
        tensors = (q, kv_pages, kv_lens, page_indices, cu_q_lens, num_seqs)
        options = (sm_scale, sliding_window, soft_cap, mask_value, k_scale, v_scale)
        if use_kernel and _has_kernel(q.device):
            # `tuning` is about the TPU's kernel.
            return torch.ops.xla_gpu.ragged_paged_attention(*tensors, *options)
        names = ("sm_scale", "sliding_window", "soft_cap", "mask_value", "k_scale", "v_scale")
        options = dict(zip(names, options, strict=True))
        return upstream(*tensors, **options, use_kernel=use_kernel, **tuning)

    return ragged_paged_attention


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the one module where it is, and has it changed when it has run."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_replace(module: ModuleType) -> None:
                run(module)
                _replace(module)

            spec.loader.exec_module = run_and_replace
        return spec
