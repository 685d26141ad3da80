"""Operators that are computed on the CPU, because torch-tpu's programs for them do not run here.

The operands are copied to the CPU and the results back, eagerly. A program of torch.compile cannot
do that, and says so.
"""

from collections.abc import Callable

import torch
from torch.utils import _pytree as pytree
from torch_tpu._internal import execution_mode

from torch_xla_gpu import device

_LIBRARY = torch.library.Library("aten", "IMPL")
_aten = torch.ops.aten

# Factorizations: LU calls a target that only a TPU has ("no FFI handler registered for
# LuDecomposition"), and Cholesky's is not implemented.
_FACTORIZATIONS = (
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
# torch-tpu ends the process: "Check failed: self_type.getRank() == index_type.getRank()".
_REDUCTIONS = (_aten.index_reduce.default,)
# XLA:CPU's compiler ends the process at HLO's scan, plug-in 0.11.2: "Check failed:
# operand_maps.size() == 1". XLA:GPU compiles it.
_SCANS = (_aten.cumprod.default, _aten.cumsum.default, _aten.logcumsumexp.default)

# The same, written into the first argument.
_IN_PLACE = {
    _aten.cumprod_.default: _aten.cumprod.default,
    _aten.cumsum_.default: _aten.cumsum.default,
    _aten.index_reduce_.default: _aten.index_reduce.default,
}


def install(platform: str) -> None:
    """Registers the operators for the tensors of a device on `platform`."""
    operators = [*_FACTORIZATIONS, *_REDUCTIONS, *(_SCANS if platform == "Host" else ())]
    for operator in operators:
        _register(operator, _on_cpu(operator))
    for in_place, operator in _IN_PLACE.items():
        if operator in operators:
            _register(in_place, _written(_on_cpu(operator)))


def _register(operator: torch._ops.OpOverload, run: Callable[..., object]) -> None:
    _LIBRARY.impl(operator, run, "PrivateUse1", allow_override=True)


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


def _written(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def run(tensor: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        return tensor.copy_(function(tensor, *args, **kwargs))

    return run
