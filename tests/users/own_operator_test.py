"""A user's operator: from a kernel in a library to torch.ops."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch_xla
from testing import libraries

import torch_xla_ext

# Other libraries may define operators in the wheel's namespace, before its import and after.
AFTER = torch.library.Library("xla_gpu", "DEF")

SOURCE = """
#include "torch_xla_ext/kernel.h"

using namespace torch_xla_ext;

struct ScaledRowsParams {
  double factor;
  int64_t copies;
  static constexpr auto Fields() {
    return MakeFields(Field("factor", &ScaledRowsParams::factor),
                      Field("copies", &ScaledRowsParams::copies, 1, 8));
  }
};

inline constexpr Signature kScaledRows = ParseSignature(
    "MyScaledRows(x: F32[rows, *row], index: I[n], bias?: F32[*row]) "
    "-> (out: F32[n, *row]) where I: S32 | S64");

Status Rows(Buffer<F32> x, AnyBuffer index, std::optional<Buffer<F32>> bias,
            Result<F32> out, const ScaledRowsParams& params) {
  if (index.dim(0) == 0 || x.dim(0) == 0) return Status::Ok();
  const int64_t size = x.size() / x.dim(0);
  for (int64_t i = 0; i < index.dim(0); ++i) {
    const int64_t row = index.dtype() == S64 ? index.data<int64_t>()[i]
                                             : index.data<int32_t>()[i];
    if (row < 0 || row >= x.dim(0)) {
      return Status::Error("index ", i, " is ", row, ", of ", x.dim(0), " rows");
    }
    for (int64_t j = 0; j < size; ++j) {
      out.data()[i * size + j] =
          x.data()[row * size + j] * static_cast<float>(params.factor * params.copies) +
          (bias ? bias->data()[j] : 0);
    }
  }
  return Status::Ok();
}

