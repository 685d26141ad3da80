"""What each operator of the wheel is tested with: the tests of this folder run for all of them.

A new operator adds an entry here, and gets every test of the folder.
"""

import dataclasses
from collections.abc import Callable

import pytest
import torch
from testing.simple_add import DTYPES, random

from torch_xla_ext import ops

Arguments = tuple[torch.Tensor, ...]


@dataclasses.dataclass(frozen=True)
class OperatorSamples:
    """One operator, with arguments that it takes.

    Attributes:
        function: the documented function of torch_xla_ext.ops.
        target: its kernel's name.
        reference: the same in plain PyTorch, which the results equal bit for bit.
        dtypes: those that the first argument can have.
        arguments: makes random CPU tensors of a dtype for one call.
        batched_in_dims: arguments for torch.vmap's in_dims that fit to `batched`.
        batched: makes random CPU tensors for a call under torch.vmap.
        promotes: whether it promotes floating dtypes under torch.autocast.
    """

    function: Callable[..., torch.Tensor]
    target: str
    reference: Callable[..., torch.Tensor]
    dtypes: tuple[torch.dtype, ...]
    arguments: Callable[[torch.dtype], Arguments]
    batched: Callable[[tuple[int | None, ...]], Arguments]
    batched_in_dims: tuple[tuple[int | None, ...], ...]
    promotes: bool

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def overload(self) -> torch._ops.OpOverload:
        return getattr(torch.ops.xla_gpu, self.name).default


def _batched_pair(in_dims: tuple[int | None, ...]) -> Arguments:
    """Two tensors, one example of each of which is [3, 4], in a batch of 5."""
    tensors = []
    for dim in in_dims:
        shape = [3, 4]
        if dim is not None:
            shape.insert(dim % 3, 5)
        tensors.append(torch.randn(shape))
    return tuple(tensors)


OPERATORS = {
    "simple_add": OperatorSamples(
        function=ops.simple_add,
        target="XlaGpuSimpleAdd",
        reference=torch.add,
        dtypes=DTYPES,
        arguments=lambda dtype: (random(dtype, 3, 4), random(dtype, 3, 4)),
        batched=_batched_pair,
        batched_in_dims=((0, 0), (0, None), (None, 0), (1, 2), (-1, 0), (2, None)),
        promotes=True,
    ),
}

for_each_operator = pytest.mark.parametrize("op", OPERATORS.values(), ids=OPERATORS)
for_each_operator_and_dtype = pytest.mark.parametrize(
    ("op", "dtype"),
    [
        pytest.param(op, dtype, id=f"{name}-{dtype}")
        for name, op in OPERATORS.items()
        for dtype in op.dtypes
    ],
)
# "cuda" are torch's own tensors, without XLA.
DEVICES = ["cpu", "xla", *(["cuda"] if torch.cuda.is_available() else [])]
for_each_device = pytest.mark.parametrize("device_type", DEVICES)


def to(device: str | torch.device, tensors: Arguments) -> Arguments:
    return tuple(tensor.to(device) for tensor in tensors)
