"""Every error of a call with wrong arguments: its type and its whole text."""

import re
import struct

import pytest
import torch
from testing.xla import XLAC, custom_call_lines


def arguments(device: torch.device, **changes: object) -> dict[str, object]:
    return {
        "inputs": [torch.zeros(2).to(device)],
        "payload": b"",
        "output_shapes": [[2]],
        "output_dtypes": [torch.float32],
        "target": "T",
        **changes,
    }


# By error: the wrong arguments, and the text behind the call's name.
WRONG: dict[type[Exception], dict[str, dict[str, object]]] = {
    ValueError: {
        "target is empty; pass the name under which": {"target": ""},
        "inputs is empty: a custom call needs at least one tensor, which determines its device": {
            "inputs": []
        },
        (
            "inputs[0] must be an XLA tensor, but is a torch.int8 tensor on cpu; move it to the "
            'device first: tensor.to("xla")'
        ): {"inputs": [torch.zeros(2, dtype=torch.int8)]},
        "inputs[0] must be an XLA tensor, but is a torch.float32 tensor on meta": {
            "inputs": [torch.zeros(2, device="meta")]
        },
        "output_shapes and output_dtypes must have the same length, but have 2 and 1": {
            "output_shapes": [[2], [3]]
        },
        "output_shapes is empty: a custom call has at least one result": {
            "output_shapes": [],
            "output_dtypes": [],
        },
        "output_shapes[0] has the negative dimension -3": {"output_shapes": [[2, -3]]},
        (
            "output_shapes[0] is out of range: [1099511627776, 1099511627776] has 2^63 bytes or "
            "more"
        ): {"output_shapes": [[2**40, 2**40]]},
        "output_shapes[0] is out of range: [2305843009213693952]": {"output_shapes": [[2**61]]},
        "output_shapes[0] is out of range: [-1180591620717411303424]": {
            "output_shapes": [[-(2**70)]]
        },
        "output_shapes[0] is out of range: [1180591620717411303424]": {"output_shapes": [[2**70]]},
        "output_dtypes[0] is torch.complex32, which torch_xla does not support": {
            "output_dtypes": [torch.complex32]
        },
        "result_layouts names output 1, but the call has 1 of them, from 0": {
            "result_layouts": {1: (0,)}
        },
        "result_layouts[0] must have each of the output's 1 dimensions once, but is (1,)": {
            "result_layouts": {0: (1,)}
        },
        "result_layouts[0] must have each of the output's 2 dimensions once": {
            "output_shapes": [[2, 3]],
            "result_layouts": {0: (0, 0)},
        },
        "num_hidden_results is 1, but the call has 1 results": {"num_hidden_results": 1},
        "num_hidden_results is -1, but the call has 1 results": {"num_hidden_results": -1},
    },
    TypeError: {
        "target must be a str, but is of type int": {"target": 3},
        "inputs must be a sequence of XLA tensors, but is of type Tensor": {
            "inputs": torch.zeros(2)
        },
        "inputs must be a sequence of XLA tensors, but is of type NoneType": {"inputs": None},
        "inputs[0] must be an XLA tensor, but is of type float": {"inputs": [1.5]},
        "payload must be bytes or str, but is of type int": {"payload": 3},
        "payload must be bytes or str, but is of type NoneType": {"payload": None},
        "output_shapes must be a sequence of shapes, but is of type int": {"output_shapes": 3},
        "output_shapes[0] must be a sequence of int, but is of type int": {"output_shapes": [3]},
        "output_shapes[0] must be a sequence of int, but contains one of type float": {
            "output_shapes": [[2.0]]
        },
        "output_dtypes[0] must be a torch.dtype, but is of type str": {
            "output_dtypes": ["float32"]
        },
        "output_dtypes must be a sequence of torch.dtype, but is of type torch.dtype": {
            "output_dtypes": torch.float32
        },
        "result_layouts must be a dict {output: dimensions}, but is of type list": {
            "result_layouts": [(0,)]
        },
    },
}

# Payloads that XLA:GPU reads as its own message, and some that only look like one.
JSON_PAYLOADS = [
    b"{}",
    "{}",
    b" \n\t\r{ \n} ",
    b'{"custom_call_backend_config": {"opaque": "abc"}}',
    b'{"customCallBackendConfig":{}}',
    b"{ force_earliest_schedule : true }",
    b"{'operationQueueId': 3}",
    b'{"\\u006fperation_queue_id": 3}',
    b'{"some_later_config": 1}',
]
OTHER_PAYLOADS = [
    struct.pack("<i", 123),
    struct.pack("<i", 123 + 256 * 77),
    struct.pack("<i", 123 + (125 << 24)),  # "{", zeros, and "}"
    b"{",
    b"{}x",
    b"{}\0",
    b"\x0b{}",
    b'{"a": 1}',
    b"{'a': 1}",
    b"{a: 1}",
    b'{"a": 1, "custom_call_backend_config": {}}',
    b"null",
    b" null ",
    b"",
]


