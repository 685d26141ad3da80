"""FFI handlers with several stages and a state, as a user registers and calls them."""

import ast
import ctypes
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from testing.xla import XLAC, capsule, compilations

import torch_xla_ext
from torch_xla_ext import register_custom_call, register_ffi_type, register_kernel

PATH = os.environ["STATEFUL_HANDLERS"]
LIBRARY = ctypes.CDLL(PATH)


def address(symbol: str) -> int:
    return ctypes.cast(LIBRARY[symbol], ctypes.c_void_p).value


def pointer(symbol: str) -> int:
    """The pointer that a function of the library returns."""
    return ctypes.CFUNCTYPE(ctypes.c_void_p)(address(symbol))() or 0


def handlers(**others: object) -> dict[str, object]:
    """The handlers of a scaling, in the form in which jax.ffi.register_ffi_target takes them."""
    stages = {
        "instantiate": capsule(address("ScaleInstantiate")),
        "execute": capsule(address("ScaleExecute")),
    }
    return stages | others


@pytest.fixture(scope="module", autouse=True)
def registered_type() -> None:
    register_ffi_type("Plan", pointer("ScaleInStagesTypeId"), platform="Host")


class Counts:
    """Counts the calls of the library since this was made."""

    NAMES = ("instantiated", "prepared", "initialized", "executed", "destroyed")

    def __init__(self) -> None:
        self._before = self._now()

    @staticmethod
    def _now() -> list[int]:
        values = (ctypes.c_int64 * len(Counts.NAMES))()
        LIBRARY.CountCalls(values)
        return list(values)

    def __call__(self) -> dict[str, int]:
        counts = zip(self.NAMES, self._now(), self._before, strict=True)
        return {name: now - before for name, now, before in counts if now != before}


@pytest.fixture
def counts() -> Iterator[Counts]:
    yield Counts()


def scale(target: str, x: torch.Tensor, scale: float) -> torch.Tensor:
    return torch_xla_ext.custom_call(target, [x], [x], attributes={"scale": scale})[0]


def x_on(device: torch.device, *values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32).to(device)


def test_a_state_lives_as_long_as_its_program(device: torch.device, counts: Counts) -> None:
    register_custom_call("Scale", handlers(), platform="Host", api="ffi")
    x = x_on(device, 1, 2)
    assert scale("Scale", x, 10.0).tolist() == [10, 20]
    assert counts() == {"instantiated": 1, "executed": 1}
    compiled = compilations()
    assert scale("Scale", x, 10.0).tolist() == [11, 21]  # the second execution of its state
    assert compilations() == compiled
    assert counts() == {"instantiated": 1, "executed": 2}
    assert scale("Scale", x, 3.0).tolist() == [3, 6]  # another program
    assert counts() == {"instantiated": 2, "executed": 3}


def test_record_is_not_called_on_the_cpu(device: torch.device, counts: Counts) -> None:
    """XLA:CPU has no command buffers."""
    recorded = handlers(record=address("ExecuteNothing"))
    register_custom_call("Recorded", recorded, platform="Host", api="ffi")
    assert scale("Recorded", x_on(device, 1, 2), 10.0).tolist() == [10, 20]
    assert counts() == {"instantiated": 1, "executed": 1}


def test_each_call_of_a_program_has_a_state(device: torch.device, counts: Counts) -> None:
    register_custom_call("ScaleTwice", handlers(), platform="Host", api="ffi")
    x = x_on(device, 1)
    for run in range(3):
        once = scale("ScaleTwice", x, 2.0)
        assert scale("ScaleTwice", once * 10, 5.0).tolist() == [(2 + run) * 50 + run]
    assert counts() == {"instantiated": 2, "executed": 6}


FORMS = ["path", "library", "capsule", "address", "dictionary", "capsules as TransformerEngine's"]


