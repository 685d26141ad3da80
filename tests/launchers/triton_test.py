"""triton_call: results by Triton's interpreter on the CPU; the launch for a GPU in the HLO."""

import re
import sys
from pathlib import Path

import pytest
import torch
import torch_xla
from testing.xla import hlo
from torch import Tensor

import torch_xla_ext
from torch_xla_ext import triton_call
from xla_kernels.triton import kernel

sys.path.insert(0, str(Path(__file__).parent))
import triton_kernels as kernels


def norm(x: Tensor, weight: Tensor, **options: object) -> Tensor:
    rows, columns = x.shape
    (result,) = triton_call(
        kernels.rms_norm,
        *(x, weight),
        outputs=[x],
        columns=columns,
        epsilon=0.5,
        BLOCK=128,
        grid=(rows,),
        **options,
    )
    return result


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_kernel_with_scalars_constants_and_a_function(dtype: torch.dtype) -> None:
    x, weight = torch.randn(4, 100).to(dtype), torch.randn(100).to(dtype)
    expected = torch.nn.functional.rms_norm(x.float(), (100,), weight.float(), 0.5).to(dtype)
    torch.testing.assert_close(norm(x.to("xla"), weight.to("xla")).cpu(), expected)
    torch.testing.assert_close(norm(x.to("xla"), weight.to("xla"), num_warps=8).cpu(), expected)


