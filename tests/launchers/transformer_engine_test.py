"""Operators of TransformerEngine's handlers: their calls, which references compute on the CPU.

tests/gpu/transformer_engine_test.py runs the handlers.
"""

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import torch_xla_ext
from torch_xla_ext.launchers.packages import transformer_engine

SOURCE = """
#include "xla/ffi/api/ffi.h"
namespace ffi = xla::ffi;
ffi::Error Run(ffi::RemainingArgs, ffi::RemainingRets) { return ffi::Error::Success(); }
XLA_FFI_DEFINE_HANDLER_SYMBOL(Run_, Run, ffi::Ffi::Bind().RemainingArgs().RemainingRets());
"""
# What transformer_engine_jax exports, as far as the operators need it.
MODULE = """
import ctypes
from enum import IntEnum
from pathlib import Path

DType = IntEnum("DType", ["kByte", "kFloat32", "kFloat16", "kBFloat16"], start=0)
NVTE_Norm_Type = IntEnum("NVTE_Norm_Type", ["LayerNorm", "RMSNorm"], start=0)
JAXX_Scaling_Mode = IntEnum(
    "JAXX_Scaling_Mode", {"NO_SCALING": 1, "CURRENT_TENSOR_SCALING": 3}
)
JAXX_Quantize_Layout = IntEnum("JAXX_Quantize_Layout", ["ROWWISE"], start=0)
JAXX_Collective_Op = IntEnum("JAXX_Collective_Op", ["NONE"], start=0)
_library = ctypes.CDLL(str(Path(__file__).with_name("libhandlers.so")))

def registrations():
    return {
        "te_norm_forward_ffi": {"execute": _library.Run_},
        "te_gemm_v2_ffi": {"execute": _library.Run_},
    }

def get_norm_fwd_workspace_sizes(rows, width, *others):
    assert others == (1, 1, 1, others[3], 1, False, others[6], 0, True)
    return [([rows, 8], DType.kByte)]
"""


@pytest.fixture(scope="module", autouse=True)
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("packages")
    made = folder / "transformer_engine" / "wheel_lib" / "libtransformer_engine.so"
    made.parent.mkdir(parents=True)
    (folder / "transformer_engine" / "__init__.py").touch()
    (folder / "transformer_engine_jax.py").write_text(MODULE)
    include = torch_xla_ext.include_dir()
    command = ["g++", "-std=c++17", "-shared", "-fPIC", "-isystem", include, "-x", "c++", "-"]
    library = str(folder / "libhandlers.so")
    subprocess.run([*command, "-o", library], input=SOURCE.encode(), check=True)
    with pytest.raises(ImportError, match="transformer_engine_jax, which is not installed"):
        torch_xla_ext.load_kernels("transformer_engine")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        with pytest.raises(ImportError, match=r"libtransformer_engine\.so: cannot open"):
            torch_xla_ext.load_kernels("transformer_engine")
        made.symlink_to(folder / "libhandlers.so")
        for _ in range(2):
            module = torch_xla_ext.load_kernels("transformer_engine")
            assert module.__name__ == "transformer_engine_jax"
        for name in ("layernorm", "rmsnorm"):
            torch_xla_ext.debug.register_reference(f"transformer_engine_{name}", normalized)
        for name in ("gemm", "gemm_fp8"):
            torch_xla_ext.debug.register_reference(f"transformer_engine_{name}", multiplied)
        yield


# The references check that the handlers receive what they received in calls on an H100.
def normalized(
    inputs: list[Tensor], outputs: object, attributes: dict[str, object]
) -> list[Tensor]:
    x, scale, amax, gamma, beta = inputs
    is_layer_norm = attributes["norm_type"] == 0
    assert (scale.item(), amax.item()) == (1, 0)
    assert {**attributes, "norm_type": 0, "epsilon": 0.0} == {
        "norm_type": 0,
        "zero_centered_gamma": False,
        "epsilon": 0.0,
        "sm_margin": 0,
        "scaling_mode": 1,
        "quantize_layout": 0,
        "output_amax_when_no_scaling": False,
    }
    mean = x.mean(1) * is_layer_norm
    rsigma = ((x * x).mean(1) - mean * mean + attributes["epsilon"]).rsqrt()
    out = (x - mean[:, None]) * rsigma[:, None] * gamma + beta * is_layer_norm
    workspace = torch.empty(8 * len(x), dtype=torch.uint8, device=x.device)
    return [out, scale, scale, scale, amax, mean if is_layer_norm else scale, rsigma, workspace]


def multiplied(
    inputs: list[Tensor], outputs: object, attributes: dict[str, object]
) -> list[Tensor]:
    lhs, lhs_scale, rhs, rhs_scale, bias, alpha, beta = inputs
    is_fp8 = lhs.dtype == torch.float8_e4m3fn
    assert (alpha.item(), beta.item()) == (1, 0)
    assert attributes == {
        "config": {
            "scaling_mode": 3 if is_fp8 else 1,
            "collective_op": 0,
            "lhs_axis_boundary": 1,
            "rhs_axis_boundary": 1,
            "lhs_transposed": False,
            "rhs_transposed": is_fp8,
            "use_split_accumulator": True,
        }
    }
    right = rhs.float().t() if is_fp8 else rhs.float()
    out = (lhs.float() * lhs_scale @ (right * rhs_scale) + bias.float()).to(bias.dtype)
    return [out, torch.empty((32 << 20) + 256, dtype=torch.uint8, device=lhs.device)]


