"""load_kernels: folders in the layout of Hugging Face's kernels, packages, FlashInfer's functions.

The tests make the builds: operators are in Python, and TVM-FFI's functions in C++.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from tvm_ffi_library import compiled

import torch_xla_ext
from torch_xla_ext.launchers.packages import flashinfer, variants
from torch_xla_ext.launchers.packages.variants import System

TORCH = "".join(torch.__version__.split(".")[:2])
CPU = "cpu-x86_64-linux"
# As kernel-builder writes it, except that its operators are in a shared library.
OPS = """
import torch
from . import _native
ops = torch.ops.{id}
"""
NATIVE = """
import torch
library = torch.library.Library("{id}", "DEF")
library.define("silu_and_mul(Tensor! out, Tensor x) -> ()")
library.define("doubled(Tensor x) -> Tensor")
library.define("positive(Tensor x) -> Tensor")

def silu_and_mul(out, x):
    a, b = x.chunk(2, -1)
    out.copy_(torch.nn.functional.silu(a) * b)

library.impl("silu_and_mul", silu_and_mul, "CPU")
library.impl("doubled", lambda x: 2 * x, "CPU")
library.impl("positive", lambda x: x[x > 0], "CPU")
"""
INIT = """
import torch
from ._ops import ops
from . import layers

