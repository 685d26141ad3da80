"""Functions of TVM-FFI as custom calls: a library in C++, and functions of tvm_ffi itself."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from testing.xla import hlo
from torch import Tensor
from tvm_ffi_library import RMS_NORM, compiled

import torch_xla_ext
from torch_xla_ext import Target, custom_call
from xla_kernels import tvm_ffi


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library is not linked with libtvm_ffi, like the modules that FlashInfer compiles."""
    return compiled(tmp_path_factory.mktemp("tvm_ffi") / "functions.so")


@pytest.fixture
def register(library: Path) -> Callable[..., list[Target]]:
    def register(name: str, **options: object) -> list[Target]:
        return torch_xla_ext.register_kernel(
            name, library, abi="tvm-ffi", **{"platform": "Host", **options}
        )

    return register


def expected_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return torch.nn.functional.rms_norm(x, x.shape[1:], weight, epsilon)


def norm(target: str, x: Tensor, weight: Tensor | None, **attributes: object) -> Tensor:
    values = {"epsilon": 0.5, "add_one": False, "mode": "mean"} | attributes
    return custom_call(target, [x, weight], [x], attributes=values)[0]


def test_a_function_with_a_signature(register: Callable, device: torch.device) -> None:
    assert register("TvmNorm", **RMS_NORM) == [Target("TvmNorm", "Host", "ffi")]
    assert Target("TvmNorm", "Host", "ffi") in torch_xla_ext.registered_targets("Host")
    x, weight = torch.randn(4, 100), torch.randn(100)
    on_xla = norm("TvmNorm", x.to(device), weight.to(device))
    assert 'custom_call_target="TvmNorm"' in hlo(on_xla)
    torch.testing.assert_close(on_xla.cpu(), expected_norm(x, weight, 0.5))
    result = norm("TvmNorm", x.to(device), None, add_one=True)
    torch.testing.assert_close(result.cpu(), expected_norm(x, torch.full((100,), 2.0), 0.5))
    result = norm("TvmNorm", x.to(device), None, mode="sum", epsilon=0)
    torch.testing.assert_close(result.cpu(), x / x.norm(dim=1, keepdim=True))


def test_operands_are_row_major(register: Callable, device: torch.device) -> None:
    register("TvmNorm", **RMS_NORM)
    x, weight = torch.randn(100, 4), torch.randn(100)
    result = norm("TvmNorm", x.to(device).t(), weight.to(device))
    torch.testing.assert_close(result.cpu(), expected_norm(x.t(), weight, 0.5))


def test_an_operator(register: Callable, device: torch.device) -> None:
    register("TvmNorm", **RMS_NORM)
    operator = torch_xla_ext.define_operator(
        "tvm_ffi_test::norm(Tensor x, Tensor? weight, float epsilon, bool add_one=False, "
        'str mode="mean") -> Tensor',
        target="TvmNorm",
        replace=True,
    )
    x, weight = torch.randn(4, 100), torch.randn(100)
    a, b = x.to(device), weight.to(device)
    torch.testing.assert_close(operator(a, b, 0.5).cpu(), expected_norm(x, weight, 0.5))
    step = torch.compile(lambda x: operator(x, None, 0.5) + 1, backend="openxla", fullgraph=True)
    for _ in range(2):
        x = expected_norm(x, None, 0.5) + 1
        a = step(a)
        torch.testing.assert_close(a.cpu(), x)
    assert operator(torch.empty(2, 3, device="meta"), None, 0.5).shape == (2, 3)
    with pytest.raises(ValueError, match=r"epsilon: expected 0.0 to 1.0 but got 2"):
        operator(a, b, 2.0)
    with pytest.raises(TypeError, match=r"operand 0 \(x\): expected dtype F32 but got BF16"):
        operator(a.bfloat16(), b, 0.5)
    with pytest.raises(NotImplementedError, match="TvmNorm has only an FFI entry for the CPU"):
        operator(x, weight, 0.5)


def test_in_place(register: Callable, device: torch.device) -> None:
    register(
        "TvmAdd",
        symbol="add_in_place",
        signature="(state: F32[n], x: F32[n]) -> (state)",
        parameters="times: i64",
    )
    state, x = torch.randn(10), torch.randn(10)
    before = state.to(device)
    (after,) = custom_call(
        "TvmAdd", [before, x.to(device)], [before], attributes={"times": 3}, aliases={0: 0}
    )
    torch.testing.assert_close(after.cpu(), state + 3 * x)
    assert torch.equal(before.cpu(), state)
    torch_xla_ext.define_in_place_operator(
        "tvm_ffi_test::add_(Tensor(a!) state, Tensor x, int times) -> ()",
        target="TvmAdd",
        replace=True,
    )
    torch.ops.tvm_ffi_test.add_(before, x.to(device), 2)
    torch.testing.assert_close(before.cpu(), state + 2 * x)