def named_capsule(address: int) -> object:
    arguments = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    new = ctypes.PYFUNCTYPE(ctypes.py_object, *arguments)(("PyCapsule_New", ctypes.pythonapi))
    return new(address, CAPSULE_NAME, None)


# XLA's, for its own bindings; a capsule does not copy it.
CAPSULE_NAME = b"xla._CUSTOM_CALL_TARGET"


@pytest.mark.parametrize("given", FORMS)
def test_stages_of_a_bundle(device: torch.device, counts: Counts, given: str) -> None:
    """Each stage checks that the stage before it was called with the same state."""
    bundle = pointer("ScaleInStagesHostBundle")
    names = ("instantiate", "prepare", "initialize", "execute")
    functions = (ctypes.c_void_p * 4).from_address(bundle)
    library = {
        "path": PATH,
        "library": LIBRARY,
        "capsule": capsule(bundle),
        "address": bundle,
        "dictionary": dict(zip(names, functions, strict=True)),
        FORMS[-1]: dict(zip(names, map(named_capsule, functions), strict=True)),
    }[given]
    register_custom_call("ScaleInStages", library, platform="Host", api="ffi")
    factor = 100.0 + FORMS.index(given)  # one that no other program has
    x = x_on(device, 1, 2)
    for run in range(3):
        assert scale("ScaleInStages", x, factor).tolist() == [factor + run, 2 * factor + run]
    assert counts() == {"instantiated": 1, "prepared": 3, "initialized": 3, "executed": 3}


def test_register_kernel_finds_the_bundle(device: torch.device) -> None:
    (target,) = register_kernel("ScaleInStages", PATH)
    assert target == ("ScaleInStages", "Host", "ffi")
    assert target in torch_xla_ext.registered_targets("Host")
    assert scale("ScaleInStages", x_on(device, 1), 99.0).tolist() == [99]


def test_symbols_of_the_stages(device: torch.device) -> None:
    symbols = {"instantiate": "ScaleInstantiate", "execute": "ScaleExecute"}
    register_custom_call("BySymbols", PATH, symbol=symbols, platform="Host")
    assert ("BySymbols", "Host", "ffi") in torch_xla_ext.registered_targets("Host")
    assert scale("BySymbols", x_on(device, 3), 2.0).tolist() == [6]


def test_ctypes_functions_and_absent_stages(device: torch.device) -> None:
    functions = {
        "instantiate": LIBRARY.ScaleInstantiate,
        "prepare": None,
        "execute": address("ScaleExecute"),
    }
    register_custom_call("ByFunctions", functions, platform="Host", api="ffi")
    assert scale("ByFunctions", x_on(device, 3), 2.0).tolist() == [6]


@torch.library.custom_op("stateful_test::scale", mutates_args=())
def scale_operator(x: torch.Tensor) -> torch.Tensor:
    return scale("ScaleInStages", x, 7.0)


scale_operator.register_fake(torch.empty_like)


def test_under_torch_compile(device: torch.device, counts: Counts) -> None:
    register_kernel("ScaleInStages", PATH)
    compiled = torch.compile(lambda x: scale_operator(x) + 1, backend="openxla", fullgraph=True)
    x = x_on(device, 1)
    assert [compiled(x).item() for _ in range(3)] == [8, 9, 10]
    assert counts() == {"instantiated": 1, "prepared": 3, "initialized": 3, "executed": 3}


def test_a_captured_step_runs_all_stages(device: torch.device) -> None:
    register_kernel("ScaleInStages", PATH)
    step = torch_xla_ext.capture(lambda x: scale("ScaleInStages", x, 6.0) * 2, verify=False)
    x = x_on(device, 1)
    seen = Counts()
    results = [step(x).item() for _ in range(6)]
    executed = seen()["executed"]
    instantiated = seen().pop("instantiated")
    runs = dict.fromkeys(("prepared", "initialized", "executed"), executed)
    assert seen() == {"instantiated": instantiated} | runs
    assert executed >= 6
    assert instantiated < 6
    assert results == sorted(results)
    assert results[0] == 12


