"""Refuse collectives of threads that each have a CPU device, and those that SPMD has no use for.

XLA:CPU matches the devices of a collective by the run of their program. Each thread runs its own
program, so the devices waited for each other until XLA aborted the process.

Under SPMD, a program has whole tensors, so sums over processes are the tensors. In a region of
manual sharding, where each device has its part, upstream left them as they were, too.
"""

import functools
import inspect
from collections.abc import Callable

import torch
import torch_xla
from torch_xla import runtime
from torch_xla.distributed.spmd.xla_sharding import unwrap_sharded_tensor

from torch_xla_ext_startup.upstream_fixes.manual_sharding import is_in_region


def refuse(original: Callable[..., object]) -> Callable[..., object]:
    """Replace a function of torch_xla.core.xla_model that adds a collective to the program."""

    @functools.wraps(original)
    def collective(*args: object, **kwargs: object) -> object:
        # Before a launch, and under SPMD, the size is 1.
        if (
            runtime.world_size() > 1
            and runtime.device_type() == "CPU"
            and runtime.addressable_device_count() > 1
        ):
            raise RuntimeError(
                f"{original.__name__}: this process has a thread for each of its "
                f"{runtime.addressable_device_count()} CPU devices, and XLA:CPU has no collectives "
                "among threads: call torch_xla.runtime.use_spmd() instead of torch_xla.launch(), "
                "or unset CPU_NUM_DEVICES"
            )
        if runtime.is_spmd() and runtime.global_runtime_device_count() > 1:
            return _under_spmd(original, *args, **kwargs)
        return original(*args, **kwargs)

    return collective


def _under_spmd(original: Callable[..., object], *args: object, **kwargs: object) -> object:
    call = inspect.signature(original).bind(*args, **kwargs)
    call.apply_defaults()
    given, name = call.arguments, original.__name__
    value = given["value" if "value" in given else "input" if "input" in given else "inputs"]
    is_one = isinstance(value, torch.Tensor)
    tensors = [unwrap_sharded_tensor(t) for t in ([value] if is_one else value)]
    are_parts = any(map(is_in_region, tensors))
    groups = given.get("groups")
    if name == "all_reduce" and not are_parts:
        return original(*args, **kwargs)
    if name == "all_gather" and not are_parts and not groups:
        return original(*args, **kwargs)
    is_supported = name == "all_reduce" or (name == "reduce_scatter" and is_one)
    if not (are_parts and is_supported) or given.get("output") is not None:
        raise RuntimeError(
            f"{name}: under use_spmd() a program has whole tensors, and XLA adds the collectives: "
            "use operations of whole tensors, and mark_sharding; all_reduce and reduce_scatter "
            "also work in regions of manual sharding (enable_manual_sharding)"
        )
    groups = groups or [list(range(runtime.global_runtime_device_count()))]
    if name == "all_reduce":
        sums = [
            torch_xla._XLAC._xla_spmd_all_reduce(
                given["reduce_type"], tensor, given["scale"], groups
            )
            for tensor in tensors
        ]
        if is_one:
            return sums[0]
        for tensor, total in zip(tensors, sums, strict=True):
            tensor.copy_(total)
        return value
    return torch_xla._XLAC._xla_spmd_reduce_scatter(
        given["reduce_type"],
        tensors[0],
        given["scale"],
        given["scatter_dim"],
        given["shard_count"],
        groups,
    )