@pytest.mark.parametrize(
    ("error", "changes", "text"),
    [(error, call, text) for error, calls in WRONG.items() for text, call in calls.items()],
    ids=lambda value: str(value)[:60],
)
def test_wrong_argument(
    device: torch.device, changes: dict[str, object], error: type[Exception], text: str
) -> None:
    name = "" if "target" in changes else '"T"'
    with pytest.raises(error, match="^" + re.escape(f"custom call {name}".strip() + f": {text}")):
        XLAC._xla_gpu_custom_call(**arguments(device, **changes))


@pytest.mark.parametrize("payload", JSON_PAYLOADS)
def test_payload_that_xla_gpu_would_replace(device: torch.device, payload: bytes) -> None:
    with pytest.raises(ValueError, match=r'custom call "T": payload is ".*": XLA:GPU wo'):
        XLAC._xla_gpu_custom_call(**arguments(device, payload=payload))


def test_the_configuration_of_a_target_that_xla_runs_is_taken(device: torch.device) -> None:
    call = arguments(device, payload="{}", payload_is_backend_config=True)
    (line,) = custom_call_lines(*XLAC._xla_gpu_custom_call(**call))
    assert 'backend_config="{}"' in line or "backend_config={}" in line


@pytest.mark.parametrize("payload", OTHER_PAYLOADS)
def test_other_payloads_are_taken(device: torch.device, payload: bytes) -> None:
    (result,) = XLAC._xla_gpu_custom_call(**arguments(device, payload=payload))
    assert custom_call_lines(result)


def test_the_default_target_takes_any_payload(device: torch.device) -> None:
    inputs = arguments(device)["inputs"]
    (result,) = XLAC._xla_gpu_custom_call(inputs, "{}", [[2]], [torch.float32])
    (line,) = custom_call_lines(result)
    assert "backend_config={}" in line


def test_the_wrong_input_is_named(device: torch.device) -> None:
    inputs = [torch.zeros(2).to(device), torch.zeros(2).to(device), torch.zeros(2)]
    with pytest.raises(ValueError, match=re.escape('custom call "T": inputs[2] must be an XLA')):
        XLAC._xla_gpu_custom_call(**arguments(device, inputs=inputs))


@pytest.mark.parametrize("dtype", [torch.quint8, torch.float8_e4m3fnuz, torch.uint4])
def test_dtypes_without_an_xla_type(device: torch.device, dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match=f"output_dtypes.0. is {dtype}, which torch_xla does not"):
        XLAC._xla_gpu_custom_call(**arguments(device, output_dtypes=[dtype]))


def test_sequences_other_than_lists(device: torch.device) -> None:
    inputs = tuple(arguments(device)["inputs"])
    changes = {"inputs": inputs, "output_shapes": (torch.Size([2]),), "output_dtypes": iter([])}
    changes["output_dtypes"] = (torch.float32,)
    assert XLAC._xla_gpu_custom_call(**arguments(device, **changes))[0].shape == (2,)


def test_a_wrong_call_traces_nothing(device: torch.device) -> None:
    before = XLAC._get_xla_tensors_text([torch.zeros(2).to(device) + 1])
    with pytest.raises(ValueError, match="negative"):
        XLAC._xla_gpu_custom_call(**arguments(device, output_shapes=[[-1]]))
    after = XLAC._get_xla_tensors_text([torch.zeros(2).to(device) + 1])
    assert before == after


@pytest.mark.parametrize("api_version", [-1, 5])
def test_api_version_out_of_range(device: torch.device, api_version: int) -> None:
    x = torch.zeros(2).to(device)
    with pytest.raises(ValueError, match=f'"T": api_version must be 0 to 4, but is {api_version}'):
        XLAC._xla_custom_call([x], "T", [[2]], [torch.float32], False, "", api_version, {})
    with pytest.raises(ValueError, match=f'"T": api_version must be 1 to 4, but is {api_version}'):
        XLAC._xla_gpu_custom_call(**arguments(device, api_version=api_version))


def test_custom_call_checks_the_same_arguments(device: torch.device) -> None:
    x = torch.zeros(2).to(device)
    with pytest.raises(ValueError, match=re.escape('"T": inputs[1] must be an XLA tensor')):
        XLAC._xla_custom_call([x, torch.zeros(2)], "T", [[2]], [torch.float32], False, "", 1, {})
    with pytest.raises(TypeError, match='"T": backend_config must be bytes or str'):
        XLAC._xla_custom_call([x], "T", [[2]], [torch.float32], False, 3, 1, {})
    with pytest.raises(TypeError, match=re.escape('"T": output_dtypes[0] must be a torch.dtype')):
        XLAC._xla_custom_call([x], "T", [[2]], ["float32"], False, "", 1, {})