def test_states_are_destroyed_with_their_programs() -> None:
    """The cache holds one program, so each program replaces the one before it."""
    script = f"""
import torch, torch_xla, torch_xla_ext
import stateful_handlers_test as test
torch_xla_ext.register_kernel("ScaleInStages", {PATH!r})
counts = test.Counts()
x = torch.ones(1, device="xla")
for number in range(4):
    assert test.scale("ScaleInStages", x, float(number)).tolist() == [number]
torch_xla.sync(wait=True)
print(counts())
"""
    environment = os.environ | {
        "XLA_COMPILATION_CACHE_SIZE": "1",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)]),
    }
    result = subprocess.run(
        [sys.executable, "-P", "-c", script], env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    counts = ast.literal_eval(result.stdout)
    assert counts["instantiated"] == 4
    assert counts["destroyed"] >= 2


def test_registered_again(device: torch.device, counts: Counts) -> None:
    """Programs that were compiled before keep their handlers and their states."""

    def current() -> str:
        return XLAC._xla_current_custom_call_target("Again", "Host", "ffi")

    x = x_on(device, 1)
    register_custom_call("Again", handlers(), platform="Host", api="ffi")
    register_custom_call("Again", handlers(), platform="Host", api="ffi")
    assert current() == "Again"
    assert scale("Again", x, 31.0).tolist() == [31]
    traced = scale("Again", x, 31.0)
    register_custom_call(
        "Again", capsule(pointer("ScaleInStagesHostBundle")), platform="Host", api="ffi"
    )
    assert current() == "Again#2"
    assert scale("Again", x, 31.0).tolist() == [31]  # a state of its own
    assert traced.tolist() == [32]
    assert scale("Again#1", x, 31.0).tolist() == [33]
    # The same handlers with another trait are another registration; the first ones again are not.
    register_custom_call(
        "Again", handlers(), platform="Host", api="ffi", command_buffer_compatible=True
    )
    assert current() == "Again#3"
    register_custom_call("Again", handlers(), platform="Host", api="ffi")
    assert current() == "Again"
    assert counts() == {"instantiated": 2, "prepared": 1, "initialized": 1, "executed": 4}


def test_a_rebuilt_library(device: torch.device, tmp_path: Path) -> None:
    """The rebuilt library's state has a different type, although its name is the same."""
    library = tmp_path / "libhandlers.so"
    shutil.copyfile(PATH, library)
    register_kernel("ScaleInStages", library)
    x = x_on(device, 1)
    assert scale("ScaleInStages", x, 51.0).tolist() == [51]
    data = library.read_bytes()
    library.unlink()
    library.write_bytes(data + b"\0")  # as large as no earlier one
    register_kernel("ScaleInStages", library)
    assert scale("ScaleInStages", x, 51.0).tolist() == [51]
    assert scale("ScaleInStages", x, 51.0).tolist() == [52]


def test_command_buffer_compatible_handlers_run(device: torch.device) -> None:
    """On the CPU the trait has no effect."""
    for name, library in {"Compatible": handlers(), "CompatibleLibrary": PATH}.items():
        symbol = {"symbol": {"instantiate": "ScaleInstantiate", "execute": "ScaleExecute"}}
        register_custom_call(
            name,
            library,
            platform="Host",
            api="ffi",
            command_buffer_compatible=True,
            **(symbol if library is PATH else {}),
        )
        assert scale(name, x_on(device, 2), 3.0).tolist() == [6]


def test_an_error_of_instantiate_is_one_of_compilation(device: torch.device) -> None:
    register_custom_call("Negative", handlers(), platform="Host", api="ffi")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="Scale: scale must not be negative"):
            scale("Negative", x_on(device, 1), -1.0).cpu()
    assert scale("Negative", x_on(device, 1), 1.0).tolist() == [1]


