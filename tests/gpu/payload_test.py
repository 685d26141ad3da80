"""Payloads reach a CUDA kernel unchanged, or are refused."""

import json
import os
import struct

import pytest
import torch
from testing.xla import XLAC, register_host_kernels

# XLA:GPU reads a backend_config that parses as JSON of its own message, and then hands the kernel
# that message's `opaque` instead. These are refused.
EMPTY_OBJECTS = [b"{}", b" {}", b"\t\r\n { } "]
JSON_LIKE = [
    *EMPTY_OBJECTS,
    b'{"custom_call_backend_config":{"opaque":"abc"}}',
    b"{customCallBackendConfig:{opaque:'abc'}}",
    b'{"force_earliest_schedule":true}',
    b'{"\\u006fperation_queue_id":3}',
]
OTHERS = [
    *(b"", b" ", b"\0", b"a\0b\0", b"\0" * 100, b"\x01\x01\x0b\0\0\0\0\0\x03\0\0\0\0\0\0\0"),
    *(b"null", b" null", b"nullx", b"nul", b"n", b"NaN", b"true", b"false"),
    *(b"1", b"-1.5e3", b'"x"', b"[]", b"[1]", b"[{}]", b"{", b"}", b"{}x", b"x{}", b"{\0}"),
    *(b"\x0b{}", b"\x0c{}", b"\xa0{}", b"\0{}", b"\xef\xbb\xbf{}", b"// c\n{}", b"/* c */ {}"),
    *(b"{'a':1}", b'{"a":1}', b"'{}'", b'{"a":1,"custom_call_backend_config":{"opaque":"abc"}}'),
    *(struct.pack("<i", 123), struct.pack("<i", 123 + (125 << 24))),
    *(bytes(range(1, 256)), bytes(range(256)), bytes(range(255, -1, -1))),
]


@pytest.fixture(scope="module", autouse=True)
def kernels() -> None:
    register_host_kernels("TestEchoLong")


def echo(device: torch.device, payload: bytes, api_version: int) -> bytes:
    """The payload that the kernel receives."""
    x = torch.zeros(1).to(device)
    result = XLAC._xla_custom_call(
        [x], "TestEchoLong", [[1001]], [torch.int64], False, payload, api_version, {}
    )[0]
    values = result.cpu().tolist()
    return bytes(values[1 : 1 + values[0]])


@pytest.mark.parametrize("payload", OTHERS, ids=repr)
def test_payload_reaches_the_kernel_whole(device: torch.device, payload: bytes) -> None:
    x = torch.zeros(1).to(device)
    result = XLAC._xla_gpu_custom_call([x], payload, [[1001]], [torch.int64], "TestEchoLong")[0]
    values = result.cpu().tolist()
    assert bytes(values[1 : 1 + values[0]]) == payload


@pytest.mark.parametrize("payload", JSON_LIKE, ids=repr)
def test_payload_that_xla_might_read_is_refused(device: torch.device, payload: bytes) -> None:
    x = torch.zeros(1).to(device)
    with pytest.raises(ValueError):
        XLAC._xla_gpu_custom_call([x], payload, [[1001]], [torch.int64], "TestEchoLong")


def test_no_other_payload_is_replaced(device: torch.device) -> None:
    """Payloads that may name fields of XLA's message, for the table in docs/pjrt_shim.md."""
    table = {}
    for payload in JSON_LIKE + OTHERS:
        for version in (2, 3):
            try:
                seen = echo(device, payload, version)
                outcome = "whole" if seen == payload else f"arrives as {seen!r}"
            except ValueError:
                outcome = "refused"
            except RuntimeError as error:
                outcome = f"error: {str(error)[:200]}"
            table[f"{payload!r} v{version}"] = outcome
    if path := os.environ.get("PAYLOAD_TABLE"):
        with open(path, "w") as file:
            json.dump(table, file, indent=1)
    for payloads, outcome in ((OTHERS, "whole"), (EMPTY_OBJECTS, "refused")):
        for payload in payloads:
            for version in (2, 3):
                assert table[f"{payload!r} v{version}"] == outcome
