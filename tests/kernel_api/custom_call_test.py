"""torch_xla_ext.custom_call: both APIs, and every error."""

import os
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch_xla
from testing.xla import (
    PLATFORM,
    check_calls,
    custom_call_lines,
    graph_hash,
    hlo,
    register_host_kernels,
)
from torch.fx.experimental.proxy_tensor import make_fx

from kernel_api import kernels
from torch_xla_ext import ArrayType, custom_call, debug, define_operator, register_custom_call
from torch_xla_ext.custom_call import call as call_module
from torch_xla_ext.registry import registration
from xla_kernels import Traits
from xla_kernels.signature import untyped_payload

APIS = ["untyped", "ffi"]


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    kernels.register()
    register_host_kernels("TestEcho", "TestFail")


def gather(device: torch.device, api: str, *optional: object, **change: object) -> tuple:
    """Calls TestGather with an operand that is not contiguous; returns its result and torch's."""
    table, index = torch.randn(4, 6), torch.tensor([0, 2, 4], dtype=torch.int32)
    scale, pair = optional or (None, None)
    results = custom_call(
        "TestGather",
        [table.to(device).t(), index.to(device), scale, pair],
        [ArrayType((3, 4), torch.float32), ((16,), torch.uint8)],
        attributes=kernels.PARAMETERS | change,
        api=api,
    )
    return results, kernels.gathered(table.t(), index)


@pytest.mark.parametrize("api", APIS)
def test_result(device: torch.device, api: str) -> None:
    (out, workspace), expected = gather(device, api)
    torch.testing.assert_close(out.cpu(), expected)
    assert workspace.cpu().tolist() == [7] * 16


@pytest.mark.parametrize("api", APIS)
def test_parameters_arrive(device: torch.device, api: str) -> None:
    (out, workspace), expected = gather(device, api, negate=True, window=9)
    torch.testing.assert_close(out.cpu(), -expected)
    assert workspace.cpu()[0] == 9


def shown_options(api: str, **change: object) -> str:
    (text,) = custom_call(
        "TestOptions",
        [operand(3).double()],
        [((200,), torch.uint8)],
        attributes=kernels.OPTIONS | change,
        api=api,
    )
    return bytes(text.cpu().tolist()).rstrip(b"\0").decode()


@pytest.mark.parametrize("api", APIS)
def test_text_arrays_and_dicts_arrive(api: str) -> None:
    assert shown_options(api) == kernels.described(kernels.OPTIONS)
    empty = {"mode": "", "shifts": [], "weights": [], "halves": [], "steps": [1, 2, -3]}
    assert shown_options(api, **empty) == kernels.described(kernels.OPTIONS | empty)
    # Each attribute is in the program's hash.
    nested = {"range": {"low": 3, "unit": "m"}}
    assert shown_options(api, **nested) == kernels.described(kernels.OPTIONS | nested)
    with pytest.raises(TypeError, match=r"TestOptions: unknown parameter 'range\.high'; range has"):
        shown_options(api, range={"low": 3, "unit": "m", "high": 4})


def test_an_operator_with_lists() -> None:
    operator = define_operator(
        "custom_call_test::options(Tensor x, str mode, int[] shifts, float[] weights) -> Tensor",
        target="TestOptions",
        attributes=lambda **args: {
            name: value for name, value in kernels.OPTIONS.items() if name not in args
        },
        sizes=lambda **args: {"size": 200},
        replace=True,
    )
    for on in ("cpu", "xla"):
        for shifts in ([1, 2], [1, 3]):
            text = operator(torch.zeros(3, dtype=torch.float64, device=on), "m", shifts, [0.25])
            given = {"mode": "m", "shifts": shifts, "weights": [0.25]}
            shown = bytes(text.cpu().tolist()).rstrip(b"\0").decode()
            assert shown == kernels.described(kernels.OPTIONS | given)


