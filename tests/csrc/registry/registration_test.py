"""_xla_register_custom_call_target also registers for the CPU, and its errors are exceptions."""

import pytest
import torch
from testing.xla import XLAC, host_kernel

register = XLAC._xla_register_custom_call_target


def test_a_target_is_called_by_the_name_it_is_registered_under(device: torch.device) -> None:
    register("registration_test.echo", host_kernel("TestEcho"), "Host")
    x = torch.zeros(1).to(device)
    result = XLAC._xla_gpu_custom_call(
        [x], b"abc", [[16]], [torch.int64], target="registration_test.echo"
    )[0]
    assert result.cpu().tolist()[:4] == [3, 97, 98, 99]


def test_registration_after_tracing_before_compiling(device: torch.device) -> None:
    x = torch.zeros(1).to(device)
    result = XLAC._xla_gpu_custom_call([x], b"abc", [[16]], [torch.int64], target="late")[0]
    register("late", host_kernel("TestEcho"), "Host")
    assert result.cpu().tolist()[0] == 3


def test_registered_targets_are_listed() -> None:
    register("listed", host_kernel("TestEcho"), "Host")
    assert "listed" in XLAC._xla_registered_custom_call_targets("Host")
    assert "listed" not in XLAC._xla_registered_custom_call_targets("CUDA")


def call(name: str, x: torch.Tensor, payload: bytes = b"\x03" + bytes(7)) -> torch.Tensor:
    dtype = torch.float32 if x.is_floating_point() else torch.int64
    return XLAC._xla_gpu_custom_call([x], payload, [[3]], [dtype], target=name)[0]


def test_another_function_under_the_same_name_takes_effect(device: torch.device) -> None:
    def current() -> str:
        return XLAC._xla_current_custom_call_target("edited", "Host", "untyped")

    x = torch.tensor([5.0, 6, 7]).to(device)
    register("edited", host_kernel("TestCopy"), "Host")
    copied = call("edited", x)  # traced before, run after
    register("edited", host_kernel("TestFail"), "Host")
    assert current() == "edited#2"
    with pytest.raises(RuntimeError, match="TestFail"):
        call("edited", x).cpu()
    assert copied.tolist() == [5, 6, 7]
    register("edited", host_kernel("TestCopy"), "Host")
    assert current() == "edited"
    assert call("edited", x).tolist() == [5, 6, 7]
    assert XLAC._xla_registered_custom_call_targets("Host").count("edited") == 1
    assert "TestCopy" in XLAC._xla_custom_call_function("edited", "Host", "untyped")
    with pytest.raises(RuntimeError, match="TestFail"):
        call("edited#2", x).cpu()
    assert call("edited#1", x).tolist() == [5, 6, 7]


@torch.library.custom_op("registration_test::kept", mutates_args=())
def kept(x: torch.Tensor) -> torch.Tensor:
    return call("kept", x)


kept.register_fake(torch.empty_like)


def test_a_program_that_was_compiled_before_keeps_its_function(device: torch.device) -> None:
    x = torch.tensor([5.0, 6, 7]).to(device)
    register("kept", host_kernel("TestCopy"), "Host")
    compiled = torch.compile(lambda x: kept(x) + 1, backend="openxla", fullgraph=True)
    assert compiled(x).tolist() == [6, 7, 8]
    register("kept", host_kernel("TestFail"), "Host")
    assert compiled(x).tolist() == [6, 7, 8]
    torch.compiler.reset()
    with pytest.raises(RuntimeError, match="TestFail"):
        compiled(x).cpu()


def test_a_built_in_kernel_is_replaced_with_one_log_line(
    device: torch.device, capfd: pytest.CaptureFixture
) -> None:
    x = torch.tensor([5.0, 6, 7]).to(device)
    register("XlaGpuKvPagesUpdate", host_kernel("TestCopy"), "Host")
    (line,) = capfd.readouterr().err.splitlines()
    assert 'target "XlaGpuKvPagesUpdate" for "Host": calls run' in line
    assert "TestCopy" in line
    assert call("XlaGpuKvPagesUpdate", x).tolist() == [5, 6, 7]


