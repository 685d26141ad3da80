"""Refuse collectives that would hang or be wrong: of threads, of one process, and under SPMD.

XLA:CPU matches the devices of a collective by the run of their program. Threads that each have a
CPU device run their own programs, so the devices waited for each other until XLA aborted the
process.

Under SPMD, a program is one process with whole tensors, so a sum over processes is the tensor. In a
region of manual sharding each device has its part, and sums are over the devices.

Upstream, collectives of one process ignored their scale, took devices for processes, or set tensors
to zero. Those of parts did nothing, failed to compile, or had no gradients.
"""

import functools
import inspect
import os
from collections.abc import Callable

import torch
import torch_xla
from torch.autograd.function import FunctionCtx
from torch_xla import runtime
from torch_xla.core import xla_model
from torch_xla.distributed.spmd.xla_sharding import unwrap_sharded_tensor

# What this argument must be in a program of one process.
_ALONE = {
    "all_to_all": ("split_count", 1),
    "collective_broadcast": ("root_ordinal", 0),
    "collective_permute": ("pairs", [[0, 0]]),
    "recv": ("channel_id", None),
    "reduce_scatter": ("shard_count", 1),
    "send": ("channel_id", None),
}


def checked(original: Callable[..., object]) -> Callable[..., object]:
    """Replace a function of torch_xla.core.xla_model that adds a collective to the program."""
    name, signature = original.__name__, inspect.signature(original)

    @functools.wraps(original)
    def collective(*args: object, **kwargs: object) -> object:
        # Before a launch, and under SPMD, the size is 1.
        if runtime.world_size() == 1:
            _check_processes(name)
            call = signature.bind(*args, **kwargs)
            call.apply_defaults()
            return _of_one_process(name, call.arguments)
        if runtime.device_type() == "CPU" and runtime.addressable_device_count() > 1:
            raise RuntimeError(
                f"{name}: this process has a thread for each of its "
                f"{runtime.addressable_device_count()} CPU devices, and XLA:CPU has no collectives "
                "among threads: call torch_xla.runtime.use_spmd() instead of torch_xla.launch(), "
                "or unset CPU_NUM_DEVICES"
            )
        return original(*args, **kwargs)

    return collective


def reduce_gradients(original: Callable[..., None]) -> Callable[..., None]:
    """Replace xla_model.reduce_gradients, which does nothing in one process."""

    @functools.wraps(original)
    def reduced(*args: object, **kwargs: object) -> None:
        _check_processes("reduce_gradients")
        original(*args, **kwargs)

    return reduced


def _check_processes(name: str) -> None:
    """Raise an error if torchrun started several processes, but torch_xla knows one."""
    count = os.environ.get("WORLD_SIZE") or "1"
    if count == "1" or runtime.is_spmd() or runtime.world_size() > 1:
        return
    remedy = 'call torch.distributed.init_process_group("xla", init_method="xla://") first'
    if runtime.device_type() == "CPU":
        remedy = (
            "CPU devices of several processes do not connect: start one process with "
            f"CPU_NUM_DEVICES={count}, and call torch_xla.runtime.use_spmd()"
        )
    raise RuntimeError(
        f"{name}: WORLD_SIZE is {count}, but this process is not connected to others; {remedy}"
    )


def _check_dtype(name: str, reduce_type: str, tensor: torch.Tensor) -> None:
    if reduce_type in (xla_model.REDUCE_AND, xla_model.REDUCE_OR) and tensor.dtype != torch.bool:
        raise TypeError(
            f"{name}: XLA's collectives compute {reduce_type!r} of torch.bool, not of "
            f"{tensor.dtype}: pass tensor != 0, or use REDUCE_MIN or REDUCE_MAX"
        )