def test_in_place(device: torch.device) -> None:
    state, x = torch.randn(1000), torch.randn(1000)
    before = state.to(device)
    (after,) = triton_call(
        kernels.add_scaled,
        *(before, x.to(device), 1000, 0.5),
        aliases=["state_ptr"],
        BLOCK=256,
        grid=lambda meta: (-(-meta["n"] // meta["BLOCK"]),),
    )
    assert torch.equal(after.cpu(), state + x * 0.5)
    assert torch.equal(before.cpu(), state)


def test_autotuned_and_heuristic_kernels(device: torch.device) -> None:
    x = torch.randn(400)
    call = {"outputs": {"y_ptr": x}, "n": 400}
    (y,) = triton_call(
        kernels.tuned, x.to(device), grid=lambda meta: (-(-400 // meta["BLOCK"]),), **call
    )
    assert torch.equal(y.cpu(), x + 1)
    (y,) = triton_call(kernels.guessed, x.to(device), grid=(1,), **call)
    assert torch.equal(y.cpu(), x * 2)


def test_the_interpreter_leaves_the_compiler_as_it_was(device: torch.device) -> None:
    x, weight = torch.randn(4, 100), torch.randn(100)
    for _ in range(2):
        kernel = compiled(columns=100)
        assert kernel.signature["epsilon"] == "fp32"
        kernels.rms_norm.device_caches.clear()
        norm(x.to(device), weight.to(device)).cpu()


def compiled(capability: int = 90, columns: int = 100, **options: object) -> object:
    x = torch.empty(4, columns, device="meta")
    return torch_xla_ext.compile_triton_kernel(
        kernels.rms_norm,
        *(x, x[0]),
        outputs=[x],
        columns=columns,
        epsilon=1e-6,
        BLOCK=128,
        capability=capability,
        **options,
    )


def attributes(*tensors: Tensor) -> str:
    (line,) = [line for line in hlo(*tensors).splitlines() if " custom-call(" in line]
    return line


@pytest.mark.usefixtures("on_a_gpu")
def test_attributes_of_the_target(device: torch.device) -> None:
    x, weight = torch.randn(4, 100).to(device), torch.randn(100).to(device)
    line = attributes(norm(x, weight, num_warps=8))
    assert 'custom_call_target="XlaGpuCompiledKernel"' in line
    # Two operands, the result, 100 : i32, 0.5 : f32, and the pointer to no memory.
    text = line.replace('\\"', '"')
    assert 'parameters = "t0 t1 r0 x64000000 x0000003f x0000000000000000' in text
    assert "block = array<i32: 256, 1, 1>" in text
    assert "grid = array<i32: 4, 1, 1>" in text
    assert 'kernel = "rms_norm"' in text
    assert r"module = \"\\7FELF" in line or 'module = "\\7FELF' in text


@pytest.mark.usefixtures("on_a_gpu")
def test_clusters_shared_memory_and_aliases(device: torch.device) -> None:
    x, weight = torch.randn(4, 100).to(device), torch.randn(100).to(device)
    text = attributes(norm(x, weight, num_ctas=2, launch_cooperative_grid=True))
    assert "cluster = array<i32: 2, 1, 1>" in text
    assert "cooperative = true" in text
    a = torch.zeros(128, 128, dtype=torch.float16, device=device)
    (product,) = triton_call(kernels.transposed_product, a, a, outputs=[a], SIZE=128, grid=(1,))
    assert "shared = 65536 : i32" in attributes(product)
    (state,) = triton_call(
        kernels.add_scaled, a, a, 4, 0.5, aliases=["state_ptr"], BLOCK=16, grid=1
    )
    text = attributes(state)
    assert "output_to_operand_aliasing={{0}: (0, {})}" in text
    assert "r0 t1 x04000000" in text


@pytest.mark.usefixtures("on_a_gpu")
def test_tuples(device: torch.device, tmp_path: Path) -> None:
    x, sizes = torch.zeros(100).to(device), (100, 3.0)
    options = {"outputs": {"y_ptr": x}, "sizes": sizes, "BLOCK": 32}
    (y,) = triton_call(kernels.scaled_sum, (x, x + 1), grid=4, **options)
    assert "t0 t1 r0 x64000000 x00004040 x0000000000000000" in attributes(y)
    torch_xla_ext.compile_triton_kernel(kernels.scaled_sum, (x, x), **options, capability=90).save(
        tmp_path / "kernel.json"
    )
    kernel = torch_xla_ext.TritonKernel.load(tmp_path / "kernel.json")
    names = ["pair.0", "pair.1", "y_ptr", "sizes.0", "sizes.1", "BLOCK"]
    assert list(kernel.signature) == names
    (y,) = triton_call(kernel, (x, x + 1), grid=4, outputs={"y_ptr": x}, sizes=(80, 2.0))
    assert "t0 t1 r0 x50000000 x00000040 x0000000000000000" in attributes(y)
    with pytest.raises(TypeError, match=r"pair.1 was compiled as \*fp32, but is torch.float16"):
        triton_call(kernel, (x, x.half()), grid=4, outputs={"y_ptr": x}, sizes=sizes)
    (copy,) = triton_call(kernels.copy_in_pair, (x, x), 100, BLOCK=32, grid=4, aliases=["pair.1"])
    text = attributes(copy)
    assert "output_to_operand_aliasing={{0}: (1, {})}" in text
    assert "t0 r0 x64000000" in text
    with pytest.raises(TypeError, match=r"aliases names 'pair\.2'"):
        triton_call(kernels.copy_in_pair, (x, x), 100, BLOCK=32, grid=4, aliases=["pair.2"])


@pytest.mark.usefixtures("on_a_gpu")
def test_gluon(device: torch.device) -> None:
    x = torch.zeros(100).to(device)
    (y,) = triton_call(kernels.doubled, x, outputs=[x], n=100, BLOCK=128, grid=1)
    assert 'kernel = "doubled"' in attributes(y).replace('\\"', '"')
    assert "t0 r0 x64000000 x0000000000000000" in attributes(y)


def test_gluon_on_the_cpu(device: torch.device) -> None:
    x = torch.zeros(100).to(device)
    with pytest.raises(RuntimeError, match="doubled: Triton's interpreter does not support Gluon"):
        triton_call(kernels.doubled, x, outputs=[x], n=100, BLOCK=128, grid=1)


def test_a_compiled_kernel_is_saved_and_loaded(tmp_path: Path) -> None:
    kernel = compiled(num_warps=2)
    kernel.save(tmp_path / "kernel.json")
    assert torch_xla_ext.TritonKernel.load(tmp_path / "kernel.json") == kernel
    assert (kernel.num_warps, kernel.capability, kernel.name) == (2, 90, "rms_norm")
    assert kernel.cubin.startswith(b"\x7fELF")


@pytest.mark.usefixtures("on_a_gpu")
def test_a_compiled_kernel_refuses_other_arguments(device: torch.device) -> None:
    kernel = compiled(columns=112)

    def call(**changed: object) -> None:
        x = torch.zeros(4, 112, device=device)
        keywords = {"columns": 112, "epsilon": 0.5} | changed
        dtype = keywords.pop("dtype", torch.float32)
        triton_call(kernel, x.to(dtype), x[0], outputs=[x], grid=4, **keywords)

    call()
    call(BLOCK=128)
    with pytest.raises(ValueError, match="rms_norm: BLOCK was compiled as 128, but is 64"):
        call(BLOCK=64)
    with pytest.raises(ValueError, match="columns was compiled for multiples of 16, but is 100"):
        call(columns=100)
    with pytest.raises(TypeError, match=r"x_ptr was compiled as \*fp32, but is torch.float16"):
        call(dtype=torch.float16)
    with pytest.raises(TypeError, match="columns is a i32, not"):
        kernel.packed("columns", 2.5)
    with pytest.raises(TypeError, match="pass num_warps to compile_triton_kernel"):
        call(num_warps=2)


@pytest.mark.parametrize(
    ("type_", "value", "data"),
    [
        ("fp32", 0.5, "0000003f"),
        ("fp64", 0.5, "000000000000e03f"),
        ("fp16", 0.5, "0038"),
        ("bf16", 0.5, "003f"),
        ("i64", -2, "feffffffffffffff"),
        ("u64", 2**63, "0000000000000080"),
        ("i1", True, "01000000"),
    ],
)
def test_numbers_have_the_compiled_width(type_: str, value: float, data: str) -> None:
    saved = kernel.TritonKernel(
        *("k", b"", 90, {"a": type_}, {}, (), 4, 0, (1, 1, 1), False, False, 0, 1)
    )
    assert saved.packed("a", value).hex() == data


def test_wrong_arguments(device: torch.device) -> None:
    x = torch.ones(8).to(device)
    rest = {"n": 8, "BLOCK": 8, "grid": 1}

    def refused(text: str, *args: object, **keywords: object) -> None:
        with pytest.raises((TypeError, ValueError), match=re.escape(text)):
            triton_call(kernels.tuned.fn, *args, **{**rest, **keywords})

    refused("there is no parameter 'size'", x, outputs=[x], size=8)
    refused("tuned: 5 arguments", x, x, 8, 8, 8)
    refused("neither outputs nor aliases", x, x)
    refused("no argument for the parameter 'y_ptr'", x, aliases=["x_ptr"])
    refused("aliases names 'n'", x, x, aliases=["n"])
    refused("none of its arguments is an XLA tensor", 3, outputs=[x])
    refused("grid must be 1 to 3 numbers of blocks", x, outputs=[x], grid=(1, 2, 3, 4))
    refused("2 outputs, but only ['y_ptr'] are left", x, outputs=[x, x])
    with pytest.raises(TypeError, match=r"must be a @triton\.jit function"):
        triton_call(max, x, outputs=[x], grid=1)


def test_an_error_in_the_kernel_is_an_exception(device: torch.device) -> None:
    x = torch.ones(3).to(device)
    (y,) = triton_call(kernels.tuned.fn, x, outputs=[x], n=3, BLOCK=3, grid=1)  # no power of two
    with pytest.raises(RuntimeError, match=r"interpret: .*power of 2"):
        y.cpu()


def test_compile_and_sync(device: torch.device) -> None:
    x, weight = torch.randn(4, 100), torch.randn(100)
    a, b = x.to(device), weight.to(device)
    for _ in range(4):
        a = norm(a, b)
        x = torch.nn.functional.rms_norm(x, (100,), weight, 0.5)
        torch_xla.sync()
    torch.testing.assert_close(a.cpu(), x)