@pytest.mark.parametrize("api", APIS)
def test_optional_operands(device: torch.device, api: str) -> None:
    pair = torch.tensor([3, 4], dtype=torch.uint8).to(device)
    (out, _), expected = gather(device, api, None, pair)
    torch.testing.assert_close(out.cpu(), expected + 7)
    (out, _), expected = gather(device, api, torch.tensor(3.0).to(device), None)
    torch.testing.assert_close(out.cpu(), (expected - 1.5) * 3 + 1.5)


@pytest.mark.parametrize("api", APIS)
def test_calls_that_differ_in_a_parameter_are_two_programs(device: torch.device, api: str) -> None:
    one, other = gather(device, api)[0][0], gather(device, api, factor=0.25)[0][0]
    assert graph_hash(one) != graph_hash(other)


@pytest.mark.parametrize("api", APIS)
def test_the_kernels_own_error(device: torch.device, api: str) -> None:
    text = r"TestGather: operand 1 \(index\): 100 is not below 6"
    with pytest.raises(RuntimeError, match=text):
        gather(device, api, offset=100)[0][0].cpu()
    assert gather(device, api)[0][0].cpu() is not None


@pytest.mark.parametrize("api", APIS)
def test_an_exception_in_a_kernel(device: torch.device, api: str) -> None:
    x = torch.zeros(3).to(device)
    with pytest.raises(RuntimeError, match="TestThrow: the launch function threw: no more of it"):
        custom_call("TestThrow", [x], [x], api=api)[0].cpu()


@pytest.mark.parametrize("api", APIS)
def test_alias(device: torch.device, api: str) -> None:
    x = torch.arange(4.0).to(device)
    (y,) = custom_call("TestIncrement", [x], [x], aliases={0: 0}, api=api)
    assert "output_to_operand_aliasing={{0}: (0, {})}" in hlo(y)
    assert y.cpu().tolist() == [1, 2, 3, 4]
    assert x.cpu().tolist() == [0, 1, 2, 3]  # still in use: XLA copied it


def test_alias_is_in_the_hash(device: torch.device) -> None:
    x = torch.arange(4.0).to(device)
    (aliased,) = custom_call("TestIncrement", [x], [x], aliases={0: 0})
    assert graph_hash(aliased) != graph_hash(custom_call("TestIncrement", [x], [x])[0])


def test_raw_payload(device: torch.device) -> None:
    x = torch.zeros(1).to(device)
    (y,) = custom_call("TestEcho", [x], [((16,), torch.int64)], payload=b"\x01bc")
    assert y.cpu().tolist()[:4] == [3, 1, 98, 99]
    (y,) = custom_call("TestEcho", [x], [((16,), torch.int64)])
    assert y.cpu().tolist()[0] == 0


def test_a_target_that_xla_runs_itself(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_xla.runtime, "device_type", lambda: "CUDA")
    x = torch.ones(2, device=device)
    with pytest.raises(ValueError, match="no such target is registered for 'CUDA'"):
        custom_call("xla$own", [x], [x], payload=b"config")
    config, (row, column) = b'{"own": 1}', ((2, 3), (3, 2))
    traits = Traits(built_in=True, result_layouts={0: (1, 0)}, num_hidden_results=1)
    outputs = [(row, torch.float32), (column, torch.float32), ([0], torch.uint8)]
    results = custom_call("xla$own", [x], outputs, payload=config, traits=traits)
    assert [result.shape for result in results] == [row, column]
    (line,) = custom_call_lines(*results)
    assert "(f32[2,3]{0,1}, f32[3,2]{1,0}, u8[0]{0}) custom-call" in line
    assert 'custom_call_target="xla$own"' in line


def test_the_reference_of_a_target_gets_its_payload(device: torch.device) -> None:
    x = torch.ones(2, device=device)

    def reference(inputs: object, outputs: object, attributes: dict[str, object]) -> list:
        return [inputs[0] + int(attributes["payload"])]

    debug.register_reference("TestEcho", reference)
    with debug.use_reference("TestEcho"):
        (y,) = custom_call("TestEcho", [x], [x], payload=b"41")
    assert y.tolist() == [42, 42]