@pytest.fixture
def computed() -> Iterator[None]:
    names = [f"transformer_engine_{name}" for name in ("layernorm", "rmsnorm", "gemm", "gemm_fp8")]
    with torch_xla_ext.debug.use_reference(*names):
        yield


def test_another_release(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(sys.modules["transformer_engine_jax"], "registrations", dict)
    monkeypatch.setattr(transformer_engine, "_libraries", [])
    torch_xla_ext.load_kernels("transformer_engine")
    assert "no operators: this TransformerEngine has no te_gemm_v2_ffi" in caplog.text


def test_an_operand_is_written(device: torch.device) -> None:
    x, row, one = (torch.ones(shape, device=device) for shape in ((2, 8), 8, 1))
    results = torch.ops.transformer_engine.layernorm_forward(x, one, one, row, row, 1e-6)
    assert "output_to_operand_aliasing={{4}: (" in torch_xla_ext.debug.hlo(results[0])


@pytest.mark.usefixtures("computed")
def test_norms(device: torch.device) -> None:
    x, gamma, beta = torch.randn(2, 3, 8) + 1, torch.randn(8), torch.randn(8)
    operators = torch.ops.transformer_engine
    y = operators.layernorm(x.to(device), gamma.to(device), beta.to(device), 1e-3)
    torch.testing.assert_close(y.cpu(), functional.layer_norm(x, (8,), gamma, beta, 1e-3))
    compiled = torch.compile(operators.rmsnorm, backend="openxla", fullgraph=True)
    y = compiled(x.to(device), gamma.to(device))
    torch.testing.assert_close(y.cpu(), functional.rms_norm(x, (8,), gamma, 1e-6))
    rows, one = x.reshape(6, 8), torch.ones(1)
    _, _, _, _, _, mu, rsigma = operators.layernorm_forward(
        *(each.to(device) for each in (rows, one, 0 * one, gamma, beta)), 1e-6
    )
    torch.testing.assert_close(mu.cpu(), rows.mean(1))
    torch.testing.assert_close(rsigma.cpu(), (rows.var(1, correction=0) + 1e-6).rsqrt())


@pytest.mark.usefixtures("computed")
def test_products(device: torch.device) -> None:
    a, b, bias = torch.randn(2, 3, 4).bfloat16(), torch.randn(4, 5).bfloat16(), torch.ones(5)
    operators = torch.ops.transformer_engine
    y = operators.gemm(a.to(device), b.to(device))
    torch.testing.assert_close(y.cpu(), a @ b, rtol=0.02, atol=0.02)
    y = operators.gemm(a.to(device), b.to(device), bias.bfloat16().to(device))
    torch.testing.assert_close(y.cpu().float(), a.float() @ b.float() + 1, rtol=0.02, atol=0.02)

    def powers(*shape: int) -> Tensor:
        return torch.randint(-1, 2, shape).float().to(torch.float8_e4m3fn)

    a, b, bias = powers(16, 32), powers(48, 32), torch.zeros(48).bfloat16()
    scales = torch.tensor([0.5]), torch.tensor([4.0])
    operands = a, scales[0], b, scales[1], bias
    y = operators.gemm_fp8(*(each.to(device) for each in operands))
    assert torch.equal(y.cpu().float(), 2 * (a.float() @ b.float().T))


@pytest.mark.parametrize("device_type", ["xla", "meta"])
def test_shapes_are_checked_before_tracing(device_type: str) -> None:
    def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device_type)

    operators = torch.ops.transformer_engine
    with pytest.raises(ValueError, match=r"operand 3 \(gamma\): expected dimension 0 to be 8 but"):
        operators.rmsnorm(empty(2, 8), empty(7))
    with pytest.raises(TypeError, match=r"operand 0 \(x\): expected dtype .* but got F64"):
        operators.layernorm(empty(2, 8, dtype=torch.float64), empty(8), empty(8))
    with pytest.raises(ValueError, match=r"operand 2 \(rhs\): expected dimension 0 to be 8"):
        operators.gemm(empty(2, 8), empty(7, 3))
    fp8, one = torch.float8_e4m3fn, empty(1, dtype=torch.float32)
    with pytest.raises(ValueError, match="16"):
        operators.gemm_fp8(empty(16, 40, dtype=fp8), one, empty(16, 40, dtype=fp8), one, empty(16))
    if device_type == "meta":
        assert operators.layernorm(empty(2, 3, 8), empty(8), empty(8)).shape == (2, 3, 8)
        assert operators.gemm(empty(2, 3, 8), empty(8, 4)).shape == (2, 3, 4)