DTYPES = {
    torch.bool: (6, 8),
    torch.int8: (0, 8),
    torch.int64: (0, 64),
    torch.uint8: (1, 8),
    torch.float16: (2, 16),
    torch.float64: (2, 64),
    torch.bfloat16: (4, 16),
    torch.complex64: (5, 64),
    torch.float8_e4m3fn: (10, 8),
    torch.float8_e5m2: (12, 8),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 2), (0, 4), ()])
def test_arguments_of_the_function(
    register: Callable, device: torch.device, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    register("TvmDescribe", symbol="describe", arguments=["args", "rets", "attrs.weights"])
    x = torch.ones(shape).to(dtype).to(device)
    (out,) = custom_call(
        "TvmDescribe", [x], [((7,), torch.int64)], attributes={"weights": [1, 2, 39]}, api="ffi"
    )
    rows = shape[0] if shape else -1
    assert out.tolist() == [len(shape), rows, *DTYPES[dtype], 1, 0, 42]


def test_memory_of_the_environment(register: Callable, device: torch.device) -> None:
    register("TvmTwice", symbol="twice")
    for shape in ((1000,), (7, 11), (0,)):
        x = torch.randn(shape)
        (out,) = custom_call("TvmTwice", [x.to(device)], [x])
        assert torch.equal(out.cpu(), 2 * x)


def test_errors_of_the_function_have_its_text(register: Callable, device: torch.device) -> None:
    register("TvmRaw", symbol="rms_norm", arguments="rets args attrs.eps attrs.one attrs.mode")
    x = torch.ones(2, 3).to(device)
    good = {"eps": 0.0, "one": False, "mode": "mean"}

    def call(x: Tensor, **changed: object) -> list[float]:
        inputs = [x, torch.ones(3).to(device)]
        return custom_call("TvmRaw", inputs, [x], attributes=good | changed)[0].tolist()

    assert call(x) == [[1] * 3] * 2
    with pytest.raises(RuntimeError, match="TvmRaw: ValueError: no such mode: median"):
        call(x, mode="median")
    with pytest.raises(RuntimeError, match="TvmRaw: ValueError: x must be a matrix of float32"):
        call(x.bfloat16())
    with pytest.raises(RuntimeError, match=r"TvmRaw: TypeError: .*argument #3.*bool"):
        call(x, eps="zero")
    assert call(x) == [[1] * 3] * 2  # and the process goes on


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("args rets attrs.a attrs.b", "TvmWrong: the call has no attribute b"),
        ("args rets", "TvmWrong: attribute a is not passed to the function; name it in"),
        ("args attrs.a", "TvmWrong: result 0 is not passed to the function"),
        ("args.0 rets attrs.a", "TvmWrong: operand 1 is not passed to the function"),
        ("args args.2 rets attrs.a", "TvmWrong: the call has no operand 2"),
        ("none rets args attrs.a", r"TvmWrong: TypeError: .*[Ee]xpect.* argument"),
    ],
)
def test_a_call_that_does_not_fit(
    register: Callable, device: torch.device, arguments: str, text: str
) -> None:
    register("TvmWrong", symbol="twice", arguments=arguments)
    x = torch.ones(3).to(device)
    (out,) = custom_call("TvmWrong", [x, x], [x], attributes={"a": 1})
    with pytest.raises(RuntimeError, match=text):
        out.cpu()


def test_a_tensor_that_the_function_makes_is_no_result(
    register: Callable, device: torch.device
) -> None:
    register("TvmOwn", symbol="own")
    (out,) = custom_call("TvmOwn", [torch.ones(3).to(device)], [((3,), torch.float32)])
    with pytest.raises(RuntimeError, match="TvmOwn: it returned a tensor of its own"):
        out.cpu()


class Compiled:
    """Like a function with defaults that CuTe-DSL compiles: made from a tvm_ffi.Function."""

    def __init__(self, function: object) -> None:
        self.function = function

    def __tvm_ffi_object__(self) -> object:
        return self.function


@pytest.fixture
def axpy() -> object:
    import tvm_ffi as library

    def axpy(x: object, out: object, factor: float, y: object, name: str) -> None:
        result = torch.from_dlpack(x) * factor
        if y is not None:
            result += torch.from_dlpack(y)
        assert name == "axpy"
        torch.from_dlpack(out).copy_(result)

    return library.convert(axpy)