def test_an_error_of_prepare_is_one_of_the_call(device: torch.device, counts: Counts) -> None:
    register_kernel("ScaleInStages", PATH)
    with pytest.raises(RuntimeError, match="Scale: prepare fails"):
        scale("ScaleInStages", x_on(device, 1), 77.0).cpu()
    assert "executed" not in counts()
    assert scale("ScaleInStages", x_on(device, 1), 78.0).tolist() == [78]


def result_of(target: str, device: torch.device) -> torch.Tensor:
    x = torch.zeros(1).to(device)
    return torch_xla_ext.custom_call(target, [x], [x])[0].cpu()


def execute(symbol: str) -> dict[str, int]:
    return {"execute": address(symbol)}


def test_a_state_whose_type_is_not_registered(device: torch.device) -> None:
    stages = {"instantiate": address("InstantiateOther")} | execute("ExecuteNothing")
    register_custom_call("Other", stages, platform="Host", api="ffi")
    with pytest.raises(RuntimeError, match=r"not registered: call torch_xla_ext.register_ffi_type"):
        result_of("Other", device)


def test_user_data_is_refused(device: torch.device) -> None:
    """XLA would crash the process."""
    register_custom_call("UserData", address("ExecuteUserData"), platform="Host", api="ffi")
    with pytest.raises(RuntimeError, match="asks for ffi::UserData, but torch_xla passes none"):
        result_of("UserData", device)


def test_an_asynchronous_prepare_is_refused(device: torch.device) -> None:
    stages = {"prepare": address("PrepareAsynchronously")} | execute("ExecuteNothing")
    register_custom_call("Asynchronous", stages, platform="Host", api="ffi")
    with pytest.raises(RuntimeError, match="must not return a future on the CPU"):
        result_of("Asynchronous", device)


def register(library: object, **options: object) -> Callable[[], None]:
    options = {"platform": "Host", "api": "ffi"} | options
    return lambda: register_custom_call("x", library, **options)


def register_type(name: object, type_id: object, **options: object) -> Callable[[], None]:
    return lambda: register_ffi_type(name, type_id, **({"platform": "Host"} | options))


DATA = (ctypes.c_int64 * 4)(1, 2, 3, 4)

