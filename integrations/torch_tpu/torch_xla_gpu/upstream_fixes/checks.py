"""Raise PyTorch's errors for operands with which torch-tpu would crash the process."""

import torch

_LIBRARY = torch.library.Library("aten", "IMPL")


def install() -> None:
    """Register the operators for the device's tensors."""
    _LIBRARY.impl(torch.ops.aten.dot.default, _dot, "PrivateUse1", allow_override=True)
    _LIBRARY.impl(torch.ops.aten.vdot.default, _vdot, "PrivateUse1", allow_override=True)


def _dot(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Check operands; torch-tpu ends with "LLVM ERROR: Failed to infer dot op type …"."""
    if a.dim() != 1 or b.dim() != 1:
        raise RuntimeError(f"1D tensors expected, but got {a.dim()}D and {b.dim()}D tensors")
    if a.dtype != b.dtype:
        raise RuntimeError(
            f"dot : expected both vectors to have same dtype, but found {a.dtype} and {b.dtype}"
        )
    if a.numel() != b.numel():
        raise RuntimeError(
            f"inconsistent tensor size, expected tensor [{a.numel()}] and src [{b.numel()}] to "
            "have the same number of elements"
        )
    return torch.mv(a.unsqueeze(0), b).squeeze(0)


def _vdot(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return _dot(a.conj().resolve_conj() if a.is_complex() else a, b)
