"""Register TransformerEngine-JAX's XLA FFI handlers, without JAX, and define operators for some.

The operators are ``torch.ops.transformer_engine.layernorm``, ``rmsnorm``, ``gemm`` and
``gemm_fp8``. Their signatures are those of TransformerEngine 2.20's handlers.
"""

import contextlib
import ctypes
import importlib
import logging
import math
import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import torch

from torch_xla_ext.registry import registration
from xla_kernels.operator.define import define_operator

_LIBRARY = "wheel_lib/libtransformer_engine.so"
_NAMESPACE = "transformer_engine"
# A norm has these operands and results in all modes of scaling: in a mode without, `scale`, `amax`
# and the results of one element are unused.
_NORM = (
    "(x: T[n, d], scale: F32[1], amax: F32[1], gamma: T[d], beta: T[d]) -> (out: T[n, d], "
    "columns: T[1], scale_inv: F32[1], columns_scale_inv: F32[1], amax, mu: F32[{}], "
    "rsigma: F32[n], workspace: U8[workspace_size]) where T: F32 | F16 | BF16"
)
_NORM_PARAMETERS = (
    "norm_type: i64, zero_centered_gamma: bool, epsilon: f64, sm_margin: i64, scaling_mode: i64, "
    "quantize_layout: i64, output_amax_when_no_scaling: bool"
)
# The workspace is what TransformerEngine gives cuBLAS on an H100, and 256 bytes to align it.
_GEMM = (
    "(lhs: {}[m, k], lhs_scale_inv: F32[1], rhs: {}, rhs_scale_inv: F32[1], bias: T[n], "
    f"alpha: F32[1], beta: F32[1]) -> (out: T[m, n], workspace: U8[{(32 << 20) + 256}]) "
    "where T: F16 | BF16{}"
)
_GEMM_PARAMETERS = (
    "config: {scaling_mode: i64, collective_op: i64, lhs_axis_boundary: i64, "
    "rhs_axis_boundary: i64, lhs_transposed: bool, rhs_transposed: bool, "
    "use_split_accumulator: bool}"
)
_GEMM_OPERANDS = (
    "Tensor lhs, Tensor lhs_scale_inv, Tensor rhs, Tensor rhs_scale_inv, Tensor bias, "
    "Tensor alpha, Tensor beta"
)
_log = logging.getLogger(__name__)
_libraries: list[torch.library.Library] = []


def load() -> ModuleType:
    """Register the handlers, define the operators, and return transformer_engine_jax.

    Raises:
        ImportError: a package is missing, or its library cannot be loaded.
    """
    package = find_spec("transformer_engine")
    if package is None or find_spec("transformer_engine_jax") is None:
        raise ImportError(
            "load_kernels: TransformerEngine's handlers are in transformer_engine_jax, which is "
            "not installed; pip install --no-build-isolation 'transformer-engine[jax]'"
        )
    # Loaded first, as its package does: the library uses functions of NVRTC without linking it.
    with contextlib.suppress(OSError):
        ctypes.CDLL("libnvrtc.so.13", ctypes.RTLD_GLOBAL)
    library = Path(package.submodule_search_locations[0]) / _LIBRARY
    # A release may refer to functions of a newer cuBLAS, which ctypes.CDLL would resolve at once.
    loader = ctypes.CDLL(None)
    dlopen, dlerror = loader.dlopen, loader.dlerror
    dlopen.restype, dlerror.restype = ctypes.c_void_p, ctypes.c_char_p
    if not dlopen(os.fsencode(library), os.RTLD_LAZY | os.RTLD_GLOBAL):
        raise ImportError(f"load_kernels: {(dlerror() or b'').decode()}")
    flags = sys.getdlopenflags()
    sys.setdlopenflags(os.RTLD_LAZY)
    try:
        module = importlib.import_module("transformer_engine_jax")
    finally:
        sys.setdlopenflags(flags)
    handlers = module.registrations()
    for name, each in handlers.items():
        registration.register_custom_call(
            name, each, api="ffi", platform=registration.device_platform()
        )
    _define(module, handlers)
    return module