WRONG: dict[type[Exception], dict[str, Callable[[], object]]] = {
    ValueError: {
        (
            "target 'x': unknown stage 'exec'; did you mean 'execute'.?; a target's stages are "
            "'instantiate', 'prepare', 'initialize', 'execute', 'record'"
        ): register(handlers(exec=1)),
        "target 'x': unknown stage 1; a target": register({1: 2}),
        "target 'x': expected a handler for 'execute', .* but got 'instantiate'": register(
            {"instantiate": 1}
        ),
        "'execute', .* but got no handler at all": register({}),
        "but got no handler at all": register({"execute": None}),
        "target 'x': the address for 'execute' is 0x.*, which is not the address of code": register(
            handlers(execute=ctypes.addressof(DATA))
        ),
        "'x': the address is 0x3039, which is the address neither of code nor of data": register(
            12345
        ),
        (
            "target 'x': the capsule's address is 0x.*, which is not the address of an "
            "XLA_FFI_Handler_Bundle: its instantiate is 0x1, which is not the address of code"
        ): register(capsule(ctypes.addressof(DATA))),
        "target 'NoExecute': expected a handler for 'execute', .* but got 'instantiate'": lambda: (
            register_kernel("NoExecute", PATH)
        ),
        (
            "target 'Null': the result of NullHostBundle of .* is 0x0, which is the address neither"
        ): lambda: register_kernel("Null", PATH),
        "target 'Numbers': the result of NumbersHostBundle of .*: its instantiate is 0x1": lambda: (
            register_kernel("Numbers", PATH)
        ),
        (
            'FFI type "Plan": another type, whose id is 0x.*, is registered under this name '
            'for "Host", and this one.s is .*; register it under another name'
        ): register_type("Plan", ctypes.addressof(DATA)),
        "the name of an FFI type is empty": register_type("", pointer("UnregisteredTypeId")),
        (
            "FFI type 'a': type_id is 0x.*, which is not the address of data .*pass that of "
            "the XLA_FFI_TypeId"
        ): register_type("a", address("ScaleExecute")),
        "type_id is 0x0, which is not": register_type("a", 0),
        'unknown platform "CPU"; known are "CUDA", "Host"': register_type(
            "a", ctypes.addressof(DATA), platform="CPU"
        ),
        (
            r"FFI type 'a': expected a dictionary with the key 'type_id'.* got the keys "
            r"\['id'\]"
        ): register_type("a", {"id": 1}),
        "type 'a': type_info has the deleter 0x3, which is not the address of code": register_type(
            "a", ctypes.addressof(DATA), type_info=ctypes.addressof(DATA)
        ),
    },
    TypeError: {
        (
            "target 'x': stage 'prepare' must be a PyCapsule, an address or a ctypes function, "
            "but is of type str"
        ): register(handlers(prepare="Prepare")),
        "target 'x': handlers of stages require api='ffi', but api is 'untyped'": register(
            handlers(), api="untyped"
        ),
        "target 'x': handlers of stages require api='ffi'": register(
            PATH, symbol={"execute": "ScaleExecute"}, api="untyped"
        ),
        "target 'x': command_buffer_compatible requires api='ffi', but api is 'untyped'": register(
            address("ScaleExecute"), api="untyped", command_buffer_compatible=True
        ),
        "target 'x': symbol requires a library, but library is of type dict": register(
            handlers(), symbol={"execute": "ScaleExecute"}
        ),
        "target 'x': stage 'execute' must be the name of a symbol, but is of type int": register(
            PATH, symbol={"execute": 1}
        ),
        "register_ffi_type: name must be a str, but is of type int": register_type(
            pointer("UnregisteredTypeId"), "a"
        ),
        (
            "FFI type 'a': type_id must be a PyCapsule, an address or a ctypes function, but "
            "is of type str"
        ): register_type("a", "b"),
    },
    AttributeError: {
        "has no symbol 'ScaleExecut'; similar are ScaleExecute": register(
            PATH, symbol={"execute": "ScaleExecut"}
        )
    },
}


@pytest.mark.parametrize(
    ("error", "function", "text"),
    [(error, call, text) for error, calls in WRONG.items() for text, call in calls.items()],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_registration(
    function: Callable[[], None], error: type[Exception], text: str
) -> None:
    before = torch_xla_ext.registered_targets()
    with pytest.raises(error, match=re.compile(text, re.DOTALL)):
        function()
    assert torch_xla_ext.registered_targets() == before


def test_a_type_in_jaxs_form_and_again(device: torch.device) -> None:
    """The fixture's type may be registered again, with newer headers' structure, and for CUDA."""
    form = {
        "type_id": capsule(pointer("ScaleInStagesTypeId")),
        "type_info": capsule(pointer("NewerTypeInfo")),
    }
    for platform in ("Host", "CUDA", "CUDA"):
        register_ffi_type("Plan", form, platform=platform)
    register_ffi_type("Plan", LIBRARY.ScaleInStagesTypeId, platform="Host")
    register_ffi_type("Under another name", form, platform="Host")
    register_custom_call("Later", handlers(), platform="Host", api="ffi")
    assert scale("Later", x_on(device, 1), 61.0).tolist() == [61]


def test_stages_for_cuda_are_registered_without_a_gpu() -> None:
    register_custom_call("ForCuda", handlers(), api="ffi", command_buffer_compatible=True)
    assert ("ForCuda", "CUDA", "ffi") in torch_xla_ext.registered_targets("CUDA")