XLA_KERNEL_HOST(MyScaledRows, kScaledRows, Rows);
"""


def backward(ctx: object, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    (index,) = ctx.saved_tensors
    rows = torch.zeros(ctx.shape, device=grad.device)
    scaled = grad * ctx.factor
    return rows.index_add(0, index, scaled), None, grad.sum(0) if ctx.has_bias else None, None, None


def setup_context(ctx: object, inputs: tuple[object, ...], output: torch.Tensor) -> None:
    x, index, bias, factor, copies = inputs
    ctx.save_for_backward(index)
    ctx.shape, ctx.factor, ctx.has_bias = x.shape, factor * copies, bias is not None


@pytest.fixture(scope="module", autouse=True)
def operator(tmp_path_factory: pytest.TempPathFactory) -> torch._ops.OpOverload:
    torch_xla.device()
    torch_xla_ext.register_kernel(
        "MyScaledRows", libraries.build(tmp_path_factory.mktemp("kernel") / "rows.cc", SOURCE)
    )
    return torch_xla_ext.define_operator(
        "my_ns::scaled_rows(Tensor x, Tensor index, Tensor? bias=None, float factor=1.0, "
        "int copies=1) -> Tensor",
        target="MyScaledRows",
        setup_context=setup_context,
        backward=backward,
    )


def reference(
    x: torch.Tensor,
    index: torch.Tensor,
    bias: torch.Tensor | None = None,
    factor: float = 1.0,
    copies: int = 1,
) -> torch.Tensor:
    rows = x[index.long()] * (factor * copies)
    return rows if bias is None else rows + bias


def arguments(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(5, 3).to(device), torch.tensor([4, 0, 4, 2]).to(device)


for_each_device = pytest.mark.parametrize("device", ["cpu", "xla"])


@for_each_device
def test_results_on_each_device(device: str) -> None:
    x, index = arguments(device)
    bias = torch.randn(3).to(device)
    for args in ((x, index), (x, index.int(), bias, 2.5, 3), (x.t(), index[3:], None, -1.0)):
        actual = torch.ops.my_ns.scaled_rows(*args)
        assert actual.device.type == device
        torch.testing.assert_close(actual.cpu(), reference(*args).cpu())


@for_each_device
def test_the_derivative_is_the_references(device: str) -> None:
    gradients = []
    for function in (torch.ops.my_ns.scaled_rows, reference):
        x, index = arguments(device)
        x.requires_grad_()
        function(x, index, None, 2.0).sin().sum().backward()
        gradients.append(x.grad.cpu())
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(
    ("backend", "device"), [("aot_eager", "cpu"), ("inductor", "cpu"), ("openxla", "xla")]
)
def test_compiled_by_each_backend(backend: str, device: str) -> None:
    """Only the operator is computed: inductor would compile other operations in C++."""
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x, i: torch.ops.my_ns.scaled_rows(x, i, None, 3.0), backend=backend, fullgraph=True
    )
    x, index = arguments(device)
    torch.testing.assert_close(compiled(x, index).cpu(), reference(x, index, None, 3.0).cpu())


def test_export_with_a_dynamic_dimension() -> None:
    class Rows(torch.nn.Module):
        def forward(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
            return torch.ops.my_ns.scaled_rows(x, index) + 1

    rows, count = torch.export.Dim("rows", min=2), torch.export.Dim("count")
    exported = torch.export.export(Rows(), arguments("cpu"), dynamic_shapes=({0: rows}, {0: count}))
    x, index = torch.randn(7, 3), torch.tensor([6, 1])
    torch.testing.assert_close(exported.module()(x, index), x[index] + 1)


@for_each_device
def test_opcheck(device: str) -> None:
    checks = ["test_schema", "test_faketensor", "test_aot_dispatch_dynamic"]
    x, index = arguments(device)
    for args in ((x.requires_grad_(), index), (x, index, torch.randn(3).to(device), 2.0, 2)):
        results = torch.library.opcheck(
            torch.ops.my_ns.scaled_rows.default, args, test_utils=checks
        )
        assert set(results.values()) == {"SUCCESS"}


@for_each_device
def test_vmap_and_autocast(device: str) -> None:
    x, index = arguments(device)
    batch = torch.stack([x, -x])
    batched = torch.vmap(torch.ops.my_ns.scaled_rows, (0, None))(batch, index)
    torch.testing.assert_close(batched.cpu(), batch[:, index].cpu())
    with torch.autocast(device, dtype=torch.bfloat16):
        assert torch.ops.my_ns.scaled_rows(x, index).dtype == torch.float32


WRONG = {
    "dtype": (
        lambda x, i: (x.double(), i),
        TypeError,
        r"operand 0 \(x\): expected dtype F32 but got F64",
    ),
    "rank": (
        lambda x, i: (x, i[None]),
        ValueError,
        r"operand 1 \(index\): expected rank 1 \[n\] but got 2 \[1, ",
    ),
    "bias": (
        lambda x, i: (x, i, x[0, :2]),
        ValueError,
        r"operand 2 \(bias\): expected dimensions \[3\] but got \[2\]; row is that of operand 0",
    ),
    "limit": (lambda x, i: (x, i, None, 1.0, 9), ValueError, "parameter copies: expected 1 to 8"),
    "device": (lambda x, i: (x, torch.empty(2, device="meta").long()), ValueError, "on the device"),
}


@pytest.mark.parametrize("device", ["cpu", "xla", "meta"])
@pytest.mark.parametrize(("change", "error", "text"), WRONG.values(), ids=WRONG)
def test_wrong_calls(change: object, error: type[Exception], text: str, device: str) -> None:
    if "device" in text and device == "meta":
        pytest.skip("all are on the meta device")
    with pytest.raises(error, match=f"my_ns::scaled_rows: .*{text}"):
        torch.ops.my_ns.scaled_rows(*change(*arguments(device)))


@for_each_device
def test_failure_of_the_kernel(device: str) -> None:
    x, _ = arguments(device)
    with pytest.raises(RuntimeError, match="MyScaledRows: index 1 is 5, of 5 rows"):
        torch.ops.my_ns.scaled_rows(x, torch.tensor([0, 5], device=device)).cpu()


REST = "Tensor? bias, float factor, int copies"
DEFINITIONS = [  # the schema, and the text of the error
    ("f(Tensor x) -> Tensor", "must begin with"),
    (
        f"my_ns::f(Tensor a, Tensor index, {REST}) -> Tensor",
        "must be the operands of MyScaledRows, x, index, bias, .* but are a, index, bias",
    ),
    (
        "my_ns::f(Tensor x, Tensor index, Tensor? bias, float factor) -> Tensor",
        "parameter copies of MyScaledRows, a i64, is not an argument of the operator",
    ),
    (f"my_ns::f(Tensor x, Tensor index, {REST}, int k) -> Tensor", "argument k is neither"),
    (f"my_ns::f(Tensor x, Tensor index, {REST}) -> (Tensor, Tensor)", "at most the 1 results"),
    (f"my_ns::f(Tensor x, Tensor? index, {REST}) -> Tensor", "index must not be optional"),
]


@pytest.mark.parametrize(("schema", "text"), DEFINITIONS)
def test_wrong_definitions(schema: str, text: str) -> None:
    for _ in range(2):  # what was refused is not half defined
        with pytest.raises(ValueError, match=text):
            torch_xla_ext.define_operator(schema, target="MyScaledRows")


@pytest.mark.parametrize(
    ("target", "text"),
    [("Nobody", "no kernel 'Nobody'"), ("XlaGpuSimpelAdd", "did you mean 'XlaGpuSimpleAdd'")],
)
def test_unknown_kernels(target: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        torch_xla_ext.define_operator("my_ns::f(Tensor x) -> Tensor", target=target)


def test_edit_build_define_again(tmp_path: Path) -> None:
    """In one process, as in a notebook, an edit takes effect, even if it changes the signature."""
    x, index = arguments("cpu")
    for name, factor in (("twice", 2), ("thrice", 3)):
        source = SOURCE.replace("MyScaledRows", "MyEdited").replace("copies", name)
        source = source.replace("params.factor *", f"{factor} * params.factor *")
        torch_xla_ext.register_kernel("MyEdited", libraries.build(tmp_path / "rows.cc", source))
        torch_xla_ext.define_operator(
            "my_ns::edited(Tensor x, Tensor index, Tensor? bias=None, float factor=1.0, "
            f"int {name}=1) -> Tensor",
            target="MyEdited",
            replace=True,
        )
        for device in ("cpu", "xla"):
            actual = torch.ops.my_ns.edited(x.to(device), index.to(device))
            torch.testing.assert_close(actual.cpu(), reference(x, index, None, factor))


@pytest.mark.skipif(os.environ.get("PJRT_DEVICE") == "CUDA", reason="it would run there")
def test_a_kernel_for_cuda_alone(tmp_path: Path) -> None:
    source = SOURCE.replace("MyScaledRows", "MyCudaOnly").replace("_HOST(", "_CUDA(")
    source = source.replace("Status Rows(", "Status Rows(cudaStream_t, ")
    source = "typedef struct CUstream_st* cudaStream_t;\n" + source  # as the toolkit says it
    torch_xla_ext.register_kernel("MyCudaOnly", libraries.build(tmp_path / "rows.cc", source))
    torch_xla_ext.define_operator(
        "my_ns::cuda_only(Tensor x, Tensor index, Tensor? bias=None, float factor=1.0, "
        "int copies=1) -> Tensor",
        target="MyCudaOnly",
    )
    assert torch.ops.my_ns.cuda_only(*arguments("meta")).shape == (4, 3)
    text = "my_ns::cuda_only: the kernel MyCudaOnly is not registered for the CPU"
    for device in ("cpu", "xla"):
        with pytest.raises(NotImplementedError, match=text):
            torch.ops.my_ns.cuda_only(*arguments(device))


def test_a_library_of_the_wheels_namespace(tmp_path: Path) -> None:
    AFTER.define("of_my_own(Tensor x) -> Tensor")
    AFTER.impl("of_my_own", lambda x: x + 1, "CompositeExplicitAutograd")
    assert torch.ops.xla_gpu.of_my_own(torch.ones(2)).tolist() == [2, 2]
    assert torch.ops.xla_gpu.simple_add(torch.ones(2), torch.ones(2)).tolist() == [2, 2]
    script = (
        'import torch; mine = torch.library.Library("xla_gpu", "DEF"); import torch_xla_ext; '
        "print(torch.ops.xla_gpu.simple_add(torch.ones(2), torch.ones(2)).tolist())"
    )
    code = tmp_path / "before.py"
    code.write_text(script)
    result = subprocess.run(
        [sys.executable, code], capture_output=True, text=True, env=dict(os.environ)
    )
    assert result.stdout == "[2.0, 2.0]\n", result.stderr