def all_reduce(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Replace torch_xla.core.functions.all_reduce, whose gradients in a region lack a sum."""

    @functools.wraps(original)
    def reduced(
        reduce_type: str,
        value: torch.Tensor,
        scale: float = 1.0,
        groups: list[list[int]] | None = None,
    ) -> torch.Tensor:
        if torch_xla._XLAC._xla_are_in_manual_region([value]):
            return xla_model.all_reduce(reduce_type, value, scale, groups)
        return original(reduce_type, value, scale, groups)

    return reduced


def _of_one_process(name: str, given: dict[str, object]) -> object:
    operand = next(one for one in ("value", "input", "inputs", "tensors", "output") if one in given)
    value = given[operand]
    is_one = isinstance(value, torch.Tensor)
    is_divided = runtime.is_spmd() and runtime.global_runtime_device_count() > 1
    tensors = [unwrap_sharded_tensor(t) for t in ([value] if is_one else value)]
    are_parts = is_divided and torch_xla._XLAC._xla_are_in_manual_region(tensors)
    if are_parts and name == "all_reduce" and not is_one:
        for tensor in tensors:
            tensor.copy_(_of_part(name, tensor, given))
        return value
    has_sums = name == "all_reduce" or (name == "reduce_scatter" and given["output"] is None)
    if are_parts and is_one and has_sums:
        return _of_part(name, tensors[0], given)
    argument, only = _ALONE.get(name, ("groups", given.get("groups")))
    if any(list(group) != [0] for group in given.get("groups") or ()):
        argument, only = "groups", None
    is_alone = given[argument] == only
    if are_parts or (is_divided and not is_alone):
        raise RuntimeError(
            f"{name}: under use_spmd() a program has whole tensors, and XLA adds the collectives: "
            "use operations of whole tensors, and mark_sharding; all_reduce and reduce_scatter "
            "also work in regions of manual sharding (enable_manual_sharding)"
        )
    if not is_alone:
        raise RuntimeError(
            f"{name}: {argument}={given[argument]!r} is for several processes, but this program "
            'has one: start it with torch_xla.launch() or torchrun, and call init_process_group("'
            'xla", init_method="xla://")'
        )
    if name == "collective_broadcast":
        return None
    is_in_place = name == "all_reduce" and not is_one
    results = tensors if is_in_place else [tensor.clone() for tensor in tensors]
    scale = given.get("scale", 1.0)
    if scale != 1:
        with torch.set_grad_enabled(torch.is_grad_enabled() and not is_in_place):
            torch._foreach_mul_(results, scale)
    output = given.get("output")
    if output is not None:
        torch._foreach_copy_([output] if is_one else output, results)
        return output
    if is_in_place:
        return value
    return results[0] if is_one else results


def _of_part(name: str, part: torch.Tensor, given: dict[str, object]) -> torch.Tensor:
    """Return the collective of all devices' parts."""
    reduce_type, scale = given["reduce_type"], given["scale"]
    groups = given["groups"] or [list(range(runtime.global_runtime_device_count()))]

    def all_reduced(tensor: torch.Tensor) -> torch.Tensor:
        return torch_xla._XLAC._xla_spmd_all_reduce(reduce_type, tensor, scale, groups)

    def scattered(tensor: torch.Tensor) -> torch.Tensor:
        return torch_xla._XLAC._xla_spmd_reduce_scatter(
            reduce_type, tensor, scale, given["scatter_dim"], given["shard_count"], groups
        )

    _check_dtype(name, reduce_type, part)
    compute = all_reduced if name == "all_reduce" else scattered
    if not (torch.is_grad_enabled() and part.requires_grad):
        return compute(part)
    return _WithGradient.apply(part, compute, name, reduce_type)


class _WithGradient(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: FunctionCtx,
        part: torch.Tensor,
        compute: Callable[[torch.Tensor], torch.Tensor],
        name: str,
        reduce_type: str,
    ) -> torch.Tensor:
        ctx.compute, ctx.name, ctx.reduce_type = compute, name, reduce_type
        return compute(part)

    @staticmethod
    def backward(ctx: FunctionCtx, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        # Each device's part is in all devices' sums.
        if ctx.name != "all_reduce" or ctx.reduce_type != xla_model.REDUCE_SUM:
            raise RuntimeError(
                f"{ctx.name}: in a region of manual sharding, only all_reduce with REDUCE_SUM has "
                f"gradients, not {ctx.name} with {ctx.reduce_type!r}: detach the operand, or use "
                "a torch.autograd.Function"
            )
        return ctx.compute(grad), None, None, None
