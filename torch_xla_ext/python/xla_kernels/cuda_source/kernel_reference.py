"""Call a kernel's reference, which computes the results on the CPU."""

from collections.abc import Callable, Sequence

import torch

from xla_kernels import transforms
from xla_kernels.signature.dtypes import PASSED_AS_BYTES, XLA_TYPES
from xla_kernels.signature.schema import ArrayType

Reference = Callable[..., torch.Tensor | Sequence[torch.Tensor]]


def results(
    where: str,
    reference: Reference | None,
    args: Sequence[object],
    types: Sequence[ArrayType],
    least: int | None = None,
) -> list[torch.Tensor]:
    """Return the reference's results, after checking them.

    Args:
        where: prefix of error messages.
        types: the types of the kernel's results.
        least: how many results the reference must return; by default all.
    """
    if reference is None:
        raise RuntimeError(
            f"{where}: it runs on a GPU only; give it a reference for the CPU: "
            "cuda_kernel(…, reference=function)"
        )
    # Pass copies, so that the caller's tensors do not change, whatever the reference does.
    copies = [_copy(each) if isinstance(each, torch.Tensor) else each for each in args]
    with torch.no_grad():
        try:
            given = reference(*copies)
        except Exception as error:
            raise RuntimeError(
                f"{where}: its reference raised {type(error).__name__}: {error}"
            ) from error
    returned = [given] if isinstance(given, torch.Tensor) else list(given)
    if not (len(types) if least is None else least) <= len(returned) <= len(types):
        raise ValueError(
            f"{where}: the reference returned {len(returned)} tensors, but the kernel has "
            f"{len(types)} results"
        )
    came = [ArrayType.of(result) for result in returned]
    if any((*a,) != (*b,) for a, b in zip(came, types, strict=False)):
        raise ValueError(
            f"{where}: the reference returned {', '.join(map(str, came))}, but the "
            f"kernel's results are {', '.join(map(str, types))}"
        )
    return returned


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy; one of bytes for a type that XLA's tensors do not have."""
    is_bytes = XLA_TYPES.get(tensor.dtype, ("", 0))[0] in PASSED_AS_BYTES
    return (tensor.view(torch.uint8) if is_bytes else tensor).clone()


def call(
    name: str,
    where: str,
    reference: Reference | None,
    args: Sequence[object],
    types: Sequence[ArrayType],
) -> list[torch.Tensor]:
    """Call a kernel's reference; the results have no derivative."""
    tensors = [value for value in args if isinstance(value, torch.Tensor)]
    transforms.refuse(name, tensors)
    if not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)):
        return results(where, reference, args, types)

    def compute(operands: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return results(where, reference, args, types)

    return list(transforms.WithoutDerivative.apply(name, compute, *tensors))
