"""All parts of a signature: Python and the kernel agree on them, and operators follow from them."""

import ctypes

import hypothesis.strategies as st
import pytest
import torch
import torch_xla
from hypothesis import given, settings
from testing import libraries

import torch_xla_ext
from torch_xla_ext.registry import registration
from xla_kernels.signature.dtypes import XLA_TYPES
from xla_kernels.signature.schema import ArrayType

SOURCE = """
#include "torch_xla_ext/kernel.h"

using namespace torch_xla_ext;

struct RichParams {
  int64_t k;
  static constexpr auto Fields() {
    return MakeFields(Field("k", &RichParams::k, 0, 5));
  }
};

inline constexpr Signature kRich = ParseSignature(
    "TestRich(q: T[n, heads, d], pages: C[p, size, 2 * kv, d], starts: S32[n + 1], "
    "extra?: T[heads, 2 * d - 1], state: F32[*s, n]) -> "
    "(out: T[n, k, d], state, work: F32[w]) "
    "where T: F16 | BF16 | F32, C: T | F8E4M3FN, d: 2 | 4, size: 2..4, heads: 1.., "
    "heads % kv == 0, p % 2 == 0");

int64_t WorkSize(const Sizes& sizes) {
  return sizes["n"] * 100 + sizes["kv"] * 10 + (sizes.dtype("pages") == F8E4M3FN);
}

Status Rich(AnyBuffer q, AnyBuffer pages, Buffer<S32, 1> starts,
            std::optional<AnyBuffer> extra, Buffer<F32> state, AnyResult out,
            Result<F32> new_state, Result<F32, 1> work, const RichParams& params) {
  std::fill_n(static_cast<char*>(out.untyped_data()), out.size_bytes(), 0);
  for (int64_t i = 0; i < new_state.size(); ++i) new_state.data()[i] += work.dim(0);
  return Status::Ok();
}

XLA_KERNEL_HOST(TestRich, kRich, Rich);
XLA_KERNEL_SIZE(TestRich, kRich, w, WorkSize);

// "" or the error of arrays, each as dtype (0 if absent), rank and dimensions.
extern "C" __attribute__((visibility("default"))) const char* Check(
    const int64_t* arrays, int64_t k) {
  BufferView views[8];
  for (int i = 0; i < kRich.num_arguments(); ++i) {
    views[i].dtype = static_cast<DType>(*arrays++);
    views[i].rank = static_cast<int>(*arrays++);
    views[i].dims = arrays;
    arrays += views[i].rank;
  }
  static std::string text;
  const Status status = CheckArguments(kRich, views, {{"k", k}});
  text = status.ok() ? "" : status.message();
  return text.c_str();
}
"""


@pytest.fixture(scope="module", autouse=True)
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    built = libraries.build(tmp_path_factory.mktemp("rich") / "rich.cc", SOURCE, "-O0")
    torch_xla.device()
    torch_xla_ext.register_kernel("TestRich", built)
    torch_xla_ext.define_operator(
        "test_ns::rich(Tensor q, Tensor pages, Tensor starts, Tensor? extra, Tensor state, int k) "
        "-> (Tensor, Tensor)",
        target="TestRich",
    )
    result = ctypes.CDLL(str(built))
    result.Check.restype = ctypes.c_char_p
    return result


DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.int32]


def good_types(dtype: torch.dtype, cache: torch.dtype, extra: bool) -> list[ArrayType | None]:
    return [
        ArrayType((3, 4, 2), dtype),
        ArrayType((6, 2, 4, 2), cache),
        ArrayType((4,), torch.int32),
        ArrayType((4, 3), dtype) if extra else None,
        ArrayType((2, 5, 3), torch.float32),
        ArrayType((3, 5, 2), dtype),
        ArrayType((2, 5, 3), torch.float32),
        ArrayType((7,), torch.float32),
    ]


def c_error(library: ctypes.CDLL, arrays: list[ArrayType | None], k: int) -> str:
    numbers: list[int] = []
    for array in arrays:
        if array is None:
            numbers += [0, 0]
        else:
            numbers += [XLA_TYPES[array.dtype][1], len(array.shape), *array.shape]
    return library.Check((ctypes.c_int64 * len(numbers))(*numbers), ctypes.c_int64(k)).decode()


def python_error(arrays: list[ArrayType | None], k: int) -> str:
    try:
        registration.schema("TestRich").check(tuple(arrays), (("k", k),))
    except (TypeError, ValueError) as error:
        return str(error).removeprefix("TestRich: ")
    return ""


changes = st.lists(
    st.tuples(
        st.integers(0, 7),
        st.sampled_from(DTYPES) | st.none() | st.tuples(st.integers(0, 4), st.integers(0, 9)),
    ),
    max_size=3,
)


@settings(max_examples=3000, deadline=None)
@given(st.sampled_from(DTYPES), st.sampled_from(DTYPES), st.booleans(), changes, st.integers(4, 6))
def test_python_and_the_kernel_say_the_same(
    library: ctypes.CDLL,
    dtype: torch.dtype,
    cache: torch.dtype,
    extra: bool,
    changed: list[tuple[int, object]],
    k: int,
) -> None:
    arrays = good_types(dtype, cache, extra)
    for index, change in changed:
        array = arrays[index]
        if change is None:
            arrays[index] = None
        elif array is not None and isinstance(change, torch.dtype):
            arrays[index] = ArrayType(array.shape, change)
        elif array is not None:
            dim, size = change
            shape = list(array.shape)
            shape[dim : dim + 1] = [size]
            arrays[index] = ArrayType(tuple(shape), array.dtype)
    assert python_error(arrays, k) == c_error(library, arrays, k)


BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
WRONG = {
    "choices": (
        {0: (3, 4, 3), 1: (6, 2, 4, 3), 5: (3, 5, 3)},
        5,
        "operand 0 (q): expected d to be 2 or 4 but got 3",
    ),
    "range": ({1: (6, 5, 4, 2)}, 5, "operand 1 (pages): expected size to be 2 to 4 but got 5"),
    "open range": ({0: (3, 0, 2)}, 5, "operand 0 (q): expected heads to be at least 1 but got 0"),
    "multiple": (
        {0: (3, 3, 2)},
        5,
        "operand 0 (q): expected heads to be a multiple of kv, 2, but got 3; kv is that of "
        "operand 1 (pages)",
    ),
    "number": (
        {1: (5, 2, 4, 2)},
        5,
        "operand 1 (pages): expected p to be a multiple of 2 but got 5",
    ),
    "factor": (
        {1: (6, 2, 5, 2)},
        5,
        "operand 1 (pages): expected dimension 2 to be 2 * kv but got 5",
    ),
    "sum": (
        {2: (5,)},
        5,
        "operand 2 (starts): expected dimension 0 to be 4 but got 5; it is n + 1, and n is that of "
        "operand 0 (q)",
    ),
    "parameter": (
        {},
        4,
        "result 0 (out): expected dimension 1 to be 4 but got 5; k is a parameter",
    ),
}


@pytest.mark.parametrize(("shapes", "k", "text"), WRONG.values(), ids=WRONG)
def test_errors(
    library: ctypes.CDLL, shapes: dict[int, tuple[int, ...]], k: int, text: str
) -> None:
    arrays = good_types(BF16, FP8, extra=False)
    assert python_error(arrays, 5) == ""
    for index, shape in shapes.items():
        arrays[index] = ArrayType(shape, arrays[index].dtype)
    assert python_error(arrays, k) == c_error(library, arrays, k) == text


def operands(cache: torch.dtype = BF16, n: int = 3, heads: int = 4) -> list[torch.Tensor | None]:
    return [
        torch.zeros(n, heads, 2, dtype=BF16),
        torch.zeros(6, 2, 4, 2, dtype=cache),
        torch.zeros(n + 1, dtype=torch.int32),
        None,
        torch.zeros(2, 5, n),
    ]


def to(device: str, tensors: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
    return [None if tensor is None else tensor.to(device) for tensor in tensors]


@pytest.mark.parametrize("device", ["cpu", "xla", "meta"])
@pytest.mark.parametrize("cache", [BF16, FP8], ids=str)
def test_results_follow(device: str, cache: torch.dtype) -> None:
    tensors = to(device, operands(cache))
    out, state = torch.ops.test_ns.rich(*tensors, 5)
    assert (out.shape, out.dtype) == ((3, 5, 2), BF16)
    assert (state.shape, state.dtype) == ((2, 5, 3), torch.float32)
    if device != "meta":  # the size of the workspace came from the kernel
        assert state.cpu().unique().tolist() == [321 if cache is FP8 else 320]
        assert not tensors[4].cpu().any()  # the operator is pure
    with pytest.raises(ValueError, match=r"test_ns::rich: .* expected d to be 2 or 4"):
        wide = [tensors[0].repeat(1, 1, 3), tensors[1].repeat(1, 1, 1, 3)]
        torch.ops.test_ns.rich(*wide, *tensors[2:], 5)
    with pytest.raises(ValueError, match="test_ns::rich: parameter k: expected 0 to 5 but got 6"):
        torch.ops.test_ns.rich(*tensors, 6)


def test_symbolic_sizes() -> None:
    class Module(torch.nn.Module):
        def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.ops.test_ns.rich(*tensors[:3], None, tensors[3], 5)

    n, pages = torch.export.Dim("n", max=100), torch.export.Dim("pages", max=50)
    given = [tensor for tensor in operands() if tensor is not None]
    shapes = [{0: n}, {0: 2 * pages}, {0: n + 1}, {2: n}]
    exported = torch.export.export(Module(), tuple(given), dynamic_shapes=(tuple(shapes),))
    out, state = exported.module()(*[t for t in operands(n=7) if t is not None])
    assert out.shape == (7, 5, 2)
    assert state.unique().tolist() == [720]
    heads = {0: n, 1: torch.export.Dim("heads", max=9)}
    exported = torch.export.export(Module(), tuple(given), dynamic_shapes=((heads, *shapes[1:]),))
    run = exported.module()
    assert run(*[t for t in operands(heads=6) if t is not None])[0].shape == (3, 5, 2)
    with pytest.raises(Exception, match=r"heads|multiple|Mod|Guard|% 2"):  # of kv, which is 2
        run(*[t for t in operands(heads=5) if t is not None])


def test_a_result_that_is_an_operand_needs_its_buffer() -> None:
    tensors = to("xla", operands())
    outputs = [((3, 5, 2), BF16), ((2, 5, 3), torch.float32), ((1,), torch.float32)]
    _, state, _ = torch_xla_ext.custom_call(
        "TestRich", tensors, outputs, attributes={"k": 5}, aliases={1: 4}
    )
    assert state.unique().tolist() == [1]
    _, state, _ = torch_xla_ext.custom_call("TestRich", tensors, outputs, attributes={"k": 5})
    text = r"result 1 \(state\): expected the buffer of operand 4 \(state\) .* aliases=\{1: 4\}"
    with pytest.raises(RuntimeError, match=text):
        state.tolist()
