"""Element-wise addition: the smallest complete example of a kernel."""

import torch
from torch.autograd.function import FunctionCtx

from torch_xla_ext.debug import register_reference
from torch_xla_ext.operator import VmapInfo, define_operator
from torch_xla_ext.operator.tensor_checks import Value

__all__ = ["simple_add"]

TARGET = "XlaGpuSimpleAdd"

_MAX_ELEMENTS = 1 << 40

register_reference(TARGET, lambda inputs, outputs, attributes: [inputs[0] + inputs[1]])


def _check(a: torch.Tensor, **others: Value) -> None:
    count = a.numel()
    # A symbolic number would become a limit of an exported program's dynamic dimensions.
    if isinstance(count, int) and count > _MAX_ELEMENTS:
        raise ValueError(f"xla_gpu::simple_add: a must have at most 2^40 elements, but has {count}")


def _backward(ctx: FunctionCtx, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return grad, grad


def _jvp(ctx: FunctionCtx, tangent_a: torch.Tensor, tangent_b: torch.Tensor) -> torch.Tensor:
    return tangent_a + tangent_b


def _vmap(
    info: VmapInfo, in_dims: tuple[int | None, int | None], a: torch.Tensor, b: torch.Tensor
) -> tuple[torch.Tensor, int]:
    """Adds all examples in one call: addition knows nothing of dimensions."""
    batched = [
        _with_examples_first(tensor, dim, info.batch_size)
        for tensor, dim in zip((a, b), in_dims, strict=True)
    ]
    return _operator(*batched), 0


def _with_examples_first(tensor: torch.Tensor, dim: int | None, batch_size: int) -> torch.Tensor:
    if dim == 0:
        return tensor  # A view would hide its sharding.
    return tensor.expand(batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


_operator = define_operator(
    "xla_gpu::simple_add(Tensor a, Tensor b) -> Tensor",
    target=TARGET,
    environment=(),
    check=_check,
    backward=_backward,
    jvp=_jvp,
    vmap=_vmap,
    promotes=True,
    sharding_rule="..., ... -> ...",
)


def simple_add(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Adds two tensors with the kernel ``XlaGpuSimpleAdd``: ``torch.ops.xla_gpu.simple_add``.

    Operands are not broadcast or promoted, except that under torch.autocast the narrower of two
    floating-point dtypes is cast to the other. Integers wrap around; 16-bit floats are added in
    float32 and rounded once, as in PyTorch.

    Args:
        a: a tensor of any shape and strides, on an XLA, CPU or CUDA device, of dtype float16,
            bfloat16, float32, float64, int32 or int64, with at most 2^40 elements.
        b: a tensor of the same shape and dtype, on the same device.

    Returns:
        ``a + b``, of the same shape and dtype, contiguous. It is differentiable.

    Raises:
        TypeError: `a` has another dtype than these, or `b` has another dtype than `a`.
        ValueError: `a` and `b` differ in shape or device, or are too large.
        RuntimeError: an argument is not a tensor.

    Example:
        >>> a = torch.arange(3.0, device="xla")
        >>> b = torch.ones(3, device="xla")
        >>> simple_add(a, b).cpu()
        tensor([1., 2., 3.])
    """
    return torch.ops.xla_gpu.simple_add(a, b)
