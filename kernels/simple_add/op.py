"""Element-wise addition: the smallest complete example of a kernel."""

import torch

from xla_kernels import VmapInfo, define_operator, register_reference

__all__ = ["simple_add"]


def _vmap(
    info: VmapInfo, in_dims: tuple[int | None, int | None], *operands: torch.Tensor
) -> tuple[torch.Tensor, int]:
    """Add all examples in one call, because addition works for any shape."""

    def batched(x: torch.Tensor, dim: int | None) -> torch.Tensor:
        if dim is None:
            return x.expand(info.batch_size, *x.shape)
        return x if dim == 0 else x.movedim(dim, 0)  # a view would hide the sharding

    return _operator(*map(batched, operands, in_dims)), 0


_operator = define_operator(
    "xla_gpu::simple_add(Tensor a, Tensor b) -> Tensor",
    target="XlaGpuSimpleAdd",
    backward=lambda ctx, grad: (grad, grad),
    jvp=lambda ctx, tangent_a, tangent_b: tangent_a + tangent_b,
    vmap=_vmap,
    promotes=True,  # under torch.autocast
    sharding_rule="..., ... -> ...",
)

# debug.use_reference computes this instead of the kernel.
register_reference("XlaGpuSimpleAdd", lambda inputs, outputs, attributes: [inputs[0] + inputs[1]])


def simple_add(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Add two tensors with the kernel ``XlaGpuSimpleAdd``: ``torch.ops.xla_gpu.simple_add``.

    Operands are not broadcast or promoted, except that under torch.autocast an operand of the
    narrower floating-point dtype is cast to the wider one. Integers wrap around.

    Args:
        a: a tensor of any shape and strides, on an XLA, CPU or CUDA device, of dtype float16,
            bfloat16, float32, float64, int32 or int64.
        b: a tensor of the same shape and dtype, on the same device.

    Returns:
        ``a + b``, of the same shape and dtype, contiguous. It is differentiable.

    Raises:
        TypeError, ValueError: `a` or `b` has an unsupported dtype, or their dtypes, shapes or
            devices differ.

    Example:
        >>> a = torch.arange(3.0, device="xla")
        >>> b = torch.ones(3, device="xla")
        >>> simple_add(a, b).cpu()
        tensor([1., 2., 3.])
    """
    return torch.ops.xla_gpu.simple_add(a, b)
