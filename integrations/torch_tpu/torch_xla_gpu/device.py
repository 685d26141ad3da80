"""Bring up torch-tpu's device on XLA's plugin for CUDA or the CPU."""

import contextlib
import importlib.util
import io
import os
import threading
import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch_xla_gpu_versions as versions

from torch_xla_gpu import front
from torch_xla_gpu.upstream_fixes import FIXES
from xla_kernels import client_create_options, replacement
from xla_kernels.plugin import discovery

# PyTorch's name of the device.
TYPE = "tpu"
# Otherwise XLA:CPU's minima and maxima ignore NaN, which PyTorch's propagate, and it leaves out
# roundings to 16 bits.
_EXACT_FLAGS = ("--xla_cpu_enable_fast_min_max", "--xla_allow_excess_precision")


class Device(NamedTuple):
    """The device's platform and plugin.

    Attributes:
        platform: XLA's platform, "CUDA" or "Host".
        plugin: the path of the plugin.
        package: where the plugin comes from.
        remarks: by name, the CUDA driver and libraries that were found.
    """

    platform: str
    plugin: str
    package: str
    remarks: dict[str, str | None]


def api_version() -> tuple[int, int]:
    """Return the version of the PJRT API of the plugin."""
    return front.api_version()


_lock = threading.Lock()
_device: Device | None = None


def current() -> Device:
    """Return the device of this process, which `import torch_xla_gpu` has brought up."""
    if _device is None:
        raise RuntimeError("there is no device yet: import torch_xla_gpu first")
    return _device


def bring_up() -> Device:
    """Create the client and register the device with PyTorch; later calls do nothing.

    Environment:
        PJRT_DEVICE: CPU or CUDA; by default CUDA if there is a plugin or a driver for it.
        TORCH_XLA_EXT_PJRT_PLUGIN: the path of the plugin, in place of an installed package's.

    Raises:
        PluginError: the client cannot be created. CudaRuntimeError: a part of CUDA is missing.
        ValueError: PJRT_DEVICE is neither CPU nor CUDA.
    """
    global _device
    with _lock:
        if _device is None:
            # PyTorch imports torch-tpu, which aborts the process if it finds no library with this
            # name.
            os.environ["TPU_LIBRARY_PATH"] = str(front.PATH)
            found = find()
            front.load(found.plugin)
            front.create_client(_options(found))
            replacement.install(FIXES)
            _load_front_end()
            _install_fixes(found)
            _device = found
        return _device


def find() -> Device:
    """Find the plugin and its requirements."""
    chosen = os.environ.get("PJRT_DEVICE") or ("CUDA" if _has_cuda() else "CPU")
    if chosen == "CPU":
        return _find_cpu()
    if chosen == "CUDA":
        return _find_cuda()
    raise ValueError(f"PJRT_DEVICE must be CPU or CUDA, but is {chosen!r}")


def _has_cuda() -> bool:
    system = discovery.System.current()
    if discovery.find_plugins(system):
        return True
    try:
        system.load_library("libcuda.so.1")
    except OSError:
        return False
    return True


def _find_cpu() -> Device:
    flags = os.environ.get("XLA_FLAGS", "")
    added = [f"{flag}=false" for flag in _EXACT_FLAGS if flag not in flags]
    os.environ["XLA_FLAGS"] = " ".join([flags, *added]).strip()
    if path := os.environ.get(discovery.PLUGIN_VARIABLE):
        return Device("Host", path, f"from {discovery.PLUGIN_VARIABLE}", {})
    if importlib.util.find_spec("lammps_jax_pjrt_cpu") is None:
        raise front.PluginError(
            "no PJRT plugin for the CPU: pip install --no-deps "
            f"lammps-jax-pjrt-cpu=={versions.CPU_PLUGIN}, or set {discovery.PLUGIN_VARIABLE}"
        )
    from lammps_jax_pjrt_cpu import PLUGIN_PATH

    version = versions.installed("lammps-jax-pjrt-cpu")
    return Device("Host", str(PLUGIN_PATH), f"lammps-jax-pjrt-cpu {version}", {})


def _find_cuda() -> Device:
    runtime = discovery.prepare(discovery.System.current())
    remarks = {
        "driver": runtime.driver.text,
        "cuDNN": runtime.cudnn_version,
        "CUDA data": runtime.data_dir,
        **runtime.libraries,
    }
    return Device("CUDA", runtime.plugin.path, runtime.plugin.package, remarks)


def _options(found: Device) -> dict[str, object]:
    if found.platform == "Host":
        # The plugin's own number is 4; torch-tpu uses one in a process.
        return {"cpu_device_count": 1}
    options = client_create_options(os.environ)
    # torch-tpu uses one device in a process, so others must not take part of its memory.
    return {"visible_devices": [0], "preallocate": False, **options}


def device_count(original: Callable[[], int]) -> Callable[[], int]:
    """Replace torch-tpu's count of TPUs."""
    return lambda: 1


def _load_front_end() -> None:
    """Import torch-tpu, which loads our library where it looks for a TPU's."""
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        from torch_tpu import _loader

        _loader.load()


def _install_fixes(found: Device) -> None:
    from torch_xla_gpu.upstream_fixes import attention, checks, on_cpu

    with warnings.catch_warnings():  # warnings about kernels that replace torch-tpu's
        warnings.filterwarnings("ignore", "(?s).*Overriding a previously registered kernel")
        attention.install(found.platform)
        checks.install()
        on_cpu.install(found.platform)