def test_an_untyped_payload_of_other_shapes_is_refused(device: torch.device) -> None:
    x, larger = torch.zeros(3).to(device), ArrayType((6,), torch.float32)
    payload = untyped_payload.pack(registration.schema("TestIncrement"), [larger, larger], {})
    text = r"TestIncrement: operand 0 \(x\): the payload says F32\[6\], but the call has F32\[3\]"
    with pytest.raises(ValueError, match=text):
        custom_call("TestIncrement", [x], [x], payload=payload)
    right = untyped_payload.pack(registration.schema("TestIncrement"), [ArrayType.of(x)] * 2, {})
    assert custom_call("TestIncrement", [x], [x], payload=right)[0].cpu().tolist() == [1, 1, 1]


@pytest.mark.parametrize("payload", [b"", b"x", b"\1\1\1\1", "text"], ids=repr)
def test_a_payload_that_is_no_untyped_payload_is_refused_by_the_kernel(
    device: torch.device, payload: bytes | str
) -> None:
    x = torch.zeros(3).to(device)
    with pytest.raises(RuntimeError, match="TestIncrement: payload: "):
        custom_call("TestIncrement", [x], [x], payload=payload)[0].cpu()


def test_a_backward_pass_is_an_error_and_not_a_gradient_that_lacks_a_part(
    device: torch.device,
) -> None:
    x = torch.ones(3).to(device).requires_grad_()
    (y,) = custom_call("TestIncrement", [x], [x])
    assert y.detach().cpu().tolist() == [2, 2, 2]
    with pytest.raises(NotImplementedError, match="call 'TestIncrement' has no derivative"):
        (y + x).sum().backward()
    with torch.no_grad():
        assert not custom_call("TestIncrement", [x], [x])[0].requires_grad
    (number,) = custom_call("TestEcho", [x], [((16,), torch.int64)], payload=b"\1")
    assert not number.requires_grad


def increment(x: torch.Tensor) -> torch.Tensor:
    return custom_call("TestIncrement", [x], [x])[0]


def tangent_of(x: torch.Tensor) -> torch.Tensor:
    with torch.autograd.forward_ad.dual_level():
        return increment(torch.autograd.forward_ad.make_dual(x, torch.ones_like(x)))


TRANSFORMS: dict[str, tuple[Callable[[torch.Tensor], object], str]] = {
    "vmap": (torch.vmap(increment), r"no batching rule, but torch.vmap transforms inputs\[0\]"),
    "grad": (
        torch.func.grad(lambda x: increment(x).sum()),
        r"no derivative, but torch.func transforms inputs\[0\]",
    ),
    "jvp": (
        lambda x: torch.func.jvp(increment, (x,), (x,)),
        r"no derivative, but torch.func transforms inputs\[0\]",
    ),
    "forward mode": (tangent_of, r"no forward-mode derivative, but inputs\[0\] has a tangent"),
    "make_fx": (make_fx(increment), "cannot be traced by make_fx"),
    "vmap of grad": (
        torch.vmap(torch.func.grad(lambda x: increment(x).sum())),
        "no derivative, but torch.func",
    ),
}


@pytest.mark.parametrize(("call", "text"), TRANSFORMS.values(), ids=TRANSFORMS)
def test_a_transform_is_refused_and_not_lost(
    device: torch.device, call: Callable[[torch.Tensor], object], text: str
) -> None:
    x = torch.zeros(3).to(device)
    with pytest.raises(NotImplementedError, match=f"'TestIncrement' .*{text}.*define_operator"):
        call(x)
    # A call inside a transform is allowed if its tensors are not transformed.
    with torch.autograd.forward_ad.dual_level():
        assert increment(x).cpu().tolist() == [1, 1, 1]
    results = torch.vmap(lambda row: row + increment(x))(torch.zeros(2, 3).to(device))
    assert results.cpu().tolist() == [[1, 1, 1]] * 2


