"""Wrong calls of torch_xla_ext.custom_call, and the text of each error."""

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


F32 = torch.float32
X = ((3,), F32)
# By error: wrong arguments for custom_call("TestEcho", inputs=[x], outputs=[x]), and the text.
WRONG: dict[type[Exception], dict[str, Callable[[torch.Tensor], dict[str, object]]]] = {
    ValueError: {
        (
            r"'TestIncremnt': no such target is registered for 'Host'; did you mean "
            r"'TestIncrement'\?; register it with torch_xla_ext.register_custom_call\("
        ): lambda x: dict(target="TestIncremnt"),
        "for 'Host' and api='ffi'; it is for 'Host' and api='untyped'; register it": lambda x: dict(
            api="ffi"
        ),
        "api must be 'untyped', 'ffi' or None, but is 'typed'": lambda x: dict(api="typed"),
        r"'TestEcho': api must be 'untyped', 'ffi' or None, but is \[\]": lambda x: dict(api=[]),
        r"inputs\[0\] must be an XLA tensor, but is a torch.float32 tensor on cpu": lambda x: dict(
            inputs=[x.cpu()]
        ),
        "inputs is empty": lambda x: dict(inputs=[]),
        "is empty": lambda x: dict(outputs=[]),
        r"outputs\[0\]: expected dimensions of 0 to 2\^63 - 1 but got \[-3\]": lambda x: dict(
            target="TestIncrement", outputs=[((-3,), F32)]
        ),
        (
            r"outputs\[0\]: expected dimensions of 0 to 2\^63 - 1 but got "
            r"\[9223372036854775808\]"
        ): lambda x: dict(target="TestIncrement", outputs=[((2**63,), F32)]),
        r"outputs\[0\]: expected a rank of at most 64 but got 65": lambda x: dict(
            target="TestIncrement", outputs=[((1,) * 65, F32)]
        ),
        r"output_shapes\[0\] is out of range: .* has 2\^63 bytes or more": lambda x: dict(
            outputs=[((2**62,), F32)]
        ),
        "no such target is registered": lambda x: dict(target="\ud800"),
        "payload is not valid text: it has half of a surrogate pair": lambda x: dict(
            payload="\ud800"
        ),
        r"payload has 1073741825 bytes, but at most 2\^30 are allowed": lambda x: dict(
            payload=bytes(2**30 + 1)
        ),
        (
            r"result 0 \(out\): expected dimensions \[3\] but got \[4\]; shape is that of "
            r"operand 0"
        ): lambda x: dict(target="TestIncrement", outputs=[((4,), F32)]),
        "XLA:GPU would parse it as its own JSON": lambda x: dict(payload=b"{}"),
        "aliases names output 1, but the call has 1 of them, from 0": lambda x: dict(
            target="TestIncrement", aliases={1: 0}
        ),
        "aliases names input -1, but the call has 1 of them, from 0": lambda x: dict(
            target="TestIncrement", aliases={0: -1}
        ),
        (
            r"gives output 0, torch.int64\[16\], the buffer of input 0, torch.float32\[3\]: "
            r"they must"
        ): lambda x: dict(outputs=[((16,), torch.int64)], aliases={0: 0}),
        "aliases gives two outputs the buffer of input 0": lambda x: dict(
            outputs=[X, X], aliases={0: 0, 1: 0}
        ),
    },
    TypeError: {
        "'TestEcho': has_side_effect must be a bool, but is of type str": lambda x: dict(
            has_side_effect="x"
        ),
        "target must be a str, but is of type list; the order is": lambda x: dict(
            target=[x], inputs="TestEcho"
        ),
        "inputs must be a list or a tuple, but is of type Tensor": lambda x: dict(inputs=x),
        r"inputs\[1\] must be an XLA tensor, but is of type int": lambda x: dict(inputs=[x, 3]),
        r"outputs\[0\]: expected a tensor, an object with shape and dtype, or a pair": lambda x: (
            dict(outputs=[(3,)])
        ),
        r"outputs\[0\]: expected a shape of int but got \(3.0,\)": lambda x: dict(
            target="TestIncrement", outputs=[((3.0,), F32)]
        ),
        r"outputs\[0\]: expected a shape of int but got \('a', 'b', 'c'\)": lambda x: dict(
            target="TestIncrement", outputs=[("abc", F32)]
        ),
        r"inputs\[1\] must be an XLA tensor, but is None: only kernels made with": lambda x: dict(
            inputs=[x, None]
        ),
        r"TestIncrement: operand 0 \(x\): is missing": lambda x: dict(
            target="TestIncrement", inputs=[None]
        ),
        r"TestIncrement: operand 0 \(x\): expected dtype F32 but got S32": lambda x: dict(
            target="TestIncrement", inputs=[x.int()]
        ),
        "TestIncrement: expected 1 operand and 1 result but got 2 operands and 1 result; the": (
            lambda x: dict(target="TestIncrement", inputs=[x, x], api="ffi")
        ),
        "TestIncrement: unknown parameter 'n'; the kernel has none": lambda x: dict(
            target="TestIncrement", attributes={"n": 1}, api="ffi"
        ),
        "an FFI call has no payload; pass attributes, or api='untyped'": lambda x: dict(
            target="TestIncrement", payload=b"", api="ffi"
        ),
        "pass attributes or a payload, not both": lambda x: dict(payload=b"", attributes={}),
        "takes attributes only if it is a kernel that uses": lambda x: dict(attributes={"a": 1}),
        r"aliases must be a dict \{output: input\}, but is of type list": lambda x: dict(
            target="TestIncrement", aliases=[0]
        ),
        "aliases must be a dict of int, but the output is of type str": lambda x: dict(
            target="TestIncrement", aliases={"out": 0}
        ),
    },
}


@pytest.mark.parametrize(
    ("error", "changes", "text"),
    [(error, call, text) for error, calls in WRONG.items() for text, call in calls.items()],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_wrong_call(
    device: torch.device,
    error: type[Exception],
    changes: Callable[[torch.Tensor], dict[str, object]],
    text: str,
) -> None:
    x = torch.zeros(3).to(device)
    with pytest.raises(error, match=text):
        custom_call(**{"target": "TestEcho", "inputs": [x], "outputs": [x]} | changes(x))
