"""torch_xla_ext.debug: the calls in a graph, and references that replace kernels."""

import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from testing.scripts import run_script
from testing.xla import register_host_kernels

from kernel_api import kernels
from torch_xla_ext import ArrayType, custom_call, debug
from xla_kernels.signature.untyped_payload import UntypedPayload


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    kernels.register()
    register_host_kernels("TestEcho")


def increment(device: torch.device, **arguments: object) -> torch.Tensor:
    x = torch.zeros(2, 3).to(device)
    return custom_call("TestIncrement", [x], [x], **arguments)[0]


def test_hlo_and_stablehlo(device: torch.device) -> None:
    y = increment(device)
    assert 'custom_call_target="TestIncrement"' in debug.hlo(y)
    assert "stablehlo.custom_call @TestIncrement" in debug.stablehlo([y])


def test_text_shows_as_it_is() -> None:
    text = debug.Text("a\n<b>")
    assert repr(text) == "a\n<b>"
    assert text._repr_html_() == "<pre>a\n&lt;b&gt;</pre>"


def test_custom_call_of_a_kernel(device: torch.device) -> None:
    (call,) = debug.custom_calls(
        increment(device, api="untyped", aliases={0: 0}, has_side_effect=True)
    )
    array = ArrayType((2, 3), torch.float32)
    assert call == debug.CustomCall(
        name=call.name,
        target="TestIncrement",
        operands=("f32[2,3]{1,0}",),
        results=("f32[2,3]{1,0}",),
        api_version=3,
        payload=UntypedPayload((array,), (array,), {}),
        aliases={0: 0},
        has_side_effect=True,
    )


def test_payload_of_a_kernel_is_decoded(device: torch.device) -> None:
    table, index = torch.zeros(3, 2).to(device), torch.zeros(3, dtype=torch.int32).to(device)
    results = custom_call(
        "TestGather",
        [table, index, None, None],
        [table, ((4,), torch.uint8)],
        attributes=kernels.PARAMETERS,
        api="untyped",
    )
    (call,) = debug.custom_calls(results)
    assert call.payload.parameters == kernels.PARAMETERS
    assert call.payload.operands[2:] == (None, None)
    assert call.results == ("f32[3,2]{1,0}", "u8[4]{0}")
    assert "params    window=7, offset=1, factor=0.5, bias=1.5, negate=False" in str(call)


def test_typed_call_shows_its_attributes(device: torch.device) -> None:
    (call,) = debug.custom_calls(increment(device))
    assert (call.api_version, call.payload) == (4, "{}")


@pytest.mark.parametrize("payload", [b"", b'\x01"\\\0\n\t\xff{}', b"text", b"\x01" * 50], ids=repr)
def test_payload_of_another_target(device: torch.device, payload: bytes) -> None:
    x = torch.zeros(1).to(device)
    (call,) = debug.custom_calls(
        custom_call("TestEcho", [x], [((16,), torch.int64)], payload=payload)
    )
    assert call.payload == payload


def test_several_calls_print(device: torch.device) -> None:
    x = torch.zeros(1).to(device)
    (y,) = custom_call("TestIncrement", [x], [x])
    (z,) = custom_call("TestIncrement", [y], [y])
    calls = debug.custom_calls(z)
    assert len(calls) == 2
    assert repr(calls).count("TestIncrement (API version 4)\n  operands  f32[1]{0}") == 2
    assert calls._repr_html_().startswith("<pre>")
    assert repr(debug.custom_calls(x + 1)) == "no custom calls"


def test_reference_replaces_the_kernel(device: torch.device) -> None:
    debug.register_reference("TestIncrement", lambda inputs, outputs, attributes: [inputs[0] + 10])
    with debug.use_reference("TestIncrement"):
        assert increment(device).cpu()[0, 0] == 10
    assert increment(device).cpu()[0, 0] == 1


def test_blocks_that_overlap(device: torch.device) -> None:
    debug.register_reference("TestIncrement", lambda inputs, outputs, attributes: [inputs[0] + 10])
    first, second = (debug.use_reference("TestIncrement") for _ in range(2))
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert increment(device).cpu()[0, 0] == 10
    second.__exit__(None, None, None)
    assert increment(device).cpu()[0, 0] == 1


