"""Helpers for tests that trace and run XLA programs."""

import ctypes
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import torch_xla
from torch_xla.debug import metrics

XLAC = torch_xla._XLAC
# The platform for which tests register targets.
PLATFORM = "CUDA" if os.environ.get("PJRT_DEVICE") == "CUDA" else "Host"


def capsule(address: int) -> object:
    """A PyCapsule without a name that holds `address`."""
    new = ctypes.pythonapi.PyCapsule_New
    new.restype = ctypes.py_object
    new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return new(address, None, None)


def host_kernel(name: str) -> object:
    """A capsule with the address of a function of tests/csrc/host_kernels.cc.

    On a GPU the function is that of the same name in tests/gpu/gpu_kernels.cu.
    """
    library = ctypes.CDLL(os.environ["GPU_KERNELS" if PLATFORM == "CUDA" else "HOST_KERNELS"])
    return capsule(ctypes.cast(getattr(library, name), ctypes.c_void_p).value)


def register_host_kernels(*names: str) -> None:
    for name in names:
        XLAC._xla_register_custom_call_target(name, host_kernel(name), PLATFORM)


def hlo(*tensors: torch.Tensor) -> str:
    """The HLO of the pending graph of `tensors`, before any optimization."""
    return XLAC._get_xla_tensors_hlo(list(tensors))


def custom_call_lines(*tensors: torch.Tensor) -> list[str]:
    """The custom-call instructions of the graph, without the numbers of instructions."""
    lines = [line.strip() for line in hlo(*tensors).splitlines() if " custom-call(" in line]
    return [re.sub(r"(%[\w-]+)\.\d+", r"\1", line) for line in lines]


def check_calls(file: Path, calls: Mapping[str, Callable[[], list[torch.Tensor]]]) -> None:
    """Compares the custom call that each function traces with the file's lines, `name: HLO`.

    After an intended change, the file is what this prints.
    """
    found = [
        f"{name}: {line}" for name, call in calls.items() for line in custom_call_lines(*call())
    ]
    print(*sorted(found), sep="\n")
    assert sorted(found) == file.read_text().splitlines()


def graph_hash(*tensors: torch.Tensor) -> str:
    return XLAC._get_graph_hash(list(tensors))


def compilations() -> int:
    """The number of programs that this process has compiled."""
    data = metrics.metric_data("CompileTime")
    return data[0] if data else 0
