"""Layouts that a signature declares: in the program, in the kernel, and without copies.

The kernels in C++ are compiled here, as a user compiles them.
"""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch_xla
from testing import libraries, programs
from testing.scripts import run_script
from testing.xla import custom_call_lines
from torch import Tensor

import torch_xla_ext
from torch_xla_ext import define_in_place_operator, define_operator, registry
from xla_kernels import Traits
from xla_kernels.signature import parse

SOURCE = """
#include "torch_xla_ext/kernel.h"
using namespace torch_xla_ext;

// out[i, j] = x[j, i] + y[i, j], of arrays in whatever order.
inline constexpr Signature kAdd = ParseSignature(
    "TestLayoutsAdd(x: F32[n, m]{0, 1}, y?: F32[m, n]) -> (out: F32[m, n]{0, 1}, sum: F32[m])");
Status Add(Buffer<F32, 2> x, std::optional<Buffer<F32, 2>> y, Result<F32, 2> out,
           Result<F32, 1> sum) {
  if (x.stride(0) != 1 || x.stride(1) != x.dim(0)) return Status::Error("strides of x");
  if (out.stride(0) != 1 || out.stride(1) != out.dim(0)) return Status::Error("strides of out");
  if (sum.stride(0) != 1) return Status::Error("strides of sum");
  for (int64_t i = 0; i < out.dim(0); ++i) {
    sum.data()[i] = 0;
    for (int64_t j = 0; j < out.dim(1); ++j) {
      float value = x.data()[j * x.stride(0) + i * x.stride(1)];
      if (y) value += y->data()[i * y->stride(0) + j * y->stride(1)];
      out.data()[i * out.stride(0) + j * out.stride(1)] = value;
      sum.data()[i] += value;
    }
  }
  return Status::Ok();
}
XLA_KERNEL_HOST(TestLayoutsAdd, kAdd, Add);

inline constexpr Signature kCount = ParseSignature(
    "TestLayoutsCount(x: S32[a, b, c]{1, 2, 0}) -> (x)");
Status Count(Buffer<S32, 3> x, Result<S32, 3> out) {
  if (out.stride(1) != 1 || out.stride(2) != x.dim(1) || out.stride(0) != x.dim(1) * x.dim(2)) {
    return Status::Error("strides");
  }
  for (int64_t i = 0; i < out.size(); ++i) out.data()[i] += static_cast<int32_t>(i);
  return Status::Ok();
}
XLA_KERNEL_HOST(TestLayoutsCount, kCount, Count);
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return libraries.build(tmp_path_factory.mktemp("kernels") / "kernels.cc", SOURCE, "-Wall")


@pytest.fixture(scope="module", autouse=True)
def kernels(library: Path) -> None:
    for name in ("TestLayoutsAdd", "TestLayoutsCount"):
        torch_xla_ext.register_kernel(name, library)
    define_operator(
        "layouts_test::add(Tensor x, Tensor? y=None) -> (Tensor, Tensor)",
        target="TestLayoutsAdd",
        sharding_rule="_ m, m _ -> m _, m",
    )
    define_operator("layouts_test::count(Tensor x) -> Tensor", target="TestLayoutsCount")
    define_in_place_operator("layouts_test::count_(Tensor(a!) x) -> ()", target="TestLayoutsCount")


ops = torch.ops.layouts_test
KINDS: dict[str, Callable[[Tensor], Tensor]] = {
    "row-major": lambda x: x,
    "transposed": lambda x: x.t().contiguous().t(),
    "a part": lambda x: torch.cat([x, x], 1)[:, : x.shape[1]],
}


@pytest.mark.parametrize("on", ["xla", "cpu"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(3, 5), (1, 4), (0, 2)])
def test_operators(on: str, kind: str, shape: tuple[int, int]) -> None:
    x, y = torch.randn(shape), torch.randn(shape[::-1])
    for other in (y, None):
        given = None if other is None else KINDS[kind](other.to(on))
        out, total = ops.add(KINDS[kind](x.to(on)), given)
        expected = x.t() if other is None else x.t() + other
        assert torch.equal(out.cpu(), expected)
        assert out.is_contiguous()
        torch.testing.assert_close(total.cpu(), expected.sum(1))


@pytest.mark.parametrize("api", ["ffi", "untyped"])
def test_custom_call(api: str, device: torch.device) -> None:
    x, y = torch.randn(3, 5), torch.randn(5, 3)
    outputs = [((5, 3), torch.float32), ((5,), torch.float32)]
    made = torch_xla_ext.custom_call(
        "TestLayoutsAdd", [x.to(device), y.to(device)], outputs, api=api
    )
    assert torch.equal(made[0].cpu(), x.t() + y)


def test_in_place(device: torch.device) -> None:
    x = torch.zeros(2, 3, 4, dtype=torch.int32)
    # The order of memory is a, c, b.
    expected = torch.arange(24, dtype=torch.int32).reshape(2, 4, 3).permute(0, 2, 1)
    for on in ("cpu", device):
        given = x.clone().to(on)
        assert torch.equal(ops.count(given).cpu(), expected)
        assert torch.equal(given.cpu(), x)
        ops.count_(given)
        assert torch.equal(given.cpu(), expected)


def test_layouts_in_the_hlo(device: torch.device) -> None:
    x, y = torch.zeros(3, 5, device=device), torch.zeros(5, 3, device=device)
    (line,) = custom_call_lines(*ops.add(x, y))
    assert "operand_layout_constraints={f32[3,5]{0,1}, f32[5,3]{1,0}}" in line
    assert "(f32[5,3]{0,1}, f32[5]{0}) custom-call(" in line
    (line,) = custom_call_lines(*ops.add(x))
    assert "operand_layout_constraints={f32[3,5]{0,1}}" in line


def test_a_producer_writes_it_so(device: torch.device) -> None:
    """No operand is copied or transposed: its producer uses the layout, or it is a view."""
    a, b = torch.randn(32, 16).to(device), torch.randn(32, 16).to(device)
    torch_xla.sync()
    with programs.compiled() as found:
        direct = ops.add(a.t(), b)  # a [16, 32] view of a row-major parameter
        computed = ops.add(torch.sin(a.t()), b)
        (direct[1] * 2 + computed[1]).cpu()
    entry = found.with_target("TestLayoutsAdd").partition("\nENTRY")[2]
    kinds = dict(re.findall(r"(%[\w.-]+) = f32\S* ([\w-]+)\(", entry))
    operands = re.findall(r"custom-call\((%[\w.-]+), (%[\w.-]+)\)", entry)
    assert sorted(kinds[first] for first, _ in operands) == ["bitcast", "fusion"]
    assert {kinds[second] for _, second in operands} == {"parameter"}
    assert not {"copy", "transpose"} & set(kinds.values())


SHARDED = """
import numpy, torch, torch_xla, torch_xla_ext
from testing import programs
from torch_xla.distributed import spmd