# Indices for which torch_xla's type, s32 or u32, differs from the tensor's dtype.
OTHER_TYPES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "cummax": lambda x: torch.cummax(x, 1)[1],
    "max_pool": lambda x: torch.nn.functional.max_pool2d(x[None], 2, return_indices=True)[1],
}


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("name", OTHER_TYPES)
def test_operand_that_the_device_holds_in_another_type(
    device: torch.device, name: str, api: str
) -> None:
    x = torch.randn(4, 6)
    index = OTHER_TYPES[name](x.to(device))
    assert index.dtype == torch.int64
    (y,) = custom_call("XlaGpuSimpleAdd", [index, index], [index], api=api)
    assert y.cpu().tolist() == (2 * OTHER_TYPES[name](x)).tolist()


def test_mask_that_the_device_holds_as_float(device: torch.device) -> None:
    _, mask = torch.native_dropout(torch.randn(64).to(device), 0.5, True)
    assert mask.dtype == torch.bool
    (line,) = custom_call_lines(*custom_call("TestEcho", [mask], [((16,), torch.int64)]))
    assert "custom-call(pred[64]{0} %" in line


def test_names_that_are_not_ascii(device: torch.device) -> None:
    register_custom_call(
        "Größe 大", os.environ["HOST_KERNELS"], symbol="TestEcho", platform=PLATFORM
    )
    (y,) = custom_call("Größe 大", [torch.zeros(1).to(device)], [((16,), torch.int64)])
    assert y.cpu().tolist()[0] == 0


def test_meta_tensor_as_output(device: torch.device) -> None:
    x = torch.zeros(2, 3).to(device)
    (y,) = custom_call("TestIncrement", [x], [torch.empty(2, 3, device="meta")])
    assert y.cpu().tolist() == [[1] * 3] * 2


def operand(*shape: int) -> torch.Tensor:
    return torch.zeros(shape).to("xla")


def echo(**arguments: object) -> list[torch.Tensor]:
    return custom_call("TestEcho", [operand(3)], [((16,), torch.int64)], **arguments)


CASES: dict[str, Callable[[], list[torch.Tensor]]] = {
    "untyped": lambda: custom_call(
        "TestIncrement", [operand(2, 3).t()], [((3, 2), torch.float32)], api="untyped"
    ),
    "ffi": lambda: custom_call("TestIncrement", [operand(2, 3).t()], [((3, 2), torch.float32)]),
    "ffi_parameters": lambda: gather(torch.device("xla"), "ffi")[0],
    "alias": lambda: custom_call("TestIncrement", [operand(3)], [operand(3)], aliases={0: 0}),
    "side_effect": lambda: echo(payload=b"\x01", has_side_effect=True),
}


def test_hlo(device: torch.device) -> None:
    check_calls(Path(__file__).with_name("hlo_golden.txt"), CASES)


