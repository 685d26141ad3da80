"""Sum a matrix over the devices of the process in one exchange, and normalize the sum."""

import torch

from xla_kernels import Value, define_operator, front_end

__all__ = ["all_reduce", "all_reduce_rms_norm"]

WORKSPACE_BYTES = 16_779_520  # sizeof(Workspace) of all_reduce.h
MAX_ROW_BYTES = 16_384  # of what all_reduce_rms_norm normalizes: kBlockBytes


def _check(x: Value, peers: Value, name: str = "all_reduce") -> None:
    num_bytes = x.numel() * x.element_size()
    if num_bytes % 16 != 0:
        raise ValueError(
            f"xla_gpu::{name}: x: expected a multiple of 16 bytes but got "
            f"{tuple(x.shape)} of {x.dtype}, {num_bytes} bytes"
        )
    if peers.shape[0] != 1:
        raise ValueError(
            f"xla_gpu::{name}: peers: expected the device's row of PeerMemory.table but got "
            f"{peers.shape[0]} rows: call it in a region of manual sharding"
        )


def _check_rms_norm(x: Value, residual: Value, weight: Value, peers: Value, epsilon: float) -> None:
    _check(x, peers, "all_reduce_rms_norm")
    row_bytes = weight.numel() * weight.element_size()
    if row_bytes % 16 != 0 or row_bytes > MAX_ROW_BYTES:
        raise ValueError(
            "xla_gpu::all_reduce_rms_norm: x: expected rows of a multiple of 16 bytes, at most "
            f"{MAX_ROW_BYTES}, but got {row_bytes}"
        )


define_operator(
    "xla_gpu::all_reduce(Tensor x, Tensor peers) -> Tensor",
    target="XlaGpuAllReduce",
    environment=(),
    check=_check,
)

define_operator(
    "xla_gpu::all_reduce_rms_norm(Tensor x, Tensor residual, Tensor weight, Tensor peers, "
    "float epsilon) -> (Tensor, Tensor)",
    target="XlaGpuAllReduceRmsNorm",
    environment=(),
    check=_check_rms_norm,
    attributes=lambda epsilon, **others: {"epsilon": epsilon},
)


def _all_reduce_of_xla(x: torch.Tensor, peers: torch.Tensor) -> torch.Tensor:
    """Sum float32 values with XLA's own all-reduce.

    XLA:CPU may run a program's calls in a different order on each device, so that the kernel would
    exchange data of different calls.
    """
    from torch_xla import _XLAC

    if x.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise TypeError(
            f"xla_gpu::all_reduce: operand 0 (x): expected dtype F16, BF16 or F32 but got {x.dtype}"
        )
    _check(x, peers)
    if torch.is_grad_enabled() and x.requires_grad:
        raise NotImplementedError("xla_gpu::all_reduce has no derivatives: call it in no_grad()")
    ranks = [list(range(peers.shape[1] - 1))]
    return _XLAC._xla_spmd_all_reduce("sum", x.float(), 1.0, ranks).to(x.dtype)


def all_reduce(x: torch.Tensor, peers: torch.Tensor) -> torch.Tensor:
    """Sum a matrix over devices of this process: ``torch.ops.xla_gpu.all_reduce``.

    Call it in a region of manual sharding, where each device has a different matrix, in place of
    XLA's all-reduce. Up to some hundred kilobytes it is faster, because devices exchange data once
    (a one-shot all-reduce), and because a CUDA graph can contain it. Sums are computed in float32
    in the order of ranks, so that all devices receive the same bits. It has no derivatives. On the
    CPU, this function calls XLA's own all-reduce, and the operator has no kernel.

    Args:
        x: the device's matrix [num_rows, num_columns], float16, bfloat16 or float32; a multiple of
            16 bytes.
        peers: the device's row [1, 1 + num_devices] of `torch_xla_ext.sharding.PeerMemory.table`,
            int64, of at most 8 devices and `all_reduce.WORKSPACE_BYTES` bytes on each.

    Returns:
        The sum, with the shape and dtype of `x`, on each device.

    Raises:
        TypeError: `x` has an unsupported dtype.
        ValueError: `x` is not a matrix whose bytes are a multiple of 16, or `peers` is not one row.
        NotImplementedError: autograd would record the call.
    """
    if front_end.current().platform() == "Host":
        return _all_reduce_of_xla(x, peers)
    return torch.ops.xla_gpu.all_reduce(x, peers)


def all_reduce_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    peers: torch.Tensor,
    epsilon: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add a matrix's sum over devices to a residual, and normalize the rows.

    ``torch.ops.xla_gpu.all_reduce_rms_norm`` is `all_reduce`, an addition and an RMS norm (Zhang
    and Sennrich, "Root Mean Square Layer Normalization", 2019) in one kernel, as they follow each
    other in a language model that is sharded over devices. It computes the same as vLLM's
    ``RMSNorm`` after an all-reduce, with float32 sums and norms::

        total = all_reduce(x, peers).float() + residual.float()
        scale = torch.rsqrt(total.square().mean(-1, keepdim=True) + epsilon)
        return (total * scale).to(x.dtype) * weight, total.to(x.dtype)

    On the CPU, this function computes these lines, and the operator has no kernel. It has no
    derivatives.

    Args:
        x: the device's matrix [num_rows, num_columns], float16, bfloat16 or float32; a row has a
            multiple of 16 bytes, and at most `MAX_ROW_BYTES`.
        residual: of the shape and dtype of `x`, the same on each device.
        weight: [num_columns], of the same dtype.
        peers: as for `all_reduce`.
        epsilon: added to the mean of the squares.

    Returns:
        The normalized rows, and the sum with the residual, of the shape and dtype of `x`.

    Raises:
        TypeError: `x` has an unsupported dtype, or the operands' dtypes differ.
        ValueError: a shape does not match, or a row's size is not supported.
        NotImplementedError: autograd would record the call.
    """
    if front_end.current().platform() == "Host":
        _check_rms_norm(x, residual, weight, peers, epsilon)
        total = _all_reduce_of_xla(x, peers).float() + residual.float()
        scale = torch.rsqrt(total.square().mean(-1, keepdim=True) + epsilon)
        return (total * scale).to(x.dtype) * weight, total.to(x.dtype)
    return torch.ops.xla_gpu.all_reduce_rms_norm(x, residual, weight, peers, epsilon)
