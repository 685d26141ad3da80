"""Registration from Python: every way to name a function, and every error."""

import ctypes
import gc
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from testing.scripts import run_script
from testing.xla import capsule

from kernel_api import kernels
from torch_xla_ext import (
    Target,
    custom_call,
    define_operator,
    register_cuda_custom_call,
    register_custom_call,
    register_kernel,
    registered_targets,
)
from torch_xla_ext.registry.registration import default_api, name_with_schema, schema

LIBRARY = Path(os.environ["HOST_KERNELS"])
TWIN = Path(os.environ["TWINS"].split()[0])


def echo(name: str, device: torch.device) -> int:
    """Calls TestEcho under this name. Its result is the length of the payload."""
    x = torch.zeros(1).to(device)
    (y,) = custom_call(name, [x], [((16,), torch.int64)], payload=b"\x01bc")
    return int(y.cpu()[0])


WAYS: dict[str, Callable[[], object]] = {
    "path": lambda: LIBRARY,
    "str": lambda: str(LIBRARY),
    "CDLL": lambda: ctypes.CDLL(str(LIBRARY)),
}


@pytest.mark.parametrize("way", WAYS)
def test_symbol_of_a_library(device: torch.device, way: str) -> None:
    register_custom_call(f"way.{way}", WAYS[way](), symbol="TestEcho", platform="Host")
    assert echo(f"way.{way}", device) == 3


def test_symbol_is_the_name_by_default(device: torch.device) -> None:
    register_custom_call("TestEcho", LIBRARY, platform="Host")
    assert echo("TestEcho", device) == 3


def test_the_function_itself(device: torch.device) -> None:
    function = ctypes.CDLL(str(LIBRARY)).TestEcho
    address = ctypes.cast(function, ctypes.c_void_p).value
    ways = {"ctypes": function, "capsule": capsule(address), "address": address}
    for way, given in ways.items():
        register_custom_call(f"function.{way}", given, platform="Host")
        assert echo(f"function.{way}", device) == 3


def test_libraries_of_authors_who_chose_the_same_names(device: torch.device) -> None:
    x = torch.tensor([1.0, 5.0]).to(device)
    for factor, library in zip((2, 3), os.environ["TWINS"].split(), strict=True):
        register_kernel(f"TestTimes{factor}", library)
    for factor in (2, 3):
        for api in ("untyped", "ffi"):
            (y,) = custom_call(f"TestTimes{factor}", [x], [x], api=api)
            assert y.cpu().tolist() == [factor, 5 * factor], (factor, api)


def test_a_callback_lives_as_long_as_the_process(device: torch.device) -> None:
    arguments = [ctypes.c_void_p] * 3 + [ctypes.c_size_t, ctypes.c_void_p]

    def answer(out: int, *rest: object) -> None:
        ctypes.cast(out, ctypes.POINTER(ctypes.POINTER(ctypes.c_float)))[0][0] = 42

    callback = ctypes.CFUNCTYPE(None, *arguments)(answer)
    register_custom_call("callback", callback, platform="Host")
    del callback
    gc.collect()
    x = torch.zeros(1).to(device)
    assert custom_call("callback", [x], [x])[0].cpu().tolist() == [42]


def test_a_failed_registration_leaves_no_schema() -> None:
    with pytest.raises(ValueError, match="is the kernel's entry for 'Host' and api='ffi'"):
        register_custom_call(
            "TestIncrement", kernels.LIBRARY, symbol="TestIncrementHostFfi", platform="Host"
        )
    assert schema("TestIncrement") is None


def test_another_function_of_a_kernels_library_has_no_schema() -> None:
    register_custom_call("TestTimes2", TWIN, symbol="TestTimes2Schema", platform="CUDA")
    assert Target("TestTimes2", "CUDA", "untyped") in registered_targets("CUDA")


def test_the_same_again() -> None:
    for _ in range(3):
        register_custom_call("again", LIBRARY, symbol="TestEcho", platform="Host")