def silu_and_mul(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    ops.silu_and_mul(out, x)
    return out
"""
LAYERS = """
import torch
from ._ops import ops

class SiluAndMul(torch.nn.Module):
    def forward(self, x):
        out = x.new_empty((*x.shape[:-1], x.shape[-1] // 2))
        ops.silu_and_mul(out, x)
        return out
"""


def build(folder: Path, variant: str, identity: str, **metadata: object) -> Path:
    made = folder / "build" / variant
    made.mkdir(parents=True)
    files = {"__init__": INIT, "_ops": OPS, "_native": NATIVE, "layers": LAYERS}
    for name, text in files.items():
        (made / f"{name}.py").write_text(text.replace("{id}", identity))
    described = {"id": identity, "name": "activation", "version": 1, **metadata}
    (made / "metadata.json").write_text(json.dumps(described))
    return made


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("functions") / "_relu_cpu_1234.abi3.so"
    return compiled(made, source="package_functions.cc")


def fake_doubled(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def test_a_folder(tmp_path: Path, device: torch.device) -> None:
    build(tmp_path, f"torch{TORCH}-cxx11-{CPU}", "_activation_1")
    build(tmp_path, f"torch{TORCH}-cxx11-cu128-x86_64-linux", "_activation_2")
    build(tmp_path, f"torch27-cxx11-{CPU}", "_activation_3")
    kernel = torch_xla_ext.load_kernels(tmp_path, fakes={"doubled": fake_doubled})
    x = torch.randn(4, 6)
    expected = functional.silu(x[:, :3]) * x[:, 3:]
    out = torch.empty(4, 3, device=device)
    assert kernel.silu_and_mul(out, x.to(device)) is out
    torch.testing.assert_close(out.cpu(), expected)
    torch.testing.assert_close(kernel.layers.SiluAndMul()(x.to(device)).cpu(), expected)
    compiled = torch.compile(kernel.ops.doubled, backend="openxla", fullgraph=True)
    assert torch.equal(compiled(x.to(device)).cpu(), 2 * x)
    # The error says why an operator cannot be part of a program.
    with pytest.raises(NotImplementedError, match=r"positive cannot be part .* no fake function"):
        kernel.ops.positive(x.to(device))
    assert torch_xla_ext.load_kernels(tmp_path / "build") is kernel
    assert torch_xla_ext.load_kernels(tmp_path / "build" / f"torch{TORCH}-cxx11-{CPU}") is kernel


def test_errors_name_what_a_folder_lacks(tmp_path: Path) -> None:
    with pytest.raises(ImportError, match="has no builds"):
        torch_xla_ext.load_kernels(tmp_path)
    build(tmp_path, "torch27-cxx11-cpu-x86_64-linux", "_activation_4")
    build(tmp_path, "torch-cuda", "_activation_5")
    text = r"torch-cuda: it is for cuda, but XLA's device is cpu; torch27-.*: torch is 2\.8"
    with pytest.raises(ImportError, match=text):
        torch_xla_ext.load_kernels(tmp_path)
    needed = {"python-depends": ["no-such-package"]}
    build(tmp_path, "torch-cpu", "_activation_6", **needed)
    with pytest.raises(ImportError, match="needs no-such-package; pip install no-such-package"):
        torch_xla_ext.load_kernels(tmp_path)
    unknown = tmp_path / "unknown"
    build(unknown, "torch-universal", "_activation_7")
    with pytest.raises(
        ValueError, match="no operator 'tripled'; there are doubled, positive, silu"
    ):
        torch_xla_ext.load_kernels(unknown, fakes={"tripled": fake_doubled})
    with pytest.raises(
        FileNotFoundError, match="hf download --repo-type kernel someone/relu --loc"
    ):
        torch_xla_ext.load_kernels("someone/relu")


def test_a_build_for_tvm_ffi(tmp_path: Path, library: Path, device: torch.device) -> None:
    version = "".join(map(str, System.current("Host").tvm_ffi))
    made = build(tmp_path, f"tvm-ffi{version}-{CPU}", "_relu_cpu_1234", name="relu-tvm-ffi")
    (made / library.name).symlink_to(library)
    with pytest.raises(TypeError, match=r"pass functions=.* of .*relu_cpu"):
        torch_xla_ext.load_kernels(tmp_path)
    relu = {
        "signature": "(x: F32[*n]) -> (out: F32[*n])",
        "arguments": "out x",
        "sharding_rule": "... -> ...",
    }
    kernel = torch_xla_ext.load_kernels(tmp_path, functions={"relu": relu})
    x = torch.randn(3, 4)
    assert torch.equal(kernel.relu(x.to(device)).cpu(), x.relu())
    assert torch.ops.relu_tvm_ffi.relu(x.to("meta")).shape == (3, 4)
    with pytest.raises(TypeError, match="expected dtype F32 but got S32"):
        kernel.relu(torch.ones(3, dtype=torch.int32, device=device))
    with pytest.raises(AttributeError, match=r"no function 'gelu' for Host; it has .*relu_cpu"):
        torch_xla_ext.load_kernels(tmp_path, functions={"gelu": relu})


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    def package(name: str) -> str:
        (tmp_path / f"{name}.py").write_text(NATIVE.replace("{id}", f"{name}_ops"))
        return name

    monkeypatch.syspath_prepend(str(tmp_path))
    return package


def test_a_package(package: Callable[[str], str], device: torch.device) -> None:
    torch_xla_ext.load_kernels(package("own_kernels"), fakes={"doubled": fake_doubled})
    assert torch.ops.own_kernels_ops.doubled(torch.ones(3, device=device)).tolist() == [2, 2, 2]
    with pytest.raises(ValueError, match="importing own_kernels defined no operators; if it was"):
        torch_xla_ext.load_kernels("own_kernels")


def test_a_package_that_is_imported(package: Callable[[str], str], device: torch.device) -> None:
    __import__(package("more_kernels"))
    torch_xla_ext.load_kernels(
        "more_kernels", names=["more_kernels_ops"], fakes={"doubled": fake_doubled}
    )
    assert torch.ops.more_kernels_ops.doubled(torch.ones(3, device=device)).tolist() == [2, 2, 2]
    with pytest.raises(FileNotFoundError, match="neither a folder nor an installed package"):
        torch_xla_ext.load_kernels("no_such_package")


def test_flashinfer(library: Path, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    class Spec:
        is_compiled = False

        def build(self) -> None:
            self.is_compiled = True

        def get_library_path(self) -> str:
            assert self.is_compiled
            return str(library)

    norm = ModuleType("flashinfer.jit.norm")
    norm.gen_norm_module = Spec
    monkeypatch.setitem(sys.modules, "flashinfer.jit.norm", norm)
    kernel = torch_xla_ext.load_kernels("flashinfer", names=["rmsnorm", "fused_add_rmsnorm"])
    x, residual = (torch.randn(2, 5, 64).bfloat16() for _ in range(2))
    weight = torch.randn(64).bfloat16()
    y = kernel.rmsnorm(x.to(device), weight.to(device), 1e-5)
    expected = functional.rms_norm(x.float(), (64,), weight.float(), 1e-5)
    torch.testing.assert_close(y.cpu().float(), expected, rtol=1e-2, atol=1e-2)
    y, total = torch.ops.flashinfer.fused_add_rmsnorm(
        *(each[0].to(device) for each in (x, residual)), weight.to(device)
    )
    torch.testing.assert_close(total.cpu(), (x + residual)[0])
    expected = functional.rms_norm(total.cpu().float(), (64,), weight.float(), 1e-6)
    torch.testing.assert_close(y.cpu().float(), expected, rtol=1e-2, atol=1e-2)
    with pytest.raises(ValueError, match=r"\(weight\): expected dimension 0 to be 64 but got 63"):
        kernel.rmsnorm(x.to(device), weight[:63].to(device))
    with pytest.raises(ValueError, match=r"\(input\): expected rank 2 or 3 but got 1 \[64\]"):
        torch.ops.flashinfer.rmsnorm(weight.to(device), weight.to(device))
    with pytest.raises(ValueError, match="FlashInfer's sampling is not known; known are rmsnorm"):
        torch_xla_ext.load_kernels("flashinfer", names="sampling")


def test_flashinfer_is_not_installed() -> None:
    with pytest.raises(ImportError, match=r"FlashInfer cannot be imported: .* flashinfer-python"):
        torch_xla_ext.load_kernels("flashinfer", names="silu_and_mul")


@pytest.mark.parametrize("rotary_dim", [0, 24, 80, -16])
def test_rotary_dimensions_of_flashinfer(rotary_dim: int) -> None:
    q, cache = torch.empty(2, 4, 64), torch.empty(8, max(rotary_dim, 0))
    checks = [
        flashinfer.FUNCTIONS[f"apply_rope_pos_ids{end}"][2]["check"]
        for end in ("", "_cos_sin_cache")
    ]
    for check in checks:
        check(q=q, rotary_dim=32, cos_sin_cache=cache.new_empty(8, 64))
        with pytest.raises(
            ValueError, match="rotary_dim: expected a multiple of 16, at most d = 64"
        ):
            check(q=q, rotary_dim=rotary_dim, cos_sin_cache=cache)


@pytest.mark.parametrize(
    ("source", "options", "text"),
    [
        (3, {}, "source must be a folder's path or a package's name, but is of type int"),
        ("flashinfer", {"functions": {"f": {}}}, "functions has no effect on the kernels of flash"),
        ("transformer_engine", {"names": "te_norm"}, "names has no effect on the kernels of trans"),
        (".", {"names": ["f"]}, "names has no effect"),
        (".", {"functions": {"f": {}}, "fakes": {"f": print}}, "fakes has no effect"),
        ("json", {"functions": {"f": {}}}, "functions has no effect on the kernels of json"),
    ],
)
def test_wrong_arguments(source: object, options: dict[str, object], text: str) -> None:
    with pytest.raises(TypeError, match=text):
        torch_xla_ext.load_kernels(source, **options)


@pytest.mark.parametrize("name", flashinfer.FUNCTIONS)
def test_signatures_of_flashinfer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator can be declared for each of FlashInfer's signatures."""
    from torch_xla_ext.launchers.packages import tvm_ffi_functions
    from xla_kernels.signature import parse

    _, _, options = flashinfer.FUNCTIONS[name]
    schema = parse.parse(name, options["signature"], options["parameters"])
    arguments = tvm_ffi_functions._arguments(schema, options["defaults"])
    torch._C.parse_schema(f"{name}({arguments}) -> {tvm_ffi_functions._returns(schema)}")
    words = options.get("arguments", "").split()
    assert not words or set(words) == {
        each.name for each in (*schema.arguments, *schema.parameters)
    }


H100 = System(torch=(2, 8), tvm_ffi=(0, 1), cuda=(12, 8), driver_cuda=(13, 0))
ALONE = System(torch=(2, 8), tvm_ffi=(0, 1), cuda=None, driver_cuda=(13, 0))
HOST = System(torch=(2, 8), tvm_ffi=None, cuda=None, driver_cuda=None)


@pytest.mark.parametrize(
    ("system", "best"),
    [
        (H100, "torch-stable-abi28-cu126-x86_64-linux"),
        (ALONE, "tvm-ffi01-cu128-x86_64-linux"),
        (HOST, "torch28-cpu-x86_64-linux"),
    ],
)
def test_the_best_variant(system: System, best: str) -> None:
    names = [
        *("torch28-cxx11-cu126-x86_64-linux", "torch28-cxx11-cu128-x86_64-linux"),
        *("torch28-cxx98-cu128-x86_64-linux", "torch28-cu129-x86_64-linux"),
        *("torch-stable-abi28-cu126-x86_64-linux", "torch-stable-abi29-cu128-x86_64-linux"),
        *("tvm-ffi01-cu126-x86_64-linux", "tvm-ffi01-cu128-x86_64-linux"),
        *("tvm-ffi01-cu132-x86_64-linux", "tvm-ffi02-cu128-x86_64-linux", "tvm-ffi01-cpu-x86_64-"),
        *("torch28-cxx11-cpu-x86_64-linux", "torch28-cpu-x86_64-linux"),
        *("torch28-cxx11-cpu-aarch64-linux", "torch28-metal-aarch64-darwin"),
        *("torch28-cxx11-rocm63-x86_64-linux", "torch-cuda", "torch-universal"),
    ]
    variant, refused = variants.choose(names, system)
    assert variant.name == best
    names.remove(best)
    assert set(refused) < set(names)
    if system is H100:
        without = [name for name in names if "stable" not in name]
        assert variants.choose(without, system)[0].name == "torch28-cxx11-cu128-x86_64-linux"
        python = ["torch-universal", "torch-cuda", "torch-cpu"]
        assert variants.choose(python, system)[0].name == "torch-cuda"
        assert refused["torch28-cu129-x86_64-linux"] == "torch is for CUDA 12.8"
        assert refused["tvm-ffi01-cu132-x86_64-linux"] == "the driver is for CUDA 13.0"
        assert refused["torch28-cxx98-cu128-x86_64-linux"] == "torch has another C++ ABI"
