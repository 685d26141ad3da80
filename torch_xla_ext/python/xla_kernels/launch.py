"""Describe the launch of a compiled kernel as attributes of the target XlaGpuCompiledKernel.

The target launches Triton kernels and kernels made with `cuda_kernel`. Its C++ side is
csrc/launchers/compiled_kernel.h. The front end makes the call.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType, MappingProxyType
from typing import NamedTuple

import numpy as np
import torch

from xla_kernels.signature.schema import ArrayType

TARGET = "XlaGpuCompiledKernel"
# One to three numbers, or a function of the arguments by name.
Dimensions = int | Sequence[int]
Grid = Dimensions | Callable[[Mapping[str, object]], Dimensions]


def digest_of(kernel: str, module: bytes) -> str:
    """Return the key under which the process keeps the loaded function."""
    return hashlib.sha256(kernel.encode() + b"\0" + module).hexdigest()


def operand(index: int) -> str:
    """Return the word for an operand's address."""
    return f"t{index}"


def result(index: int) -> str:
    """Return the word for a result's address."""
    return f"r{index}"


def value(data: bytes) -> str:
    """Return the word for a value with these bytes in memory."""
    return f"x{data.hex()}"


def tensor_map(address: str, description: bytes) -> str:
    """Return the word for a tensor map.

    Args:
        address: the word for the operand or result.
        description: little-endian fields, which csrc/launchers/tensor_map.cc reads: 32 bits each
            for the CUtensorMapDataType, the CUtensorMapSwizzle, the CUtensorMapFloatOOBfill, the
            rank and the box's sizes, and 64 bits each for the array's sizes and for its strides in
            bytes, without that of the innermost dimension. The innermost dimension comes first.
    """
    return f"m{address}:{description.hex()}"


NULL = value(bytes(8))


@dataclasses.dataclass(frozen=True)
class Launch:
    """The launch of a kernel.

    Attributes:
        module: a cubin, a fatbin, or the text of PTX.
        digest: the digest of the module and the kernel's name.
        kernel: the function's name in the module.
        grid, block, cluster: three numbers each: blocks, threads in a block, blocks in a cluster.
        shared: bytes of dynamic shared memory.
        cooperative: whether all blocks are resident at once, so that they can synchronize.
        dependent: whether the kernel may start before the previous one ends (programmatic dependent
            launch).
        spread: whether a cluster's blocks are spread over the multiprocessors, as Triton requires.
    """

    module: bytes
    digest: str
    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int] = (1, 1, 1)
    shared: int = 0
    cooperative: bool = False
    dependent: bool = False
    spread: bool = False

    @property
    def target(self) -> str:
        return TARGET

    def attributes(self, parameters: Sequence[str]) -> dict[str, object]:
        """Return the target's attributes; `parameters` are words of the functions above."""
        numbers = {name: getattr(self, name) for name in ("grid", "block", "cluster")}
        return {
            "module": self.module,
            "digest": self.digest,
            "kernel": self.kernel,
            **{name: np.array(three, np.int32) for name, three in numbers.items()},
            "shared": np.int32(self.shared),
            "cooperative": self.cooperative,
            "dependent": self.dependent,
            "spread": self.spread,
            "parameters": " ".join(parameters),
        }


@dataclasses.dataclass(frozen=True)
class Function:
    """A function that has a target of its own.

    Attributes:
        target: the target's name.
        kernel: the name in error messages.
    """

    target: str
    kernel: str

    def attributes(self, parameters: Mapping[str, object]) -> dict[str, object]:
        """Return the target's attributes, which are the parameters."""
        return dict(parameters)


class Call(NamedTuple):
    """A launch with a call's arguments.

    Attributes:
        launch: the kernel, and how it is launched; or a function.
        operands: the device's tensors.
        results: the results' types.
        parameters: words of the functions above; for a Function its attributes.
        aliases: {result: operand} for results in an operand's buffer. The caller's tensors do not
            change.
        has_side_effect: XLA keeps the call even if nothing in the program uses its results.
        num_hidden_results: how many of the last results are workspaces, which are not returned.
        sharding_rule: the dimensions that devices may share, as in `define_operator`.
        local: returns a device's call; it receives the device's part of the operands, as meta
            tensors, and the types of the visible results.
        local_values: other values that `local` depends on, distinguished by their repr; None for a
            `local` that is called for all parts when the call is made.
        operand_layouts, result_layouts: as in traits.Traits.
    """

    launch: Launch | Function
    operands: Sequence[torch.Tensor]
    results: Sequence[ArrayType]
    parameters: Sequence[str] | Mapping[str, object]
    aliases: Mapping[int, int]
    has_side_effect: bool = False
    num_hidden_results: int = 0
    sharding_rule: str | None = None
    local: Callable[[Sequence[torch.Tensor], Sequence[ArrayType]], Call] | None = None
    local_values: object = None
    operand_layouts: Mapping[int, Sequence[int]] = MappingProxyType({})
    result_layouts: Mapping[int, Sequence[int]] = MappingProxyType({})

    def attributes(self) -> dict[str, object]:
        """Return the target's attributes."""
        return self.launch.attributes(self.parameters)


def three(name: str, given: object, what: str) -> tuple[int, int, int]:
    """Return one to three numbers as three numbers.

    Args:
        name: the kernel's name.
        what: "grid" or "block".

    Raises:
        ValueError: `given` is not one to three numbers.
    """
    numbers = (given,) if isinstance(given, (int, np.integer)) else given
    try:
        numbers = tuple(numbers)
    except TypeError:
        numbers = ()
    unit = "threads" if what == "block" else "blocks"
    if not 1 <= len(numbers) <= 3 or any(
        not isinstance(n, (int, np.integer)) or isinstance(n, bool) or not 0 <= n < 1 << 31
        for n in numbers
    ):
        raise ValueError(f"{name}: {what} must be 1 to 3 numbers of {unit}, but is {given!r}")
    return (*(int(n) for n in numbers), 1, 1)[:3]


def computed(args: Sequence[object]) -> list[object]:
    """Return the arguments of a call with a sharding rule, with functions replaced by results.

    A function receives the list of arguments, with an ArrayType for each tensor and None for each
    function.
    """
    known = [
        None
        if isinstance(value, FunctionType)
        else ArrayType.of(value)
        if isinstance(value, torch.Tensor)
        else value
        for value in args
    ]
    return [value(known) if isinstance(value, FunctionType) else value for value in args]


def normalized_grid(kernel: str, grid: Grid, values: Mapping[str, object]) -> tuple[int, int, int]:
    """Return a grid as three numbers of blocks.

    Raises:
        ValueError: `grid` is not one to three numbers of blocks.
    """
    return three(kernel, grid(values) if callable(grid) else grid, "grid")
