"""Kernels from files: saved kernels, cubins and PTX; how kernels in a file are named and chosen."""

import json
import struct
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cuda_source.sources import ADD_TO, SCALE, SQUARE, attributes
from torch_xla_ext import CudaKernel, cuda_kernel
from xla_kernels.cuda_source import binary, machine_code, nvrtc

on_a_gpu = pytest.mark.usefixtures("on_a_gpu")


@pytest.fixture
def x(device: torch.device) -> Tensor:
    return torch.randn(1000).to(device)


@pytest.fixture
def without_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    def find() -> None:
        raise AssertionError("NVRTC is not needed")

    monkeypatch.setattr(nvrtc, "find", find)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "square.json"
    cuda_kernel(SQUARE, "square").save(path, ["sm_80", "sm_90a", "compute_80"])
    return path


def write(path: Path, module: bytes) -> Path:
    path.write_bytes(module)
    return path


@on_a_gpu
def test_a_saved_kernel(saved: Path, x: Tensor, request: pytest.FixtureRequest) -> None:
    expected = attributes(*cuda_kernel(SQUARE, "square")[4, 256](x, 1000, outputs=[x]))
    request.getfixturevalue("without_nvrtc")
    kernel = CudaKernel.from_file(saved)
    assert kernel.name == "square"
    # With the parameters' names.
    assert attributes(*kernel[4, 256](x, 1000, outputs={"out": x})) == expected


@pytest.mark.parametrize(
    ("capability", "architecture"),
    [(80, "sm_80"), (86, "sm_80"), (90, "sm_90a"), (103, "compute_80"), (75, None)],
)
def test_the_best_module_is_chosen(saved: Path, capability: int, architecture: str | None) -> None:
    name, from_file = machine_code.load(saved, None, None)
    if architecture is None:
        with pytest.raises(
            RuntimeError, match="has 'square' for compute_80, sm_80, sm_90a, but the"
        ):
            from_file.kernel(name, capability)
    else:
        expected = from_file.instances["square", architecture].module
        assert from_file.kernel(name, capability).module == expected


@on_a_gpu
def test_all_instances_of_a_template(tmp_path: Path, device: torch.device) -> None:
    options = {"signature": "(x: T[n]) -> (out: T[n]) where T: F32 | BF16", "grid": 1, "block": 256}
    path = tmp_path / "scale.json"
    cuda_kernel(SCALE, "own::scale<{T}, 3>", **options).save(path, ["sm_90a"])
    with pytest.raises(ValueError, match="several kernels; name one of own::scale<__nv_bfloat16"):
        CudaKernel.from_file(path)
    kernel = CudaKernel.from_file(path, "own::scale<{T}, 3>", **options)
    for dtype in (torch.float32, torch.bfloat16):
        (y,) = kernel(torch.zeros(4, dtype=dtype, device=device))
        assert attributes(y)["parameters"] == f'"t0 r0 x{struct.pack("<q", 4).hex()}"'
    with pytest.raises(
        ValueError, match="has no kernel 'own::scale<float, 4>'; it has own::scale<"
    ):
        CudaKernel.from_file(path, "own::scale<float, 4>")[1, 1](
            torch.zeros(4, device=device), 4, outputs=[torch.zeros(4)]
        )
    with pytest.raises(TypeError, match="save needs the source, but the kernel is from a file"):
        kernel.save(path, ["sm_80"])
    with pytest.raises(TypeError, match=r"{n} is not a dtype: name the instances"):
        cuda_kernel(SCALE, "own::scale<float, {n}>", **options).compile("sm_80")
    made = cuda_kernel(SCALE, "own::scale<float, {n}>", **options)
    instances = ["own::scale<float, 2>", "own::scale<float, 5>"]
    assert list(made.compile("sm_80", instances=instances)) == instances