def test_a_side_effect_without_an_alias_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_module, "_warned", set())
    x, y = operand(3), operand(5)
    with pytest.warns(UserWarning, match=r"'TestEcho': has_side_effect keeps .* aliases=\{0: 1\}"):
        custom_call("TestEcho", [x, y, y], [y], payload=b"\x01", has_side_effect=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        echo(has_side_effect=True)  # only once
        call_module._warned.clear()
        custom_call("TestEcho", [x], [x], payload=b"\x01", has_side_effect=True, aliases={})
        # The signature of a kernel declares the operands that it writes to.
        custom_call("TestIncrement", [x], [x], has_side_effect=True)
    with pytest.warns(UserWarning, match="pass another output, and aliases=.its number: the input"):
        custom_call("TestEcho", [x], [y], payload=b"\x01", has_side_effect=True)


def test_alias_skips_absent_operands(device: torch.device) -> None:
    table, index = torch.zeros(3, 2).to(device), torch.zeros(3, dtype=torch.int32).to(device)
    pair = torch.zeros(2, dtype=torch.uint8).to(device)
    results = custom_call(
        "TestGather",
        [table, index, None, pair],
        [table, pair],
        attributes=kernels.PARAMETERS,
        aliases={1: 3},
    )
    assert "output_to_operand_aliasing={{1}: (2, {})}" in hlo(*results)
    with pytest.raises(ValueError, match="aliases names input 2, which is None"):
        custom_call(
            "TestGather",
            [table, index, None, pair],
            [table, pair],
            attributes=kernels.PARAMETERS,
            aliases={1: 2},
        )


def raw_typed(device: torch.device, text: str) -> torch.Tensor:
    """An FFI call that Python has not checked."""
    table, index = torch.zeros(3, 2).to(device), torch.zeros(3, dtype=torch.int32).to(device)
    return torch_xla._XLAC._xla_gpu_custom_call(
        [table, index],
        text,
        [[3, 2], [4]],
        [torch.float32, torch.uint8],
        "TestGather",
        api_version=4,
    )[0]


ATTRIBUTES = (
    "window = 1 : i64, offset = 0 : i32, factor = 1.0 : f64, bias = 0.0 : f32, negate = false"
)


def ffi_call(parameters: str, absent: int) -> str:
    return f"{{{parameters}, absent_operands = {absent} : i64}}"


RAW: dict[str, tuple[str, str]] = {
    "missing": ("{absent_operands = 12 : i64}", "attribute window: i64 is missing"),
    "type": (
        ffi_call(ATTRIBUTES.replace("1 : i64", "1 : i32"), 12),
        "attribute window: expected i64 but got i32",
    ),
    "unknown": (ffi_call(ATTRIBUTES + ", widow = 1 : i64", 12), "but got 1 more attributes"),
    "limits": (
        ffi_call(ATTRIBUTES.replace("1 : i64", "0 : i64"), 12),
        "parameter window: expected 1 to 4096 but got 0",
    ),
    "not optional": (
        ffi_call(ATTRIBUTES, 1),
        r"attribute absent_operands: operand 0 \(table\) is not optional",
    ),
    "no such operand": (ffi_call(ATTRIBUTES, 16), "there are no such operands"),
    "absent operands not said": (ffi_call(ATTRIBUTES, 0), "expected 4 operands but got 2"),
}


@pytest.mark.parametrize(("text", "error"), RAW.values(), ids=RAW)
def test_typed_call_that_python_did_not_check(device: torch.device, text: str, error: str) -> None:
    with pytest.raises(RuntimeError, match="TestGather: .*" + error):
        raw_typed(device, text).cpu()


def test_typed_call_of_wrong_operands_is_refused_by_the_kernel(device: torch.device) -> None:
    x = torch.zeros(3).to(device)
    with pytest.raises(
        RuntimeError, match=r"XlaGpuSimpleAdd: operand 1 \(b\): expected dtype F32 but got S32"
    ):
        torch_xla._XLAC._xla_custom_call(
            [x, x.int()], "XlaGpuSimpleAdd", [[3]], [torch.float32], False, "{}", 4, {}
        )[0].cpu()


def test_calls_are_typed_where_the_target_is(device: torch.device) -> None:
    x = torch.zeros(3).to(device)
    schema = registration.schema("TestIncrement")
    payload = untyped_payload.pack(schema, [ArrayType.of(x)] * 2, {})
    for call, api_version in (
        (custom_call("TestIncrement", [x], [x]), 4),
        (custom_call("TestIncrement", [x], [x], api="untyped"), 3),
        (custom_call("TestIncrement", [x], [x], payload=payload), 3),
        (custom_call("TestEcho", [x], [((16,), torch.int64)]), 3),
    ):
        assert [c.api_version for c in debug.custom_calls(call)] == [api_version]


def test_a_target_that_is_only_typed(device: torch.device) -> None:
    register_custom_call(
        "only FFI", kernels.LIBRARY, symbol="TestIncrementHostFfi", platform=PLATFORM, api="ffi"
    )
    x = torch.zeros(3).to(device)
    assert custom_call("only FFI", [x], [x])[0].tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match="api='untyped'; it is for 'Host' and api='ffi'"):
        custom_call("only FFI", [x], [x], payload=b"\1")


def test_numpy_attributes(device: torch.device) -> None:
    (out, _), expected = gather(device, "ffi", window=np.int64(3))
    torch.testing.assert_close(out.cpu(), expected)
