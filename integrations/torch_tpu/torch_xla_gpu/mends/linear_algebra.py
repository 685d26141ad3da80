"""Factorizations of matrices, on the CPU: torch-tpu calls targets that only a TPU has.

Its LU is "no FFI handler registered for LuDecomposition", and Cholesky is not implemented. Here the
matrices are copied to the CPU and the factors back. A program of torch.compile cannot do that.
"""

from collections.abc import Callable

import torch
from torch.utils import _pytree as pytree
from torch_tpu._internal import execution_mode

from torch_xla_gpu import device

_LIBRARY = torch.library.Library("aten", "IMPL")
_aten = torch.ops.aten
_OPERATORS = (
    _aten.cholesky.default,
    _aten.cholesky_inverse.default,
    _aten.cholesky_solve.default,
    _aten.linalg_cholesky_ex.default,
    _aten.linalg_inv_ex.default,
    _aten.linalg_lu.default,
    _aten.linalg_lu_factor_ex.default,
    _aten.linalg_lu_solve.default,
    _aten.lu_unpack.default,
    _aten._linalg_det.default,
    _aten._linalg_slogdet.default,
    _aten._linalg_solve_ex.default,
)


def install() -> None:
    """Registers the operators for the device's tensors."""
    for operator in _OPERATORS:
        _LIBRARY.impl(operator, _on_cpu(operator), "PrivateUse1", allow_override=True)


def _on_cpu(operator: torch._ops.OpOverload) -> Callable[..., object]:
    def run(*args: object, **kwargs: object) -> object:
        if execution_mode.eager_mode == execution_mode.EagerMode._INTERNAL_COMPILE_FX_GRAPH:
            raise NotImplementedError(
                f"{operator.name()} is computed on the CPU, which a program of torch.compile "
                "cannot do: call it outside of the compiled function, or in a function with "
                "torch.compiler.disable"
            )
        args, kwargs = pytree.tree_map_only(torch.Tensor, torch.Tensor.cpu, (args, kwargs))
        return pytree.tree_map_only(
            torch.Tensor, lambda tensor: tensor.to(device.TYPE), operator(*args, **kwargs)
        )

    return run