def test_a_reference_that_gives_something_else(device: torch.device) -> None:
    debug.register_reference("TestIncrement", lambda inputs, outputs, attributes: [inputs[0].int()])
    with (
        debug.use_reference("TestIncrement"),
        pytest.raises(
            ValueError,
            match=r"'TestIncrement': its reference .* returns S32\[2, 3\] instead of F32\[2, 3\]",
        ),
    ):
        increment(device)


def test_a_reference_sees_only_right_calls(device: torch.device) -> None:
    debug.register_reference("TestIncrement", lambda inputs, outputs, attributes: [inputs[0] + 10])
    x = torch.zeros(3).to(device)
    wrong = {
        r"operand 0 \(x\): expected dtype F32 but got S32": lambda: custom_call(
            "TestIncrement", [x.int()], [x]
        ),
        "unknown parameter 'n'": lambda: custom_call(
            "TestIncrement", [x], [x], attributes={"n": 1}
        ),
        "names output 1, but": lambda: custom_call("TestIncrement", [x], [x], aliases={1: 0}),
        "must be an XLA tensor, but is a torch.float32 tensor on cpu": lambda: custom_call(
            "TestIncrement", [x.cpu()], [x]
        ),
        "no such target is registered": lambda: custom_call("TestIncremnt", [x], [x]),
    }
    for text, call in wrong.items():
        with pytest.raises((TypeError, ValueError), match=text):
            call()
        with debug.use_reference("TestIncrement"), pytest.raises((TypeError, ValueError)) as error:
            call()
        assert error.match(text)


def test_another_thread_calls_the_kernel(device: torch.device) -> None:
    debug.register_reference("TestIncrement", lambda inputs, outputs, attributes: [inputs[0] + 10])
    with debug.use_reference("TestIncrement"), ThreadPoolExecutor(1) as thread:
        assert thread.submit(lambda: increment(device).cpu()[0, 0]).result() == 1
        assert increment(device).cpu()[0, 0] == 10


def test_no_reference(device: torch.device) -> None:
    debug.register_reference("TestIncrement", lambda inputs, outputs, attributes: [inputs[0] + 10])
    text = r"'TestIncremnt': there is no reference .*; did you mean 'TestIncrement'\?"
    with pytest.raises(ValueError, match=text), debug.use_reference("TestIncremnt"):
        pytest.fail("it was entered")
    # The kernel still runs.
    assert increment(device).cpu()[0, 0] == 1


CODE = """
import torch, torch_xla_ext as ext
x = torch.ones(2).to('xla')
print(ext.custom_call('XlaGpuSimpleAdd', [x, x], [x])[0].cpu().tolist())
"""


def run(**environment: str) -> subprocess.CompletedProcess[str]:
    result = run_script(CODE, **environment)
    assert result.stdout == "[2.0, 2.0]\n", result.stderr
    return result


def test_launches_are_logged(device: torch.device, capfd: pytest.CaptureFixture[str]) -> None:
    line = "[torch_xla_ext] XlaGpuSimpleAdd Host ffi (a: F32[2], b: F32[2]) -> (out: F32[2]) "
    assert line in run(TORCH_XLA_EXT_LOG_LAUNCHES="1").stderr
    assert line not in run(TORCH_XLA_EXT_LOG_LAUNCHES="0").stderr
    # The variable is not set in this process.
    x = torch.ones(2).to(device)
    assert custom_call("XlaGpuSimpleAdd", [x, x], [x])[0].cpu().tolist() == [2, 2]
    assert "[torch_xla_ext]" not in capfd.readouterr().err


@pytest.mark.parametrize("names", ["other,XlaGpuSimpleAdd", "*"])
def test_references_by_the_environment(names: str) -> None:
    log = run(TORCH_XLA_EXT_LOG_LAUNCHES="1", TORCH_XLA_EXT_USE_REFERENCE=names).stderr
    assert "[torch_xla_ext]" not in log
    assert ("no effect for 'other'" in log) == ("other" in names)


def test_misspelt_name_in_the_environment() -> None:
    log = run(TORCH_XLA_EXT_USE_REFERENCE="XlaGpuSimpleAd").stderr
    assert "no effect for 'XlaGpuSimpleAd': " in log
    assert "did you mean 'XlaGpuSimpleAdd'?" in log
