"""Answer XLA's questions about how to divide a call among devices, as it compiles a program.

A program for several devices is traced as if there were one. XLA then decides how its arrays are
sharded: it propagates the user's marks through all operations, forward and backward. For a call of
a kernel it asks here for the results' sharding, given the operands' (`_infer`), for the operands',
given a consumer's (`_propagate`), and for the call of each device (`_divide`). The call's sharding
rule determines the answers.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
import torch_xla

from torch_xla_ext.sharding import plan, tiling
from torch_xla_ext.sharding.plan import Array, Groups, Plan, Shape
from torch_xla_ext.sharding.rule import Rule


class LocalCall(NamedTuple):
    """The parts of a call that depend on the shapes of its operands.

    Attributes:
        shapes, dtypes: of all results of the kernel.
        payload: the untyped payload, or the text of the FFI attributes.
    """

    shapes: Sequence[Shape]
    dtypes: Sequence[torch.dtype]
    payload: bytes | str


@dataclass(frozen=True)
class PartitionedCall:
    """A call that XLA divides among devices.

    Attributes:
        caller: the operator or target, in warnings and errors.
        rule: None for a call without one, which each device computes as a whole.
        operands: the shapes by the operands' names; None for an absent operand.
        results: the shapes of the kernel's first results, which the rule names.
        aliases: for each result that is written to an operand's buffer, the operand's index.
        local: the call for operands and results of these shapes. Raises ValueError or TypeError
            if the kernel refuses them.
        owner: the object that `local` belongs to. Equal calls of one owner are merged.
        values: other values that `local` depends on.
    """

    caller: str
    rule: Rule | None
    operands: Mapping[str, Array | None]
    results: Sequence[Array]
    aliases: Mapping[int, int]
    local: Callable[[Sequence[Shape | None], Sequence[Shape]], LocalCall]
    owner: object
    values: tuple[object, ...] = ()

    def plan(
        self,
        operands: Sequence[bytes | None] | None = None,
        results: Sequence[bytes | None] | None = None,
    ) -> Plan:
        """Return how the call is divided.

        Args:
            operands: the shardings of the present operands.
            results: the shardings.
        """
        return plan.make(
            self.rule,
            self._with_shardings(operands),
            tuple(
                array._replace(sharding=sharding)
                for array, sharding in zip(
                    self.results, results or [None] * len(self.results), strict=True
                )
            ),
            tuple(self.aliases.values()),
        )

    def _with_shardings(self, shardings: Sequence[bytes | None] | None) -> tuple[Array | None, ...]:
        left = iter(shardings or [None] * len(self.operands))
        return tuple(
            array and array._replace(sharding=next(left)) for array in self.operands.values()
        )

    def whole(self, operands: Sequence[bytes | None], reason: str) -> Plan:
        """Return the plan with which each device computes the whole call."""
        return plan.whole(self._with_shardings(operands), self.results, reason)


class DeviceCall(NamedTuple):
    """The call that each device makes; read by C++ (csrc/python/partitioning.cc).

    Attributes:
        operand_shardings, operand_shapes: those of the present operands.
        result_sharding: the traced results' sharding, that of a tuple if there are several.
        result_shapes, result_dtypes: those of all results of the kernel.
        num_traced_results: how many results the traced call has.
        sums: for each traced result, the groups of devices whose results must be added, if any.
        payload: the kernel's payload for these shapes.
    """

    operand_shardings: Sequence[bytes]
    result_sharding: bytes
    operand_shapes: Sequence[Shape]
    result_shapes: Sequence[Shape]
    result_dtypes: Sequence[torch.dtype]
    num_traced_results: int
    sums: Sequence[Groups]
    payload: bytes | str


# The calls by the names that `add` returned.
_calls: dict[str, PartitionedCall] = {}


@lru_cache(maxsize=1)
def _num_devices() -> int:
    return torch_xla.runtime.global_runtime_device_count()


def num_devices() -> int:
    """Return the number of devices that share a program."""
    return _num_devices() if torch_xla.runtime.is_spmd() else 1


@lru_cache(maxsize=1)
def _register() -> None:
    torch_xla._XLAC._xla_register_partitioners(_infer, _propagate, _divide)


def add(call: PartitionedCall, identity: tuple[object, ...]) -> str:
    """Store a call, so that XLA's callbacks find it.

    Args:
        identity: plain values that, with the call's own, distinguish it from others.

    Returns:
        The call's name, the same in every process; "" if programs run on one device, which calls
        the kernel directly.

    Raises:
        ValueError: the arrays' sizes do not fit the rule.
    """
    if num_devices() == 1:
        return ""
    if call.rule is not None:
        plan.check_sizes(
            call.rule,
            [array and array.shape for array in call.operands.values()],
            [array.shape for array in call.results],
        )
    _register()
    values = (
        call.caller,
        call.rule and call.rule.text,
        tuple(call.operands.items()),
        tuple(call.results),
        tuple(call.aliases.items()),
        call.values,
        identity,
    )
    name = hashlib.sha256(repr(values).encode()).hexdigest()[:32]
    number = 1
    while _calls.setdefault(name, call).owner is not call.owner:
        number += 1  # the operator has been defined again
        name = f"{name.partition('#')[0]}#{number}"
    return name


def _infer(name: str, operands: Sequence[bytes | None]) -> bytes | None:
    call = _calls[name]
    if call.rule is None or any(map(tiling.is_manual, operands)):
        return None
    made = call.plan(operands)
    return tiling.join([shard.sharding for shard in made.results]) if made.is_divided else None


def _propagate(name: str, result: bytes) -> bytes:
    call = _calls[name]
    shardings = tiling.elements(result, len(call.results))
    if any(map(tiling.is_manual, shardings)):
        return result
    if call.rule is None:
        return tiling.join([tiling.REPLICATED] * len(call.results))
    made = call.plan(results=shardings)
    return tiling.join([shard.sharding for shard in made.results])


def _divide(name: str, operands: Sequence[bytes | None], result: bytes | None) -> DeviceCall:
    call = _calls[name]
    shapes = [array.shape for array in call.operands.values() if array is not None]
    shardings = None if result is None else tiling.elements(result, len(call.results))
    if any(map(tiling.is_manual, (*operands, *(shardings or ())))):
        # The traced shapes are already those of a device.
        local = call.local(_shapes(call.operands.values()), _shapes(call.results))
        return DeviceCall(
            [sharding or tiling.REPLICATED for sharding in operands],
            result or tiling.REPLICATED,
            shapes,
            local.shapes,
            local.dtypes,
            len(call.results),
            [()] * len(call.results),
            local.payload,
        )
    made = call.plan(operands, shardings)
    try:
        local = _local(call, made)
    except (TypeError, ValueError) as error:
        if not made.is_divided:
            raise
        made = call.whole(operands, f"the kernel refuses a device's part: {error}")
        local = _local(call, made)
    plan.report(call.caller, list(call.operands), made.gathers)
    shards = [shard for shard in made.operands if shard is not None]
    return DeviceCall(
        [shard.sharding for shard in shards],
        tiling.join([shard.sharding for shard in made.results]),
        [shard.shape for shard in shards],
        local.shapes,
        local.dtypes,
        len(call.results),
        made.sums,
        local.payload,
    )


def _local(call: PartitionedCall, made: Plan) -> LocalCall:
    """Return the call of one device.

    Raises:
        ValueError, TypeError: the kernel refuses the shapes, or its results' shapes do not fit the
            rule.
    """
    results = _shapes(made.results)
    local = call.local(_shapes(made.operands), results)
    given = [tuple(shape) for shape in local.shapes[: len(results)]]
    if given != results:
        raise ValueError(
            f"{call.caller}: sharding_rule {call.rule and call.rule.text!r} says that a device's "
            f"results are {results}, but the kernel's are {given}"
        )
    return local


def _shapes(arrays: Sequence[Array | plan.Shard | None]) -> list[Shape | None]:
    return [array and array.shape for array in arrays]
