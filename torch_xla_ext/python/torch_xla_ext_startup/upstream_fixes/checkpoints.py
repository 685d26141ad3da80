"""Fix checkpoints of sharded states: torch_xla.experimental.distributed_checkpoint.

Upstream, the planners omit tensors if several devices have the same shard; the CheckpointManager
finds its coordinator's address only on TPUs; and save_async may write values of later steps.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import os
import socket
from collections.abc import Callable, Sequence
from types import EllipsisType
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
import torch_xla
import torch_xla.runtime as xr
from torch.utils._pytree import tree_map
from torch_xla.experimental.distributed_checkpoint._helpers import set_element

if TYPE_CHECKING:
    import io

    from torch.distributed.checkpoint.metadata import STATE_DICT_TYPE, Metadata, StorageMeta
    from torch.distributed.checkpoint.planner import ReadItem, SavePlan
    from torch_xla.distributed.spmd import XLAShard, XLAShardedTensor
    from torch_xla.experimental.distributed_checkpoint.manager import CheckpointManager
    from torch_xla.experimental.distributed_checkpoint.planners import (
        SPMDLoadPlanner,
        SPMDSavePlanner,
    )

# Devices for which torch_xla itself finds the coordinator's address.
_DEVICES_WITH_ADDRESS = ("TPU", "NEURON")


def dedup_tensors(_: object) -> Callable[[Sequence[SavePlan]], list[SavePlan]]:
    """Replace planners.dedup_tensors: each shard is written once, by the first process that has it.

    The original drops all copies of a shard that one process has on several devices.
    """

    def dedup(plans: Sequence[SavePlan]) -> list[SavePlan]:
        seen = set()
        unique = []
        for plan in plans:
            items = []
            for item in plan.items:
                if item.index not in seen:
                    seen.add(item.index)
                    items.append(item)
            unique.append(dataclasses.replace(plan, items=items))
        return unique

    return dedup


def create_xla_read_items(
    original: Callable[..., list[ReadItem]],
) -> Callable[[dict[str, XLAShardedTensor], Metadata], list[ReadItem]]:
    """Replace planners._create_xla_read_items: refuse tensors that the checkpoint cannot fill."""

    @functools.wraps(original)
    def create(state_dict: dict[str, XLAShardedTensor], metadata: Metadata) -> list[ReadItem]:
        for name, tensor in state_dict.items():
            saved = metadata.state_dict_metadata.get(name)
            if saved is None:
                raise RuntimeError(f"Missing key in checkpoint state_dict: {name}.")
            size = getattr(saved, "size", None)
            if size is None:
                raise RuntimeError(
                    f"{name} is a sharded tensor, but the checkpoint has an object that is not a "
                    "tensor"
                )
            if size != tensor.size():
                raise ValueError(
                    f"Size mismatch between saved {size} and current: {tensor.size()} for {name}"
                )
        return original(state_dict, metadata)

    return create


def set_up_save_planner(original: Callable[..., None]) -> Callable[..., None]:
    """Replace SPMDSavePlanner.set_up_planner, to accept the argument that PyTorch has added."""

    def set_up_planner(
        self: SPMDSavePlanner,
        state_dict: STATE_DICT_TYPE,
        storage_meta: StorageMeta | None = None,
        is_coordinator: bool = False,
    ) -> None:
        original(self, state_dict, is_coordinator)

    return set_up_planner


def load_bytes(original: Callable[..., None]) -> Callable[..., None]:
    """Replace SPMDLoadPlanner.load_bytes: load any object, as PyTorch's own planner does."""

    @functools.wraps(original)
    def load(self: SPMDLoadPlanner, read_item: ReadItem, value: io.BytesIO) -> None:
        path = self.mappings[read_item.dest_index.fqn]
        set_element(self.original_state_dict, path, torch.load(value, weights_only=False))

    return load


def unpadded_data(_: property) -> property:
    """Replace XLAShard.unpadded_data, with a form of indexing that PyTorch does not warn about."""

    def index(shard: XLAShard) -> tuple[slice, ...] | EllipsisType:
        if shard.indices is Ellipsis:
            return Ellipsis
        return tuple(slice(0, one.stop - one.start) for one in shard.indices)

    def get(self: XLAShard) -> torch.Tensor:
        return self.data[index(self)]

    def put(self: XLAShard, values: torch.Tensor) -> None:
        self.data[index(self)] = values

    return property(get, put, doc="The shard's data without its padding")


def state_at_the_call(
    original: Callable[[STATE_DICT_TYPE], STATE_DICT_TYPE],
) -> Callable[[STATE_DICT_TYPE], STATE_DICT_TYPE]:
    """Replace manager._sharded_cpu_state_dict: copy tensors that later steps change.

    Some of these are on the host, such as an optimizer's `step`.
    """

    def copied(value: object) -> object:
        if not isinstance(value, torch.Tensor):
            return copy.deepcopy(value)
        return value.detach().clone() if value.device.type == "cpu" else value

    @functools.wraps(original)
    def sharded_cpu_state_dict(state_dict: STATE_DICT_TYPE) -> STATE_DICT_TYPE:
        return original(tree_map(copied, state_dict))

    return sharded_cpu_state_dict


def make_manager(original: Callable[..., None]) -> Callable[..., None]:
    """Replace CheckpointManager.__init__: find its coordinator on any device."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def init(self: CheckpointManager, *args: object, **kwargs: object) -> None:
        given = signature.bind(self, *args, **kwargs)
        given.apply_defaults()
        watches = given.arguments["chkpt_on_preemption"]
        if xr.device_type() in _DEVICES_WITH_ADDRESS or not watches:
            original(*given.args, **given.kwargs)
            return
        given.arguments["chkpt_on_preemption"] = False
        original(*given.args, **given.kwargs)
        address, port = _coordinator_address(self.pg)
        # Does nothing if the processes of several GPUs have a coordinator.
        torch_xla._XLAC._ensure_xla_coordinator_initialized(
            dist.get_rank(self.pg), dist.get_world_size(self.pg), address, port
        )
        torch_xla._XLAC._activate_preemption_sync_manager()
        self.chkpt_on_preemption = True

    return init


def _coordinator_address(group: dist.ProcessGroup) -> tuple[str, str]:
    """Return a host and a free port for the coordinator in the group's first process."""
    address = [None]
    if dist.get_rank(group) == 0:
        with socket.socket() as trial:
            trial.bind(("", 0))
            address = [(os.environ.get("MASTER_ADDR", "localhost"), str(trial.getsockname()[1]))]
    if dist.get_world_size(group) > 1:
        dist.broadcast_object_list(address, group=group, group_src=0)
    return address[0]


def save_async(original: Callable[..., bool]) -> Callable[..., bool]:
    """Replace CheckpointManager.save_async: first raise an earlier checkpoint's exception."""

    @functools.wraps(original)
    def save(self: CheckpointManager, *args: object, **kwargs: object) -> bool:
        _raise_failures(self)
        return original(self, *args, **kwargs)

    return save


def join(original: Callable[[CheckpointManager], None]) -> Callable[[CheckpointManager], None]:
    """Replace CheckpointManager.join: raise the exception of a checkpoint that failed."""

    @functools.wraps(original)
    def wait_for_checkpoints(self: CheckpointManager) -> None:
        original(self)
        _raise_failures(self)

    return wait_for_checkpoints


def _raise_failures(manager: CheckpointManager) -> None:
    """Drop the finished checkpoints, and raise their first exception."""
    done = [future for future in manager._async_futures if future.done()]
    manager._async_futures = [one for one in manager._async_futures if one not in done]
    for future in done:
        future.result()