torch_xla.runtime.use_spmd()
torch_xla_ext.register_kernel("TestLayoutsAdd", {library!r})
torch_xla_ext.define_operator(
    "layouts_test::add(Tensor x, Tensor? y=None) -> (Tensor, Tensor)",
    target="TestLayoutsAdd",
    sharding_rule="_ m, m _ -> m _, m",
)
mesh = spmd.Mesh(numpy.arange(2), (2,), ("d",))
x, y = torch.randn(3, 8), torch.randn(8, 3)
a, b = x.to("xla"), y.to("xla")
spmd.mark_sharding(a, mesh, (None, "d"))
spmd.mark_sharding(b, mesh, ("d", None))
with programs.compiled() as found:
    out, _ = torch.ops.layouts_test.add(a, b)
    assert torch.equal(out.cpu(), x.t() + y)
text = found.with_target("TestLayoutsAdd")
assert "operand_layout_constraints={{f32[3,4]{{0,1}}, f32[4,3]{{1,0}}}}" in text, text
assert "(f32[4,3]{{0,1}}, f32[4]{{0}}) custom-call(" in text, text
"""


def test_each_devices_part_has_the_layout(library: Path) -> None:
    result = run_script(SHARDED.format(library=str(library)), CPU_NUM_DEVICES="2")
    assert result.returncode == 0, result.stderr


def test_opcheck_and_compile(device: torch.device) -> None:
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(ops.add.default, (torch.randn(3, 5),), test_utils=checks)
    compiled = torch.compile(lambda x: ops.add(x.t())[0] + 1, backend="openxla", fullgraph=True)
    x = torch.randn(3, 5)
    torch.testing.assert_close(compiled(x.to(device)).cpu(), x + 1)


def test_traits(device: torch.device) -> None:
    """Traits declare layouts for targets without a signature."""
    x = torch.zeros(3, 5, device=device)
    outputs = [((5, 3), torch.float32), ((5,), torch.float32)]
    traits = Traits(operand_layouts={0: (1, 0)})
    made = torch_xla_ext.custom_call("TestLayoutsAdd", [x, None], outputs, traits=traits)
    assert custom_call_lines(*made) == custom_call_lines(*ops.add(x))
    for layouts, error, text in (
        ({0: (0, 2)}, ValueError, r"operand_layouts\[0\] must have each of the input's 2 dimensio"),
        ({1: (0,)}, ValueError, "operand_layouts names input 1, but the call has 1 of them"),
        ([0], TypeError, "operand_layouts must be a dict {input: dimensions}"),
    ):
        with pytest.raises(error, match=text):
            registry.registration._XLAC._xla_gpu_custom_call(
                [x], b"", [[3]], [torch.float32], target="TestLayoutsAdd", operand_layouts=layouts
            )


def test_signatures() -> None:
    schema = parse.parse(
        "f",
        "(x: F32[n, 2 * m]{0, 1}, y?: T[a, b, c]{1,0,2}) -> (x, z: T[a]) where T: F16 | F32",
        "",
    )
    assert [each.layout for each in schema.arguments] == [(0, 1), (1, 0, 2), (0, 1), None]
    assert schema.operands[1].strides((2, 3, 5)) == (3, 1, 6)
    assert schema.results[1].strides((7,)) == (1,)
    assert schema.operand_layouts([1, 1]) == {0: (1, 0), 1: (2, 0, 1)}
    assert schema.operand_layouts([1, None]) == {0: (1, 0)}
    assert schema.result_layouts == {0: (1, 0)}
    assert parse.parse("f", "(x: F32[]) -> (y: F32[n]{0})", "n: i32").has_layouts
    for text, error in (
        ("(x: F32[n, m]{0}) -> (y: F32[n])", "layout of x must have each of its 2 dimensions once"),
        ("(x: F32[n, m]{0, 0}) -> (y: F32[n])", r"but is \[0, 0\]"),
        ("(x: F32[n, m]{1, 2}) -> (y: F32[n])", r"from 0, .* but is \[1, 2\]"),
        ("(x: F32[*n, m]{0, 1}) -> (y: F32[m])", "x has a layout, so its rank must be fixed"),
        ("(x: F32[n, m]{a, b}) -> (y: F32[n])", "cannot be parsed"),
        ("(x: F32{0}[n]) -> (y: F32[n])", "cannot be parsed"),
    ):
        with pytest.raises(ValueError, match=error):
            parse.parse("f", text, "")