def test_for_cuda_where_there_is_none() -> None:
    register_cuda_custom_call("TestCopy", LIBRARY)
    assert Target("TestCopy", "CUDA", "untyped") in registered_targets("CUDA")


def test_kernel(device: torch.device) -> None:
    entries = register_kernel("TestIncrement", kernels.LIBRARY)
    assert entries == [
        Target("TestIncrement", "Host", "untyped"),
        Target("TestIncrement", "Host", "ffi"),
    ]
    assert register_kernel("TestIncrement", kernels.LIBRARY) == entries
    assert set(entries) <= set(registered_targets())
    assert schema("TestIncrement").signature.startswith("TestIncrement(x: F32[*shape])")


def test_an_entry_of_a_kernel_brings_its_schema(device: torch.device) -> None:
    register_custom_call("TestThrow", kernels.LIBRARY, symbol="TestThrowHost", platform="Host")
    assert schema("TestThrow") is not None


def test_the_symbol_of_a_kernel_is_its_entry_by_default(device: torch.device) -> None:
    register_custom_call("TestThrow", kernels.LIBRARY, platform="Host")
    register_custom_call("TestThrow", kernels.LIBRARY, platform="Host", api="ffi")


def test_targets_by_platform() -> None:
    assert Target("XlaGpuSimpleAdd", "CUDA", "ffi") in registered_targets("CUDA")
    assert {t.platform for t in registered_targets("Host")} == {"Host"}
    assert registered_targets() == sorted(registered_targets("CUDA") + registered_targets("Host"))
    with pytest.raises(ValueError, match='unknown platform "CPU"'):
        registered_targets("CPU")


def register(*arguments: object, **keywords: object) -> Callable[[], None]:
    return lambda: register_custom_call(*arguments, **{"platform": "Host"} | keywords)


DATA = ctypes.create_string_buffer(16)
WRONG: dict[type[Exception], dict[str, Callable[[], object]]] = {
    FileNotFoundError: {
        "/nowhere/kernel.so: no such file; pass the path of the kernel's shared library": register(
            "x", "/nowhere/kernel.so"
        ),
        "/tmp: no such file": register("x", "/tmp"),
    },
    OSError: {"is not a library for this process: it is not an ELF file": register("x", __file__)},
    AttributeError: {
        "custom-call target 'x': .* has no symbol 'TestEco'; similar are TestEcho": register(
            "x", LIBRARY, symbol="TestEco"
        ),
        "has no symbol 'zzzzzz'; it has .*TestCopy": register("zzzzzz", LIBRARY),
        "has no symbol 'TestThrowFfi'; similar are .*TestThrowHostFfi": register(
            "TestThrow", kernels.LIBRARY, platform="CUDA", api="ffi"
        ),
        "has no symbol '_handle'": register("_handle", LIBRARY),
        r"has no symbol '\\ud800'": register("\ud800", LIBRARY),
        "has no kernel 'TestEchos' made with XLA_KERNEL_CUDA or XLA_KERNEL_HOST; .*TestEcho": (
            lambda: register_kernel("TestEchos", LIBRARY)
        ),
        (
            r"exports a function 'TestEcho', but no kernel .*: register it with "
            r"register_cuda_custom_call\(name, library\)"
        ): lambda: register_kernel("TestEcho", LIBRARY),
        "has no kernel 'TestIncrements' .*; similar are TestIncrement": lambda: register_kernel(
            "TestIncrements", kernels.LIBRARY
        ),
    },
    TypeError: {
        "symbol requires a library, but library is of type PyCapsule": register(
            "x", capsule(1), symbol="TestEcho"
        ),
        (
            r"name must be a str, but is of type PosixPath; the order is "
            r"register_custom_call\(name, l"
        ): register(LIBRARY, "x"),
        "library must not be a bool": register("x", True),
        "library must be a path, a ctypes.CDLL, .*, but is of type NoneType": register("x", None),
        "register_kernel: name must be a str, but is of type NoneType; the order is": lambda: (
            register_kernel(None, kernels.LIBRARY)
        ),
        "register_kernel: library must be a path, but is of type NoneType": lambda: register_kernel(
            "TestIncrement", None
        ),
    },
    ValueError: {
        "name is empty": register("", LIBRARY),
        "unknown platform 'CPU'; known are 'CUDA' and 'Host'; the CPU is \"Host\"": register(
            "x", LIBRARY, platform="CPU"
        ),
        "unknown api 'typed'; known are 'untyped' and 'ffi'": register("x", LIBRARY, api="typed"),
        "the address is 0x0, which is not the address": register("x", 0),
        "the address is 0x3039, which is not the address": register("x", 12345),
        "the address is 0x.*, which is not the address of code in this process": register(
            "x", ctypes.addressof(DATA)
        ),
        "the capsule's address is 0x.*, which is not the address of code in this process": register(
            "x", capsule(ctypes.addressof(DATA))
        ),
        "target 'x': the capsule's address is 0x.*, which is not the address of code in": register(
            "x", torch.utils.dlpack.to_dlpack(torch.ones(3))
        ),
        (
            "symbol 'TestThrowHostFfi' is the kernel's entry for 'Host' and api='ffi'; that "
            "for 'Host' and api='untyped' is 'TestThrowHost', which is the default"
        ): register("TestThrow", kernels.LIBRARY, symbol="TestThrowHostFfi"),
        r"unknown api \[\]; known are 'untyped' and 'ffi'": register("x", LIBRARY, api=[]),
    },
}