def test_a_call_in_one_line(axpy: object, device: torch.device) -> None:
    call, x = torch_xla_ext.tvm_ffi_call, torch.randn(5)
    on_xla = x.to(device)
    (y,) = call(axpy, on_xla, 2.0, on_xla, "axpy", outputs={1: on_xla})
    assert torch.equal(y.cpu(), x * 3)
    (y,) = call(Compiled(axpy), on_xla, 2.0, None, "axpy", outputs={1: on_xla})
    assert torch.equal(y.cpu(), x * 2)
    state = on_xla + 1
    (new,) = call(axpy, on_xla, state, 3, on_xla, "axpy", aliases=[1])
    assert torch.equal(new.cpu(), x * 4)
    assert torch.equal(state.cpu(), x + 1)
    captured = torch_xla_ext.capture(lambda x: call(axpy, x, 2.0, x, "axpy", outputs={1: x})[0] * 2)
    for _ in range(3):
        assert torch.equal(captured(on_xla).cpu(), x * 6)


def test_a_call_has_one_target_for_a_function_and_its_kinds_of_arguments(
    axpy: object, device: torch.device
) -> None:
    x, before = torch.ones(5).to(device), len(tvm_ffi._targets)
    for factor in (2.0, 3.0):
        torch_xla_ext.tvm_ffi_call(axpy, x, factor, x, "axpy", outputs={1: x})
    assert len(tvm_ffi._targets) == before + 1


def test_a_call_with_a_list_of_outputs(device: torch.device) -> None:
    import tvm_ffi as library

    def split(x: object, low: object, high: object) -> None:
        for part, out in zip(torch.from_dlpack(x).chunk(2), (low, high), strict=True):
            torch.from_dlpack(out).copy_(part)

    x = torch.arange(6.0).to(device)
    outputs = [((3,), torch.float32)] * 2
    low, high = torch_xla_ext.tvm_ffi_call(library.convert(split), x, outputs=outputs)
    assert low.tolist() + high.tolist() == x.tolist()


def test_wrong_calls(axpy: object, device: torch.device) -> None:
    call, x = torch_xla_ext.tvm_ffi_call, torch.ones(5).to(device)
    with pytest.raises(TypeError, match="none of the function's arguments is an XLA tensor"):
        call(axpy, 1, outputs=[x])
    with pytest.raises(TypeError, match="neither outputs nor aliases"):
        call(axpy, x)
    with pytest.raises(TypeError, match="outputs has 5, but the function receives 2 arguments"):
        call(axpy, x, outputs={5: x})
    with pytest.raises(TypeError, match=r"aliases must be positions of tensor arguments, but"):
        call(axpy, x, 2.0, aliases=[1])
    with pytest.raises(
        TypeError, match=r"must be a path or a tvm_ffi\.Function, but is of type int"
    ):
        call(3, x, outputs=[x])


def test_registered_again(
    register: Callable, library: Path, tmp_path: Path, device: torch.device
) -> None:
    """Another function or signature under the name takes effect; the library may be a new one."""
    x = torch.ones(3).to(device)
    register("TvmAgain", symbol="twice")
    assert custom_call("TvmAgain", [x], [x])[0].tolist() == [2] * 3
    register("TvmAgain", symbol="add_in_place", arguments="rets args attrs.times")
    (added,) = custom_call("TvmAgain", [x], [x], attributes={"times": 4}, aliases={0: 0})
    assert added.tolist() == [5] * 3
    register("TvmAgain", symbol="twice", signature="(x: F32[n]) -> (y: F32[n])")
    assert custom_call("TvmAgain", [x], [x])[0].tolist() == [2] * 3
    register("TvmAgain", symbol="twice", signature="(x: F64[n]) -> (y: F64[n])")
    with pytest.raises(TypeError, match="expected dtype F64 but got F32"):
        custom_call("TvmAgain", [x], [x])
    copy = tmp_path / "functions.so"
    copy.write_bytes(library.read_bytes())
    for options, expected in (([], 2), (["-DFACTOR=3"], 3)):
        compiled(copy, *options)
        torch_xla_ext.register_kernel(
            "TvmAgain", copy, abi="tvm-ffi", platform="Host", symbol="twice"
        )
        assert custom_call("TvmAgain", [x], [x])[0].tolist() == [expected] * 3


