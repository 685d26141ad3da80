"""Shard late: a sharded or pending tensor, or use_spmd() after tensors exist.

Upstream, to mark a sharded tensor raises an error with a C++ stack. Here it is a plain error if the
tensor was marked, and works if only XLA chose its sharding, as for a result of a compiled function.
After clear_sharding of a marked tensor that is pending, upstream's program fails to compile. After
a late use_spmd(), torch_xla assumes that earlier and later tensors are on different devices, and
the next program crashes with a segmentation fault.
"""

import functools
import gc
from collections.abc import Callable

import torch
import torch_xla
from torch.utils.weak import WeakTensorKeyDictionary
from torch_xla import runtime

_XLAC = torch_xla._XLAC


def mark_sharding(
    original: Callable[[torch.Tensor, object], None],
) -> Callable[[torch.Tensor, object], None]:
    """Replace _xla_mark_sharding, which mark_sharding calls last."""
    # Tensors that were marked. The others' shardings are XLA's.
    marked = WeakTensorKeyDictionary()

    def mark(tensor: torch.Tensor, sharding: object) -> None:
        mark_once(tensor, sharding)
        marked[tensor] = True

    def mark_once(tensor: torch.Tensor, sharding: object) -> None:
        spec = _XLAC._get_xla_sharding_spec(tensor) if tensor.device.type == "xla" else ""
        try:
            original(tensor, sharding)
            return
        except RuntimeError:
            if tensor.device.type != "xla":
                raise RuntimeError(
                    f"mark_sharding: the tensor of shape {list(tensor.shape)} is on "
                    f'{tensor.device}: move it with .to("xla") first'
                ) from None
            if not runtime.is_spmd():
                raise RuntimeError(
                    "mark_sharding needs xr.use_spmd(): call it once, right after the imports"
                ) from None
            if spec not in ("", "{replicated}"):
                if tensor not in marked:
                    _XLAC._xla_annotate_custom_sharding(tensor, sharding)
                    return
                raise RuntimeError(
                    f"mark_sharding: the tensor of shape {list(tensor.shape)} has the sharding "
                    f"{spec} already: to change it, first call "
                    "torch_xla.distributed.spmd.clear_sharding(tensor)"
                ) from None
        # The program that computes the value may not have been started yet.
        _XLAC._xla_wait_device_ops([])
        if _XLAC._get_xla_sharding_spec(tensor):
            _XLAC._xla_clear_sharding(tensor)
        original(tensor, sharding)

    return mark


def clear_sharding(original: Callable[[torch.Tensor], None]) -> Callable[[torch.Tensor], None]:
    """Replace _xla_clear_sharding.

    The mark of a pending tensor is an operation, which other pending tensors may use, too. So it
    stays, and is computed first.
    """

    def clear(tensor: torch.Tensor) -> None:
        is_marked = tensor.device.type == "xla" and _XLAC._get_xla_sharding_spec(tensor)
        if is_marked and not _XLAC._xla_capture_data_address(tensor):
            _XLAC._xla_sync_multi([tensor], [], False)
        original(tensor)

    return clear


def use_spmd(original: Callable[..., None]) -> Callable[..., None]:
    """Replace use_spmd."""
    is_used = False

    @functools.wraps(original)
    def use(auto: bool | None = False) -> None:
        nonlocal is_used
        # Upstream's own tests delete XLA_USE_SPMD between two calls.
        if _XLAC._xla_get_spmd_config_is_locked() and not (is_used or runtime.is_spmd()):
            gc.collect()
            if _XLAC._xla_has_live_tensors():
                raise RuntimeError(
                    "use_spmd() comes too late: this process has XLA tensors, which are on single "
                    'devices; call use_spmd() right after the imports, before .to("xla") and '
                    "capture"
                )
        original(auto)
        is_used = True

    return use