@pytest.mark.parametrize(
    ("error", "call", "text"),
    [(error, call, text) for error, calls in WRONG.items() for text, call in calls.items()],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_registration(call: Callable[[], None], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()


def test_a_kernels_schema_follows_its_function(device: torch.device) -> None:
    x = torch.tensor([7.0]).to(device)
    register_kernel("TestTimes3", TWIN.with_name(TWIN.name.replace("2", "3")))
    text = schema("TestTimes3").text
    assert custom_call("TestTimes3", [x], [x])[0].tolist() == [21]
    register_custom_call("TestTimes3", LIBRARY, symbol="TestCopy", platform="Host")
    assert schema("TestTimes3") is None
    assert custom_call("TestTimes3", [x], [x], payload=b"\1" + bytes(7))[0].tolist() == [7]
    assert schema("TestTimes3", "ffi").text == text
    assert default_api("TestTimes3") == "untyped"  # the FFI one is of the kernel before
    assert name_with_schema("TestTimes3", text) == "TestTimes3#1"
    assert custom_call("TestTimes3#1", [x], [x])[0].tolist() == [21]
    with pytest.raises(ValueError, match="no kernel with the schema"):
        name_with_schema("TestTimes3", "another")
    register_kernel("TestTimes3", TWIN.with_name(TWIN.name.replace("2", "3")))
    assert default_api("TestTimes3") == "ffi"
    assert custom_call("TestTimes3", [x], [x])[0].tolist() == [21]


def test_the_order_of_a_kernels_two_entries_does_not_matter(device: torch.device) -> None:
    for api, symbol in (("ffi", "TestThrowHostFfi"), ("untyped", "TestThrowHost")):
        register_custom_call("both", kernels.LIBRARY, symbol=symbol, platform="Host", api=api)
        assert default_api("both") == "ffi"


ELF = b"\x7fELF\x02\x01\x01" + bytes(9)
FILES = {
    "empty": (b"", "it is not an ELF file"),
    "four bytes": (ELF[:4], "it is not an ELF file"),
    "six bytes": (ELF[:6], "it is not an ELF file"),
    "32 bits": (b"\x7fELF\x01\x01" + bytes(40), "it is not a 64-bit little-endian ELF file"),
    "machine": (ELF + b"\x03\0\xb7\0" + bytes(40), "it is for aarch64, and this machine is x86_64"),
    "object": (
        ELF + b"\x01\0\x3e\0" + bytes(40),
        "it is not a shared library; link it with -shared",
    ),
    "damaged": (
        ELF + b"\x03\0\x3e\0" + bytes(10),
        "it is truncated: it has 30 bytes, but its headers describe 64",
    ),
    "no segments": (
        ELF + b"\x03\0\x3e\0" + bytes(44),
        "cannot be loaded: .*; link it with the libraries that it needs",
    ),
}


@pytest.mark.parametrize(("content", "text"), FILES.values(), ids=FILES)
def test_no_library_of_this_machine(tmp_path: Path, content: bytes, text: str) -> None:
    file = tmp_path / "kernel.so"
    file.write_bytes(content)
    with pytest.raises(OSError, match=text):
        register_custom_call("x", file, platform="Host")


@pytest.mark.parametrize("part", [0.01, 0.3, 0.7, 0.99])
def test_a_truncated_library_is_refused(tmp_path: Path, part: float) -> None:
    """The dynamic loader would map the file, and reads of the missing part would crash."""
    content = LIBRARY.read_bytes()
    file = tmp_path / "libtruncated.so"
    file.write_bytes(content[: int(len(content) * part)])
    with pytest.raises(OSError, match=f"truncated: .* describe {len(content):,}; copy or link"):
        register_kernel("TestCopy", file)


def test_a_function_without_a_schema_is_no_unknown_name() -> None:
    register_custom_call("without_schema", LIBRARY, symbol="TestCopy", platform="Host")
    with pytest.raises(ValueError, match="'without_schema' was not made with torch_xla_ext/ker"):
        define_operator("registration_test::op(Tensor x) -> Tensor", target="without_schema")


def test_threads_register_and_call(device: torch.device) -> None:
    start = threading.Barrier(8)

    def work(number: int) -> None:
        start.wait()
        for i in range(5):
            for name in (f"own.{number}.{i}", f"shared.{i}"):
                register_custom_call(name, LIBRARY, symbol="TestEcho", platform="Host")
            register_kernel("TestIncrement", kernels.LIBRARY)
            assert echo(f"own.{number}.{i}", device) == 3
            assert echo(f"shared.{i}", device) == 3
            registered_targets()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


def test_before_the_client_exists() -> None:
    code = (
        "import os, torch, torch_xla_ext as ext\n"
        "ext.register_kernel('TestIncrement', os.environ['GATHER_KERNELS'])\n"
        "x = torch.zeros(2).to('xla')\n"
        "print(ext.custom_call('TestIncrement', [x], [x])[0].cpu().tolist())\n"
    )
    result = run_script(code)
    assert result.stdout == "[1.0, 1.0]\n", result.stderr


def test_a_function_that_another_library_replaces() -> None:
    code = """
import ctypes, os, torch_xla_ext
first, second = os.environ["TWINS"].split()
ctypes.CDLL(first, ctypes.RTLD_GLOBAL)
torch_xla_ext.register_kernel("TestTimes2", first)
try:
    torch_xla_ext.register_kernel("TestTimes3", second)
except OSError as error:
    print(error)
"""
    assert "Run" in (output := run_script(code).stdout)
    assert "would be replaced by that of a library that was loaded with RTLD_GLOBAL" in output


def test_a_signature_of_a_handler() -> None:
    handlers = {"execute": ctypes.CDLL(str(LIBRARY)).TestEcho}

    def register(signature: str, **options: object) -> None:
        register_custom_call("Signed", handlers, platform="Host", signature=signature, **options)

    with pytest.raises(ValueError, match="operand x must not be optional"):
        register("(x?: F32[n]) -> (out: F32[n])", api="ffi")
    with pytest.raises(ValueError, match=r"cannot be parsed"):
        register("(x) -> out", api="ffi")
    with pytest.raises(ValueError, match="parameter low must be one of"):
        register("(x: F32[n]) -> (out: F32[n])", api="ffi", parameters="range: {low: u8}")
    with pytest.raises(TypeError, match="signature requires api='ffi', but api is 'untyped'"):
        register("(x: F32[n]) -> (out: F32[n])", api="untyped")
    with pytest.raises(TypeError, match="the kernel has a signature of its own"):
        register_custom_call(
            "TestTimes2", TWIN, platform="Host", api="ffi", signature="(x: F32[n]) -> (out: F32[n])"
        )