def test_a_name_with_a_number_sign_is_refused() -> None:
    with pytest.raises(ValueError, match="target \"a#2\": a name must not contain '#'"):
        register("a#2", host_kernel("TestEcho"), "Host")


@pytest.mark.parametrize("platform", ["CPU", "cuda", "", "ROCM"])
def test_unknown_platform(platform: str) -> None:
    text = f'unknown platform "{platform}"; known are "CUDA", "Host"'
    with pytest.raises(ValueError, match=text):
        register("x", host_kernel("TestEcho"), platform)
    with pytest.raises(ValueError, match=text):
        XLAC._xla_registered_custom_call_targets(platform)


def test_empty_name() -> None:
    with pytest.raises(ValueError, match="the name of a custom-call target is empty"):
        register("", host_kernel("TestEcho"), "Host")


@pytest.mark.parametrize("function", [0, 12345, None, "TestEcho"])
def test_not_a_capsule(function: object) -> None:
    with pytest.raises(TypeError):
        register("x", function, "Host")


def test_wrong_order_of_arguments() -> None:
    with pytest.raises(TypeError):
        register(host_kernel("TestEcho"), "x", "Host")


@pytest.mark.parametrize("name", ["TopK", "SliceToDynamic", "PadToStatic", "LayoutConstraint"])
def test_a_name_of_xlas_compiler_is_refused(device: torch.device, name: str) -> None:
    """XLA would take the call for a built-in operation, and crash the process."""
    x = torch.zeros(4).to(device)
    text = f'"{name}": the name belongs to XLA.*register the kernel under another name'
    with pytest.raises(ValueError, match=text):
        XLAC._xla_gpu_custom_call([x], b"abc", [[4]], [torch.float32], name)
    with pytest.raises(ValueError, match=text):
        XLAC._xla_custom_call([x], name, [[4]], [torch.float32], False, "", 0, {})
    with pytest.raises(ValueError, match=text):
        register(name, host_kernel("TestEcho"), "Host")


@pytest.mark.parametrize("name", ["__xla_cpu_runtime_EigenMatMulF32", "memrefCopy", "sin"])
def test_a_helper_of_xlas_compiled_code_is_refused(device: torch.device, name: str) -> None:
    assert XLAC._xla_has_custom_call_target(name, "Host", "untyped")
    x = torch.zeros(4).to(device)
    with pytest.raises(ValueError, match=f'"{name}": the name belongs to XLA'):
        XLAC._xla_gpu_custom_call([x], b"abc", [[4]], [torch.float32], name)
    with pytest.raises(ValueError, match=f'"{name}": the name belongs to XLA'):
        XLAC._xla_custom_call([x], name, [[4]], [torch.float32], False, "", 1, {})


def test_a_kernel_with_the_name_of_a_helper_is_called(device: torch.device) -> None:
    register("tan", host_kernel("TestCopy"), "Host")
    assert call("tan", torch.tensor([5.0, 6, 7]).to(device)).tolist() == [5, 6, 7]


@pytest.mark.parametrize("text", ["{}", b" {\n } "])
def test_a_backend_config_that_xla_replaces_is_refused(
    device: torch.device, text: str | bytes
) -> None:
    x = torch.zeros(1).to(device)
    arguments = ([x], "TestEcho", [[16]], [torch.int64], False, text)
    for version in (0, 1, 2, 3):
        with pytest.raises(ValueError, match=r"backend_config is .*would receive an empty payload"):
            XLAC._xla_custom_call(*arguments, version, {})
    XLAC._xla_custom_call(*arguments, 4, {})  # no attributes


@pytest.mark.parametrize("text", ["", "{a}", '{"a": 1}', "{}x", "[]", "null"])
def test_another_backend_config_arrives(device: torch.device, text: str) -> None:
    register("backend_config.echo", host_kernel("TestEcho"), "Host")
    x = torch.zeros(1).to(device)
    types = [[16], [1]], [torch.int64] * 2  # the kernel expects a tuple
    results = XLAC._xla_custom_call([x], "backend_config.echo", *types, False, text, 3, {})
    assert results[0].tolist()[: len(text) + 1] == [len(text), *text.encode()]
