"""Compute operators on the CPU that torch-tpu lacks, or whose programs fail here.

The operands are copied to the CPU, and the results back, eagerly. In programs of torch.compile this
is impossible, and raises an error.
"""

import warnings

import torch
from torch.utils import _pytree as pytree
from torch_tpu._internal import execution_mode

from torch_xla_gpu import device

_LIBRARY = torch.library.Library("aten", "IMPL")
_aten = torch.ops.aten

# Factorizations: LU calls a target that only a TPU has ("no FFI handler registered for
# LuDecomposition"), and Cholesky's is not implemented.
_FACTORIZATIONS = (
    *([_aten.cholesky.default] if hasattr(_aten, "cholesky") else []),  # PyTorch 2.15 has none
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
# torch-tpu's own multiplies in TensorFloat-32 on a GPU, whatever set_float32_matmul_precision says:
# singular values are off by 4e-5 of the largest, which makes pinv of a singular matrix wrong.
_SINGULAR_VALUES = (_aten._linalg_svd.default,)
# torch-tpu crashes the process: "Check failed: self_type.getRank() == index_type.getRank()".
_REDUCTIONS = (_aten.index_reduce.default,)
# XLA:CPU's compiler crashes the process at HLO's scan, plug-in 0.11.2: "Check failed:
# operand_maps.size() == 1". XLA:GPU compiles it. These are or contain one.
_SCANS = (
    _aten.cumprod.default,
    _aten.cumsum.default,
    _aten.logcumsumexp.default,
    _aten.masked_scatter.default,
    _aten.repeat_interleave.Tensor,
    _aten.segment_reduce.default,
    _aten._embedding_bag.default,
    _aten._embedding_bag_forward_only.default,
)

# The same operators, in place.
_IN_PLACE: dict[torch._ops.OpOverload, torch._ops.OpOverload] = {
    _aten.cumprod_.default: _aten.cumprod.default,
    _aten.cumsum_.default: _aten.cumsum.default,
    _aten.index_reduce_.default: _aten.index_reduce.default,
    _aten.masked_scatter_.default: _aten.masked_scatter.default,
}

# The dispatch keys of kernels that run on the device.
_HERE = (
    "PrivateUse1",
    "CompositeImplicitAutograd",
    "CompositeExplicitAutograd",
    "CompositeExplicitAutogradNonFunctional",
)


def install(platform: str) -> None:
    """Register the operators for the tensors of a device on `platform`."""
    operators = [*_FACTORIZATIONS, *_SINGULAR_VALUES, *_REDUCTIONS]
    if platform == "Host":
        operators += _SCANS
    operators += [in_place for in_place, other in _IN_PLACE.items() if other in operators]
    for operator in operators:
        _LIBRARY.impl(operator, Fallback(operator), "PrivateUse1", allow_override=True)
    if platform == "Host":
        for key in ("PrivateUse1", "AutogradPrivateUse1"):
            _LIBRARY.impl(_aten.repeat_interleave.self_Tensor, _repeated, key, allow_override=True)
    for operator in missing():
        _LIBRARY.impl(operator, Fallback(operator, warns=True), "PrivateUse1")


def _repeated(
    tensor: torch.Tensor,
    repeats: torch.Tensor,
    dim: int | None = None,
    *,
    output_size: int | None = None,
) -> torch.Tensor:
    """Compose repeat_interleave as PyTorch does: torch-tpu's own contains a scan."""
    if dim is None:
        tensor, dim = tensor.flatten(), 0
    if repeats.numel() == 1:
        repeats = repeats.reshape(1).expand(tensor.shape[dim])
    if repeats.numel() != tensor.shape[dim]:
        raise RuntimeError(
            "repeats must have the same size as input along dim, but got repeats.size(0) = "
            f"{repeats.numel()} and input.size({dim}) = {tensor.shape[dim]}"
        )
    return tensor.index_select(dim, torch.repeat_interleave(repeats, output_size=output_size))


def missing() -> list[torch._ops.OpOverload]:
    """Return PyTorch's operators for the CPU that torch-tpu neither has nor composes."""
    found = []
    for name in torch._C._dispatch_get_all_op_names():
        if not name.startswith("aten::") or not has_kernel(name, "CPU"):
            continue
        if any(has_kernel(name, key) for key in _HERE):
            continue
        packet, _, overload = name.removeprefix("aten::").partition(".")
        operator = getattr(getattr(_aten, packet), overload or "default", None)
        if operator is not None and not _returns_view(operator):
            found.append(operator)
    return found


def has_kernel(name: str, key: str) -> bool:
    """Return whether an operator has its own kernel for a dispatch key."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, key)


def _returns_view(operator: torch._ops.OpOverload) -> bool:
    return any(
        each.alias_info is not None and not each.alias_info.is_write
        for each in operator._schema.returns
    )


class Fallback:
    """A fallback that runs an operator on the CPU and copies its writes back."""

    def __init__(self, operator: torch._ops.OpOverload, warns: bool = False) -> None:
        self._operator = operator
        self._warns = warns

    def __call__(self, *args: object, **kwargs: object) -> object:
        name = self._operator.name()
        if execution_mode.eager_mode == execution_mode.EagerMode._INTERNAL_COMPILE_FX_GRAPH:
            raise NotImplementedError(
                f"{name} is computed on the CPU, which a program of torch.compile cannot do: call "
                "it outside of the compiled function, or in a function with torch.compiler.disable"
            )
        if self._warns:
            self._warns = False
            warnings.warn(
                f"torch-tpu has no {name}: it is computed on the CPU", UserWarning, stacklevel=2
            )
        args = self._with_tensors(args)
        cpu_args, cpu_kwargs = pytree.tree_map(_to_cpu, (args, kwargs))
        results = self._operator(*cpu_args, **cpu_kwargs)
        written = self._written(args, kwargs, cpu_args, cpu_kwargs)
        for here, there in written:
            if here.shape != there.shape:
                here.resize_(there.shape)
            here.copy_(there)

        def back(value: object) -> object:
            for here, there in written:
                if value is there:
                    return here
            return value.to(device.TYPE) if isinstance(value, torch.Tensor) else value

        return pytree.tree_map(back, results)

    def _with_tensors(self, args: tuple) -> tuple:
        """Convert numbers that PyTorch passes in place of tensors to tensors."""
        declared = self._operator._schema.arguments
        return tuple(
            torch.tensor(value)
            if isinstance(value, (bool, int, float, complex)) and str(each.type) == "Tensor"
            else value
            for value, each in zip(args, declared, strict=False)
        )

    def _written(
        self, args: tuple, kwargs: dict, cpu_args: tuple, cpu_kwargs: dict
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return the tensors that the operator writes to: the device's, and the CPU's."""
        pairs = []
        for i, declared in enumerate(self._operator._schema.arguments):
            if not declared.is_write:
                continue
            if declared.name in kwargs:
                pairs.append((kwargs[declared.name], cpu_kwargs[declared.name]))
            elif i < len(args):
                pairs.append((args[i], cpu_args[i]))
        flat = []
        for here, there in pairs:
            several = isinstance(here, (list, tuple))
            flat += zip(here, there, strict=True) if several else [(here, there)]
        return [(here, there) for here, there in flat if isinstance(here, torch.Tensor)]


def _to_cpu(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return value.cpu()
    if isinstance(value, torch.device) and value.type == device.TYPE:
        return torch.device("cpu")
    return value