WRONG = {
    "platform": ({"platform": "cpu"}, ValueError, 'unknown platform .cpu.; .* the CPU is "Host"'),
    "symbol": ({"symbol": "rms"}, AttributeError, "no TVM-FFI function 'rms'; similar are rms_nor"),
    "word": ({"symbol": "twice", "arguments": "args out"}, ValueError, 'unknown argument "out"'),
    "signature": ({"signature": "x -> y"}, ValueError, "cannot be parsed"),
    "dtype": ({"signature": "(x: Q[n]) -> (y: F32[n])"}, ValueError, "Q is neither a dtype nor"),
    "dim": ({"signature": "(x: F32[n!]) -> (y: F32[n])"}, ValueError, "cannot be parsed"),
    "rest": ({"signature": "(x: F32[n]; z) -> (y: F32[n])"}, ValueError, "cannot be parsed"),
    "where": (
        {"signature": "(x: F32[n]) -> (y: F32[n]) where m: 1..3"},
        ValueError,
        "m is not a siz",
    ),
    "condition": (
        {"signature": "(x: F32[n]) -> (y: F32[n]) where n > 3"},
        ValueError,
        "'n>3' is not a condition",
    ),
    "twice": ({"signature": "(x: F32[n]) -> (x: F32[n])"}, ValueError, "the name x appears twice"),
    "parameters": (
        {"signature": "(x: F32[n]) -> (y: F32[n])", "parameters": "eps f64"},
        ValueError,
        'must have the form "eps: f64',
    ),
    "parameter": (
        {"signature": "(x: F32[n]) -> (y: F32[n])", "parameters": "eps: float"},
        ValueError,
        "eps must be one of bool, i32",
    ),
    "parameters alone": ({"parameters": "eps: f64"}, TypeError, "parameters require a signature"),
    "unknown name": (
        {"signature": "(x: F32[n]) -> (y: F32[n])", "arguments": "y x eps"},
        ValueError,
        "argument 'eps' is not in the signature, which has x, y",
    ),
    "left out": (
        {"signature": "(x: F32[n]) -> (y: F32[n])", "arguments": "x"},
        ValueError,
        "y is in the signature, but not among the arguments",
    ),
}


@pytest.mark.parametrize(("options", "error", "text"), WRONG.values(), ids=WRONG)
def test_wrong_registration(
    register: Callable, options: dict, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        register("TvmBad", **{"symbol": "twice", **options})


def test_wrong_arguments_of_register_kernel(library: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"abi must be 'kernel\.h' or 'tvm-ffi', but is 'tvm'"):
        torch_xla_ext.register_kernel("Tvm", library, abi="tvm")
    with pytest.raises(TypeError, match="symbol requires abi='tvm-ffi'"):
        torch_xla_ext.register_kernel("Tvm", library, symbol="twice")
    with pytest.raises(TypeError, match=r"must be a path or a tvm_ffi\.Function, but is of"):
        torch_xla_ext.register_kernel("Tvm", 3, abi="tvm-ffi")
    with pytest.raises(FileNotFoundError, match="no such file"):
        torch_xla_ext.register_kernel("Tvm", tmp_path / "none.so", abi="tvm-ffi")


def test_without_the_package(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tvm_ffi.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"need libtvm_ffi, .* pip install apache-tvm-ffi"):
        torch_xla_ext.register_kernel("Tvm", library, abi="tvm-ffi", symbol="twice")


def test_a_function_of_the_python_package(
    monkeypatch: pytest.MonkeyPatch, library: Path, device: torch.device
) -> None:
    monkeypatch.setenv("TVM_FFI_DISABLE_TORCH_C_DLPACK", "1")
    import tvm_ffi as package

    x = torch.randn(5)
    module = package.load_module(str(library))
    torch_xla_ext.register_kernel("TvmModule", module.twice, abi="tvm-ffi", platform="Host")
    (out,) = custom_call("TvmModule", [x.to(device)], [x])
    assert torch.equal(out.cpu(), 2 * x)

    # A function of Python, which needs the GIL when it is called.
    def negated(x: object, out: object) -> None:
        torch.from_dlpack(out).copy_(-torch.from_dlpack(x))

    function = package.convert(negated)
    torch_xla_ext.register_kernel("TvmPython", function, abi="tvm-ffi", platform="Host")
    (out,) = custom_call("TvmPython", [x.to(device)], [x])
    assert torch.equal(out.cpu(), -x)

    def failing(x: object, out: object) -> None:
        raise KeyError("no luck")

    function = package.convert(failing)
    torch_xla_ext.register_kernel("TvmFailing", function, abi="tvm-ffi", platform="Host")
    with pytest.raises(RuntimeError, match=r"TvmFailing: KeyError: .*no luck"):
        custom_call("TvmFailing", [x.to(device)], [x])[0].cpu()