def _define(te: ModuleType, handlers: Mapping[str, object]) -> None:
    """Define the operators, unless an earlier call has."""
    if _libraries:
        return
    if missing := {"te_norm_forward_ffi", "te_gemm_v2_ffi"} - handlers.keys():
        _log.warning("load_kernels: no operators: this TransformerEngine has no %s", min(missing))
        return

    def register(name: str, handler: str, signature: str, parameters: str) -> str:
        registration.register_custom_call(
            name := f"{_NAMESPACE}_{name}",
            handlers[handler],
            api="ffi",
            platform=registration.device_platform(),
            signature=signature,
            parameters=parameters,
        )
        return name

    for name, kind, means in (("layernorm", "LayerNorm", "n"), ("rmsnorm", "RMSNorm", "1")):
        signature = _NORM.format(means)
        target = register(name, "te_norm_forward_ffi", signature, _NORM_PARAMETERS)
        _define_norm(te, name, getattr(te.NVTE_Norm_Type, kind), target)
    plain = _GEMM.format("T", "T[k, n]", "")
    fp8 = _GEMM.format(*("F8E4M3FN", "F8E4M3FN[n, k]", ", m % 16 == 0, k % 16 == 0, n % 16 == 0"))
    for name, signature, mode in (
        ("gemm", plain, te.JAXX_Scaling_Mode.NO_SCALING),
        ("gemm_fp8", fp8, te.JAXX_Scaling_Mode.CURRENT_TENSOR_SCALING),
    ):
        config = {
            "scaling_mode": mode.value,
            "collective_op": te.JAXX_Collective_Op.NONE.value,
            "lhs_axis_boundary": 1,
            "rhs_axis_boundary": 1,
            "lhs_transposed": False,
            "rhs_transposed": signature is fp8,
            "use_split_accumulator": True,
        }
        columns = "n _" if signature is fp8 else "_ n"
        define_operator(
            f"{_NAMESPACE}::{name}_scaled({_GEMM_OPERANDS}) -> Tensor",
            target=register(name, "te_gemm_v2_ffi", signature, _GEMM_PARAMETERS),
            attributes=lambda config=config, **_: {"config": config},
            environment=(),
            sharding_rule=f"m _, _, {columns}, _, n, _, _ -> m n",
        )
    library = torch.library.Library(_NAMESPACE, "FRAGMENT")
    for schema, function in (
        (
            "layernorm(Tensor x, Tensor gamma, Tensor beta, float epsilon=1e-6) -> Tensor",
            _layernorm,
        ),
        ("rmsnorm(Tensor x, Tensor gamma, float epsilon=1e-6) -> Tensor", _rmsnorm),
        ("gemm(Tensor lhs, Tensor rhs, Tensor? bias=None) -> Tensor", _gemm),
        (
            "gemm_fp8(Tensor lhs, Tensor lhs_scale_inv, Tensor rhs, Tensor rhs_scale_inv, "
            "Tensor bias) -> Tensor",
            _gemm_fp8,
        ),
    ):
        library.define(schema)
        library.impl(schema.partition("(")[0], function, "CompositeImplicitAutograd")
    _libraries.append(library)


def _define_norm(te: ModuleType, name: str, kind: object, target: str) -> None:
    unscaled = te.JAXX_Scaling_Mode.NO_SCALING

    def attributes(**_: object) -> dict[str, object]:
        return {
            "norm_type": kind.value,
            "zero_centered_gamma": False,
            "sm_margin": 0,
            "scaling_mode": unscaled.value,
            "quantize_layout": te.JAXX_Quantize_Layout.ROWWISE.value,
            "output_amax_when_no_scaling": False,
        }

    def sizes(x: torch.Tensor, epsilon: float, **_: object) -> dict[str, int]:
        dtype = getattr(te.DType, _DTYPES[x.dtype])
        ((shape, unit),) = te.get_norm_fwd_workspace_sizes(
            *x.shape, dtype, dtype, dtype, kind, unscaled, False, epsilon, 0, True
        )
        if int(unit) != int(te.DType.kByte):
            raise NotImplementedError(f"{_NAMESPACE}::{name}: a workspace of {unit}")
        return {"workspace_size": math.prod(shape)}

    define_operator(
        f"{_NAMESPACE}::{name}_forward(Tensor x, Tensor scale, Tensor amax, Tensor gamma, "
        f"Tensor beta, float epsilon) -> ({', '.join(['Tensor'] * 7)})",
        target=target,
        attributes=attributes,
        sizes=sizes,
        environment=(),
    )


_DTYPES = {torch.float32: "kFloat32", torch.float16: "kFloat16", torch.bfloat16: "kBFloat16"}


def _normalized(
    name: str, x: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor, epsilon: float
) -> torch.Tensor:
    operator = getattr(torch.ops.transformer_engine, f"{name}_forward")
    one = torch.ones(1, device=x.device)
    rows = x.reshape(-1, x.shape[-1])
    return operator(rows, one, torch.zeros_like(one), gamma, beta, epsilon)[0].reshape(x.shape)


def _layernorm(
    x: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor, epsilon: float = 1e-6
) -> torch.Tensor:
    return _normalized("layernorm", x, gamma, beta, epsilon)


def _rmsnorm(x: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6) -> torch.Tensor:
    return _normalized("rmsnorm", x, gamma, gamma, epsilon)  # it has no beta, and reads none


def _gemm(lhs: torch.Tensor, rhs: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    one = torch.ones(1, device=lhs.device)
    if bias is None:
        bias = lhs.new_zeros(rhs.shape[-1])
    rows = lhs.reshape(-1, lhs.shape[-1])
    out = torch.ops.transformer_engine.gemm_scaled(
        rows, one, rhs, one, bias, one, torch.zeros_like(one)
    )
    return out.reshape(*lhs.shape[:-1], rhs.shape[-1])


def _gemm_fp8(
    lhs: torch.Tensor,
    lhs_scale_inv: torch.Tensor,
    rhs: torch.Tensor,
    rhs_scale_inv: torch.Tensor,
    bias: torch.Tensor,
) -> torch.Tensor:
    one = torch.ones(1, device=lhs.device)
    return torch.ops.transformer_engine.gemm_fp8_scaled(
        lhs, lhs_scale_inv, rhs, rhs_scale_inv, bias, one, torch.zeros_like(one)
    )