@on_a_gpu
@pytest.mark.parametrize("architecture", ["sm_90", "compute_80"])
def test_cubins_and_ptx(
    architecture: str, tmp_path: Path, x: Tensor, request: pytest.FixtureRequest
) -> None:
    text = SQUARE + ADD_TO + SCALE
    (module,) = cuda_kernel(text, "own::scale<float, 3>").compile(architecture).values()
    path = write(tmp_path / "kernels.bin", module)
    request.getfixturevalue("without_nvrtc")
    kernel = CudaKernel.from_file(
        path, "square", prototype="void square(const float* x, float* y, int n)"
    )
    found = attributes(*kernel[4, 256](x, 1000, outputs={"y": x}))
    assert found["kernel"] == '"_Z6squarePKfPfi"'
    # By its C++ name, and by the module's; without names of parameters.
    for name in ("own::scale<float, 3>", "_ZN3own5scaleIfLi3EEEvPKT_PS1_x"):
        kernel = CudaKernel.from_file(path, name)
        assert "scale" in attributes(*kernel[1, 256](x, 1000, outputs=[x]))["kernel"]
    # Types that are not in the name.
    with pytest.raises(
        ValueError, match=r"'add_to' does not contain the parameters' types; pass prototype="
    ):
        CudaKernel.from_file(path, "add_to")
    prototype = (
        "void add_to(float* state, const float* x, float factor, Range range, uint8_t flag);"
    )
    kernel = CudaKernel.from_file(path, "add_to", prototype=prototype)
    (after,) = kernel[1, 8](x, x, 1.0, bytes(8), 1, aliases=["state"])
    assert attributes(after)["parameters"].startswith('"r0 t1 x0000803f x0000000000000000 x01')
    with pytest.raises(ValueError, match="has 5 parameters in the module, but 2 are declared"):
        CudaKernel.from_file(path, "add_to", prototype="void add_to(float* state, const float* x)")
    with pytest.raises(ValueError, match=r"no kernel is named 'f'; it has .*square\(float const\*"):
        CudaKernel.from_file(path, "f")
    with pytest.raises(ValueError, match="prototype 'add_to' is not a function's declaration"):
        CudaKernel.from_file(path, "add_to", prototype="add_to")


def test_the_width_of_a_prototypes_number_is_checked(
    tmp_path: Path, x: Tensor, on_a_gpu: None
) -> None:
    (module,) = cuda_kernel(ADD_TO, "add_to").compile("sm_90").values()
    path = write(tmp_path / "add_to.cubin", module)
    prototype = "void add_to(float* state, const float* x, double factor, Range range, bool flag)"
    kernel = CudaKernel.from_file(path, prototype=prototype)
    with pytest.raises(ValueError, match="parameter double has 4 bytes, but the value has 8"):
        kernel[1, 8](x, x, 1.0, bytes(8), True, aliases=["state"])


def test_files_that_are_none(tmp_path: Path) -> None:
    for content, text in (
        (b"hello", "neither a cubin, a fatbin nor PTX"),
        (b"", "neither a cubin, a fatbin nor PTX"),
        (b"{}", "is not a saved kernel"),
        (json.dumps({"format": "torch_xla_ext CUDA kernel 9"}).encode(), "is not a saved kernel"),
        (b"\x7fELF", "the cubin is damaged"),
        (Path("/bin/true").read_bytes(), "it is an ELF file for machine 62, not a cubin"),
    ):
        with pytest.raises(ValueError, match=text):
            CudaKernel.from_file(write(tmp_path / "file", content))
    with pytest.raises(FileNotFoundError):
        CudaKernel.from_file(tmp_path / "missing.cubin")


def test_no_cut_cubin_is_read_as_another(tmp_path: Path) -> None:
    (module,) = cuda_kernel(SQUARE, "square").compile("sm_90").values()
    whole = binary.read(module)
    for length in range(0, len(module), 37):
        try:
            read = binary.read(module[:length])
        except ValueError:
            continue
        assert read == whole
