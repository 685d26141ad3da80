"""The programs in docs/launchers.md run, one after the other, on the CPU."""

import ctypes
import re
import runpy
import struct
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch_xla
import triton
import triton.language as tl
import tvm_ffi
from testing.xla import capsule

import torch_xla_ext

PAGE = Path("docs/launchers.md").read_text()


@torch.library.custom_op("mylib::rotary", mutates_args=())
def rotary(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    return x * positions[:, None]


@rotary.register_fake
def _(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@triton.jit
def rms_norm(x_ptr, weight_ptr, y_ptr, columns, epsilon, BLOCK: tl.constexpr):  # noqa: ANN001, ANN201, N803
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * columns + offsets)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / columns + epsilon)
    tl.store(y_ptr + row * columns + offsets, x * scale * tl.load(weight_ptr + offsets))


def registrations(library: Path) -> dict[str, dict[str, object]]:
    """A library's handlers in the form of TransformerEngine's, which jax.ffi takes, too."""
    scale = ctypes.CDLL(str(library))
    scale.ScaleHostBundle.restype = ctypes.c_void_p
    instantiate, _, _, execute = (ctypes.c_void_p * 4).from_address(scale.ScaleHostBundle())
    torch_xla_ext.register_ffi_type("Plan", scale.ScaleTypeId, platform="Host")
    return {"scale": {"instantiate": capsule(instantiate), "execute": capsule(execute)}}


def compiled(*args: object, options: str) -> object:
    """A TVM-FFI function, like those that CuTe-DSL compiles."""

    def norm(x: object, weight: object, out: object, eps: float) -> None:
        x, weight = torch.from_dlpack(x), torch.from_dlpack(weight)
        result = torch.nn.functional.rms_norm(x, x.shape[1:], weight, eps)
        torch.from_dlpack(out).copy_(result)

    assert options == "--enable-tvm-ffi"
    return tvm_ffi.convert(norm)


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = runpy.run_path("examples/launchers/tvm_ffi_rms_norm.py")
    library = example["compiled_for_cpu"]()
    monkeypatch.chdir(tmp_path)
    Path("norm.so").symlink_to(library)
    (source,) = re.findall(r"```c\+\+\n(.*?)```", PAGE, re.DOTALL)
    Path("scale.cc").write_text(source)
    include = torch_xla_ext.include_dir()
    options = ["-std=c++17", "-O2", "-shared", "-fPIC", "-isystem", include]
    subprocess.run(["g++", *options, "scale.cc", "-o", "libscale.so"], check=True)
    (source,) = re.findall(r"```c\n(.*?)```", PAGE, re.DOTALL)
    Path("double_it.c").write_text(source)
    (command,) = re.findall(r"# (gcc .*)$", PAGE, re.MULTILINE)
    subprocess.run(command.split(), check=True)
    rows = 3
    x, weight, positions = torch.randn(rows, 4096), torch.randn(4096), torch.arange(rows)
    normed = torch.nn.functional.rms_norm(x, (4096,), weight, 1e-6)
    expected = [x * positions[:, None], *[normed] * 4, *[2 * x] * 5]
    names = {
        "torch": torch,
        "torch_xla": torch_xla,
        "ctypes": ctypes,
        "struct": struct,
        "torch_xla_ext": torch_xla_ext,
        "rms_norm": rms_norm,
        "rows": rows,
        "x": x.to("xla"),
        "weight": weight.to("xla"),
        "positions": positions.to("xla"),
        "platform": "Host",
        "cute": SimpleNamespace(compile=compiled),
        "norm": None,
        "examples": (),
        "their_library": SimpleNamespace(
            registrations=lambda: registrations(tmp_path / "libscale.so")
        ),
    }
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == len(expected)
    for block, result in zip(blocks, expected, strict=True):
        exec(compile(block, "docs/launchers.md", "exec"), names)
        torch.testing.assert_close(names.pop("y").cpu(), result)
