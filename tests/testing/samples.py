"""Samples of an operator: kernels/<op>/samples.py defines them, tests/ops runs them."""

import dataclasses
from collections.abc import Callable

import torch

Arguments = tuple[torch.Tensor, ...]


@dataclasses.dataclass(frozen=True)
class OperatorSamples:
    """One operator, with arguments that it takes.

    Attributes:
        documented: the function of torch_xla_ext.ops.
        target: its kernel's name.
        reference: the same function in plain PyTorch, for CPU tensors.
        dtypes: the possible dtypes of the first argument.
        arguments: makes random CPU tensors of a dtype for one call.
        others: the operator's arguments after the tensors.
        of_tensors: a function with only tensors as arguments, and one tensor as result; by default
            `documented` with `others`.
        tolerance: the largest error, relative to the reference's norm; 0 if results must be equal.
        differentiable: whether it has derivatives, and is an elementwise function of float32
            tensors of one shape, as the tests of transforms require.
        batched_in_dims: torch.vmap's in_dims for the arguments that `batched` makes.
        batched: makes random CPU tensors for a call under torch.vmap.
    """

    documented: Callable[..., torch.Tensor]
    target: str
    reference: Callable[..., torch.Tensor]
    dtypes: tuple[torch.dtype, ...]
    arguments: Callable[[torch.dtype], Arguments]
    others: tuple[object, ...] = ()
    of_tensors: Callable[..., torch.Tensor] | None = None
    tolerance: float = 0
    differentiable: bool = False
    batched: Callable[[tuple[int | None, ...]], Arguments] | None = None
    batched_in_dims: tuple[tuple[int | None, ...], ...] = ()

    @property
    def name(self) -> str:
        return self.documented.__name__

    @property
    def overload(self) -> torch._ops.OpOverload:
        return getattr(torch.ops.xla_gpu, self.name).default

    def function(self, *tensors: torch.Tensor) -> torch.Tensor:
        if self.of_tensors is not None:
            return self.of_tensors(*tensors)
        return self.documented(*tensors, *self.others)

    def check(self, result: torch.Tensor, args: Arguments) -> None:
        """Asserts that `result` is right for the CPU tensors `args`."""
        expected = self.reference(*args)
        assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
        if self.tolerance == 0:
            assert torch.equal(result.cpu(), expected)
        else:
            difference = (result.cpu().double() - expected.double()).norm()
            assert difference <= self.tolerance * expected.double().norm()
