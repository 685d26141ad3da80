"""Wrong calls of torch_xla_ext.custom_call: what each error says."""

from collections.abc import Callable

import pytest
import torch
from testing.xla import register_host_kernels

from kernel_api import kernels
from torch_xla_ext import custom_call


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    kernels.register()
    register_host_kernels("TestEcho")


X = ((3,), torch.float32)
WRONG: dict[str, tuple[Callable[[torch.Tensor], object], type[Exception], str]] = {
    "unknown target": (
        lambda x: custom_call("TestIncremnt", [x], [x]),
        ValueError,
        "'TestIncremnt': no such target is registered for 'Host'; did you mean "
        r"'TestIncrement'\?; register it with torch_xla_ext.register_custom_call\(",
    ),
    "other api": (
        lambda x: custom_call("TestEcho", [x], [x], api="ffi"),
        ValueError,
        "for 'Host' and api='ffi'; it is for 'Host' and api='untyped'; register it",
    ),
    "api": (
        lambda x: custom_call("TestEcho", [x], [x], api="typed"),
        ValueError,
        "api must be 'untyped', 'ffi' or None, but is 'typed'",
    ),
    "api that is a list": (
        lambda x: custom_call("TestEcho", [x], [x], api=[]),
        ValueError,
        r"'TestEcho': api must be 'untyped', 'ffi' or None, but is \[\]",
    ),
    "side effect": (
        lambda x: custom_call("TestEcho", [x], [x], has_side_effect="x"),
        TypeError,
        "'TestEcho': has_side_effect must be a bool, but is of type str",
    ),
    "order": (
        lambda x: custom_call([x], "TestEcho", [x]),
        TypeError,
        "target must be a str, but is of type list; the order is",
    ),
    "inputs": (
        lambda x: custom_call("TestEcho", x, [x]),
        TypeError,
        "inputs must be a list or a tuple, but is of type Tensor",
    ),
    "input": (
        lambda x: custom_call("TestEcho", [x, 3], [x]),
        TypeError,
        r"inputs\[1\] must be an XLA tensor, but is of type int",
    ),
    "input on the CPU": (
        lambda x: custom_call("TestEcho", [x.cpu()], [x]),
        ValueError,
        r"inputs\[0\] must be an XLA tensor, but is a torch.float32 tensor on cpu",
    ),
    "no input": (lambda x: custom_call("TestEcho", [], [x]), ValueError, "inputs is empty"),
    "no output": (lambda x: custom_call("TestEcho", [x], []), ValueError, "is empty"),
    "output": (
        lambda x: custom_call("TestEcho", [x], [(3,)]),
        TypeError,
        r"outputs\[0\]: expected a tensor, an object with shape and dtype, or a pair",
    ),
    "float in a shape": (
        lambda x: custom_call("TestIncrement", [x], [((3.0,), torch.float32)]),
        TypeError,
        r"outputs\[0\]: expected a shape of int but got \(3.0,\)",
    ),
    "text as a shape": (
        lambda x: custom_call("TestIncrement", [x], [("abc", torch.float32)]),
        TypeError,
        r"outputs\[0\]: expected a shape of int but got \('a', 'b', 'c'\)",
    ),
    "negative size": (
        lambda x: custom_call("TestIncrement", [x], [((-3,), torch.float32)]),
        ValueError,
        r"outputs\[0\]: expected dimensions of 0 to 2\^63 - 1 but got \[-3\]",
    ),
    "size without end": (
        lambda x: custom_call("TestIncrement", [x], [((2**63,), torch.float32)]),
        ValueError,
        r"outputs\[0\]: expected dimensions of 0 to 2\^63 - 1 but got \[9223372036854775808\]",
    ),
    "rank": (
        lambda x: custom_call("TestIncrement", [x], [((1,) * 65, torch.float32)]),
        ValueError,
        r"outputs\[0\]: expected a rank of at most 64 but got 65",
    ),
    "bytes": (
        lambda x: custom_call("TestEcho", [x], [((2**62,), torch.float32)]),
        ValueError,
        r"output_shapes\[0\] is out of range: .* has 2\^63 bytes or more",
    ),
    "no text": (
        lambda x: custom_call("\ud800", [x], [x]),
        ValueError,
        "no such target is registered",
    ),
    "payload that is no text": (
        lambda x: custom_call("TestEcho", [x], [x], payload="\ud800"),
        ValueError,
        "payload is not valid text: it has half of a surrogate pair",
    ),
    "large payload": (
        lambda x: custom_call("TestEcho", [x], [x], payload=bytes(2**30 + 1)),
        ValueError,
        r"payload has 1073741825 bytes, but may have 2\^30",
    ),
    "None": (
        lambda x: custom_call("TestEcho", [x, None], [x]),
        TypeError,
        r"inputs\[1\] must be an XLA tensor, but is None: only kernels made with",
    ),
    "missing operand": (
        lambda x: custom_call("TestIncrement", [None], [x]),
        TypeError,
        r"TestIncrement: operand 0 \(x\): is missing",
    ),
    "dtype": (
        lambda x: custom_call("TestIncrement", [x.int()], [x]),
        TypeError,
        r"TestIncrement: operand 0 \(x\): expected dtype F32 but got S32",
    ),
    "shape": (
        lambda x: custom_call("TestIncrement", [x], [((4,), torch.float32)]),
        ValueError,
        r"result 0 \(out\): expected dimensions \[3\] but got \[4\]; shape is that of operand 0",
    ),
    "count": (
        lambda x: custom_call("TestIncrement", [x, x], [x], api="ffi"),
        TypeError,
        "TestIncrement: expected 1 operand and 1 result but got 2 operands and 1 result; the",
    ),
    "parameter": (
        lambda x: custom_call("TestIncrement", [x], [x], attributes={"n": 1}, api="ffi"),
        TypeError,
        "TestIncrement: unknown parameter 'n'; the kernel has none",
    ),
    "payload of an FFI call": (
        lambda x: custom_call("TestIncrement", [x], [x], payload=b"", api="ffi"),
        TypeError,
        "an FFI call has no payload; pass attributes, or api='untyped'",
    ),
    "both": (
        lambda x: custom_call("TestEcho", [x], [x], payload=b"", attributes={}),
        TypeError,
        "pass attributes or a payload, not both",
    ),
    "attributes of any untyped target": (
        lambda x: custom_call("TestEcho", [x], [x], attributes={"a": 1}),
        TypeError,
        "takes attributes only if it is a kernel that uses",
    ),
    "JSON": (
        lambda x: custom_call("TestEcho", [x], [x], payload=b"{}"),
        ValueError,
        "XLA:GPU would parse it as its own JSON",
    ),
    "aliases": (
        lambda x: custom_call("TestIncrement", [x], [x], aliases=[0]),
        TypeError,
        r"aliases must be a dict \{output: input\}, but is of type list",
    ),
    "alias of no output": (
        lambda x: custom_call("TestIncrement", [x], [x], aliases={1: 0}),
        ValueError,
        "aliases names output 1, but the call has 1 of them, from 0",
    ),
    "alias of no input": (
        lambda x: custom_call("TestIncrement", [x], [x], aliases={0: -1}),
        ValueError,
        "aliases names input -1, but the call has 1 of them, from 0",
    ),
    "alias by name": (
        lambda x: custom_call("TestIncrement", [x], [x], aliases={"out": 0}),
        TypeError,
        "aliases must be a dict of int, but the output is of type str",
    ),
    "alias of another shape": (
        lambda x: custom_call("TestEcho", [x], [((16,), torch.int64)], aliases={0: 0}),
        ValueError,
        r"gives output 0, torch.int64\[16\], the buffer of input 0, torch.float32\[3\]: they must",
    ),
    "alias of one input twice": (
        lambda x: custom_call("TestEcho", [x], [X, X], aliases={0: 0, 1: 0}),
        ValueError,
        "aliases gives two outputs the buffer of input 0",
    ),
}


@pytest.mark.parametrize(("call", "error", "text"), WRONG.values(), ids=WRONG)
def test_wrong_call(
    device: torch.device,
    call: Callable[[torch.Tensor], object],
    error: type[Exception],
    text: str,
) -> None:
    with pytest.raises(error, match=text):
        call(torch.zeros(3).to(device))
