"""Find a PJRT CUDA plugin, the driver and the CUDA libraries, and report what is missing.

All access to the machine goes through `System`, so that tests can simulate other machines.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path

from xla_kernels.plugin.errors import CudaRuntimeError, CudaRuntimeWarning
from xla_kernels.plugin.options import Processes

PLUGIN_VARIABLE = "TORCH_XLA_EXT_PJRT_PLUGIN"
# The flags that this process has added to XLA_FLAGS. A child process removes them, because the XLA
# that it uses may not know them, and would abort it (also csrc/runtime_fixes/compiler_flags.cc).
_ADDED_VARIABLE = "TORCH_XLA_EXT_ADDED_XLA_FLAGS"
_DATA_DIR_FLAG = "--xla_gpu_cuda_data_dir"
# A pass that fuses slices into FFI custom calls. It fails to compile a call that writes to two
# slices of one tensor ("A cycle is detected", with plugin 0.11.2).
_SLICE_FUSION_FLAG = "--xla_gpu_enable_dynamic_slice_fusion"
# With this flag, XLA leaves out conversions to 16 bits and back: x - x.bfloat16().float() is 0, and
# results are rounded otherwise than PyTorch's. A training step and a decoding step of Llama take as
# long without it (H200, 2026-11-30).
_EXCESS_PRECISION_FLAG = "--xla_allow_excess_precision"
# Options of LLVM. By default, XLA divides float32 with div.full, which is up to 2 units in the last
# place off; with 2, by IEEE 754, as PyTorch does.
_LLVM_FLAG = "--xla_backend_extra_options"
_EXACT_DIVISION = "-nvptx-prec-divf32=2"
# With this flag, processes divide the autotuning of a program, and each waits for the others'
# results. If their programs differ, they wait forever. Programs of torch_xla's processes may differ
# (one evaluates, or its rank is a constant), except under SPMD.
_SHARED_AUTOTUNING_FLAG = "--xla_gpu_shard_autotuning"
# Let collectives have several kernels beside them, not one: a collective that starts together with
# a large product finds no free multiprocessor until that product ends.
_COLLECTIVES_FLAGS = {
    "--xla_gpu_experimental_parallel_collective_overlap_limit": "4",
    "--xla_gpu_experimental_collective_start_as_early_as_possible": "true",
}

# The CUDA major versions for which JAX has plugins, the newest first.
_CUDA_MAJORS = (13, 12)
# The first NVIDIA driver for each CUDA major version.
_MINIMUM_DRIVER = {12: "525", 13: "580"}
_CUDNN_MAJOR = 9

# The libraries that XLA loads, each after those that it needs: NVIDIA's pip package, without its
# prefix and suffix, the library, and the library's version for CUDA 12 and for CUDA 13.
_LIBRARIES = (
    ("cuda_runtime", "cudart", 12, 13),
    ("cuda_nvrtc", "nvrtc", 12, 13),
    ("nvjitlink", "nvJitLink", 12, 13),
    ("cublas", "cublasLt", 12, 13),
    ("cublas", "cublas", 12, 13),
    ("nccl", "nccl", 2, 2),
    ("cuda_cupti", "cupti", 12, 13),
    ("cusparse", "cusparse", 12, 12),
    ("cusolver", "cusolver", 11, 12),
    ("cufft", "cufft", 11, 12),
    ("cudnn", "cudnn", 9, 9),
)
# Packages with a suffix and a folder of their own for CUDA 13, too.
_SEPARATE = ("nccl", "cudnn")
# The folders of pip packages with ptxas and libdevice.
_COMPILER_FOLDERS = {12: "nvidia/cuda_nvcc", 13: "nvidia/cu13"}

_CUDA_ERROR_NOT_INITIALIZED = 3  # returned by cuInit after a fork
_CUDA_ERROR_NO_DEVICE = 100


def _load_library(name: str) -> ctypes.CDLL:
    # Not RTLD_GLOBAL: XLA finds a loaded library by its name, and torch has its own libraries.
    return ctypes.CDLL(name)


@dataclass
class System:
    """The machine and the process, as discovery accesses them."""

    environ: MutableMapping[str, str]
    # Folders that are searched for Python packages.
    search_path: list[str]
    # The CUDA version for which torch was built; None for a torch without CUDA.
    torch_cuda: str | None
    # Loads a library by path or name; OSError if it cannot be loaded.
    load_library: Callable[[str], ctypes.CDLL] = _load_library
    # Folders in which a CUDA toolkit may be installed.
    toolkit_folders: tuple[str, ...] = ("/usr/local/cuda", "/opt/cuda")

    @classmethod
    def current(cls) -> System:
        import torch

        return cls(
            environ=os.environ,
            search_path=[entry or str(Path.cwd()) for entry in sys.path],
            torch_cuda=torch.version.cuda,
        )


@dataclass(frozen=True)
class Plugin:
    """A PJRT plugin that was found on the machine."""

    path: str
    # The CUDA major version in the name of its folder or package; None if neither has one.
    cuda_major: int | None
    # "jax-cuda13-pjrt 0.11.2", or a description of its origin.
    package: str


@dataclass(frozen=True)
class Driver:
    """The installed NVIDIA driver, and how many GPUs it finds."""

    # The newest CUDA that it supports.
    cuda_version: tuple[int, int]
    # Its own version, such as 580.159.04; None if the management library is missing.
    version: str | None
    device_count: int

    @property
    def text(self) -> str:
        major, minor = self.cuda_version
        return f"driver {self.version or 'of unknown version'} for CUDA {major}.{minor}"


@dataclass(frozen=True)
class Runtime:
    """The plugin, driver and libraries of a CUDA client."""

    plugin: Plugin
    driver: Driver
    # Library name: where it was loaded from, None if it was not found.
    libraries: dict[str, str | None] = field(default_factory=dict)
    cudnn_version: str | None = None
    # The folder with nvvm/libdevice, None if none was found.
    data_dir: str | None = None


def _package_roots(system: System, plugin_path: str | None = None) -> Iterator[Path]:
    """Yield the folders with Python packages, starting with the plugin's."""
    if plugin_path is not None:
        parents = Path(plugin_path).resolve().parents
        if len(parents) > 2 and parents[1].name == "jax_plugins":
            yield parents[2]
    yield from map(Path, system.search_path)


def _package(root: Path, major: int) -> str:
    name = f"jax_cuda{major}_pjrt"
    for folder in root.glob(f"{name}-*.dist-info"):
        version = folder.name.removeprefix(f"{name}-").removesuffix(".dist-info")
        return f"jax-cuda{major}-pjrt {version}"
    return f"jax-cuda{major}-pjrt"


def find_plugins(system: System) -> list[Plugin]:
    """Return the PJRT plugin that the environment names, or else all installed ones.

    Raises:
        CudaRuntimeError: the environment names a file that does not exist.
    """
    path = system.environ.get(PLUGIN_VARIABLE)
    if path:
        if not Path(path).is_file():
            raise CudaRuntimeError(
                f"{PLUGIN_VARIABLE} names a PJRT plugin that does not exist: {path}; set it to the "
                "plugin's file, or unset it to use an installed jax-cuda12-pjrt or jax-cuda13-pjrt"
            )
        match = re.search(r"cuda(\d\d)", Path(path).parent.name)
        return [Plugin(path, int(match[1]) if match else None, f"from {PLUGIN_VARIABLE}")]
    plugins = {}
    for root in _package_roots(system):
        for major in _CUDA_MAJORS:
            file = root / "jax_plugins" / f"xla_cuda{major}" / "xla_cuda_plugin.so"
            if major not in plugins and file.is_file():
                plugins[major] = Plugin(str(file), major, _package(root, major))
    return [plugins[major] for major in sorted(plugins, reverse=True)]


def _driver_version(system: System) -> str | None:
    try:
        nvml = system.load_library("libnvidia-ml.so.1")
        text = ctypes.create_string_buffer(96)
        if nvml.nvmlInit_v2() or nvml.nvmlSystemGetDriverVersion(text, len(text)):
            return None
    except (OSError, AttributeError):
        return None
    return text.value.decode()


def find_driver(system: System) -> Driver:
    """Return the NVIDIA driver's version, the CUDA version that it supports and its GPU count.

    Raises:
        CudaRuntimeError: there is no driver, it does not work, or it finds no GPU.
    """
    try:
        cuda = system.load_library("libcuda.so.1")
    except OSError as error:
        raise CudaRuntimeError(
            f"no NVIDIA driver: libcuda.so.1 cannot be loaded ({error}); install the NVIDIA driver "
            "(in a container, start it with the NVIDIA runtime: docker run --gpus all), or set "
            "PJRT_DEVICE=CPU"
        ) from None
    number = ctypes.c_int()
    version = _driver_version(system)
    if cuda.cuDriverGetVersion(ctypes.byref(number)):
        number.value = 0
    cuda_version = (number.value // 1000, number.value % 1000 // 10)
    result = cuda.cuInit(0)
    count = ctypes.c_int()
    if result == 0:
        result = cuda.cuDeviceGetCount(ctypes.byref(count))
    driver = Driver(cuda_version, version, count.value)
    if result == _CUDA_ERROR_NO_DEVICE or (result == 0 and count.value == 0):
        visible = system.environ.get("CUDA_VISIBLE_DEVICES")
        reason = "" if visible is None else f" (CUDA_VISIBLE_DEVICES is {visible!r})"
        raise CudaRuntimeError(
            f"no GPU: the NVIDIA {driver.text} finds no CUDA device{reason}; see what nvidia-smi "
            "shows, unset CUDA_VISIBLE_DEVICES, or set PJRT_DEVICE=CPU"
        )
    if result == _CUDA_ERROR_NOT_INITIALIZED:
        raise CudaRuntimeError(
            "CUDA cannot be used in this process, because it was forked from one that had used "
            'CUDA; start it by spawn, as in multiprocessing.get_context("spawn")'
        )
    if result:
        raise CudaRuntimeError(
            f"the NVIDIA {driver.text} does not work: cuInit returns error {result}; see what "
            "nvidia-smi shows and reinstall the driver, or set PJRT_DEVICE=CPU"
        )
    return driver


def choose_plugin(plugins: list[Plugin], driver: Driver, torch_cuda: str | None) -> Plugin:
    """Return the plugin to use, among those that the driver supports.

    torch has already loaded its own CUDA libraries into the process, so a plugin for the same CUDA
    major version is preferred; otherwise the newest plugin.

    Raises:
        CudaRuntimeError: there is no plugin that the driver supports.
    """
    if not plugins:
        major = 13 if driver.cuda_version >= (13, 0) else 12
        raise CudaRuntimeError(
            "no PJRT CUDA plugin: neither jax-cuda13-pjrt nor jax-cuda12-pjrt is installed, and "
            f"{PLUGIN_VARIABLE} is not set; for the {driver.text}: pip install jax-cuda{major}-pjrt"
        )
    usable = [p for p in plugins if p.cuda_major is None or p.cuda_major <= driver.cuda_version[0]]
    if not usable:
        needed = min(p.cuda_major for p in plugins if p.cuda_major is not None)
        remedy = f"update the driver to {_MINIMUM_DRIVER.get(needed, 'a newer one')} or newer"
        if driver.cuda_version >= (12, 0):
            remedy = f"pip install jax-cuda{driver.cuda_version[0]}-pjrt, or {remedy}"
        found = ", ".join(p.package for p in plugins)
        raise CudaRuntimeError(
            f"the driver is too old: found {found}, which needs a driver for CUDA {needed}.0, but "
            f"the machine has NVIDIA {driver.text}; {remedy}"
        )
    torch_major = int(torch_cuda.split(".")[0]) if torch_cuda else None
    return next((p for p in usable if p.cuda_major == torch_major), usable[0])


def _libraries(plugin: Plugin) -> Iterator[tuple[str, str, str]]:
    """Yield the pip package of each library, its folder, and the library's file name."""
    major = plugin.cuda_major or _CUDA_MAJORS[0]
    for package, library, *versions in _LIBRARIES if major in _CUDA_MAJORS else ():
        name = f"lib{library}.so.{versions[major - 12]}"
        if major == 12 or package in _SEPARATE:
            yield f"nvidia-{package.replace('_', '-')}-cu{major}", f"nvidia/{package}", name
        else:
            yield f"nvidia-{package.replace('_', '-')}", f"nvidia/cu{major}", name


def load_libraries(system: System, plugin: Plugin) -> dict[str, str | None]:
    """Load the CUDA libraries of the plugin's CUDA version, preferably from pip packages.

    When XLA later loads them by name, it receives the loaded ones.
    """
    loaded: dict[str, str | None] = {}
    for _, folder, name in _libraries(plugin):
        files = [root / folder / "lib" / name for root in _package_roots(system, plugin.path)]
        candidates = [str(file) for file in files if file.is_file()]
        loaded[name] = None
        for candidate in [*candidates, name]:
            try:
                system.load_library(candidate)
            except OSError:
                continue
            loaded[name] = candidate
            break
    return loaded


def missing_packages(libraries: dict[str, str | None], plugin: Plugin) -> str:
    """Return the pip packages of the libraries that were not found, for `pip install`."""
    missing = {name for name, path in libraries.items() if not path}
    return " ".join(sorted({package for package, _, name in _libraries(plugin) if name in missing}))


def warn_of_missing(libraries: dict[str, str | None], plugin: Plugin) -> None:
    """Warn about missing libraries that only some operations need."""
    missing = [name for name, path in libraries.items() if path is None]
    if missing:
        warnings.warn(
            f"CUDA libraries were not found: {', '.join(missing)}; operations that need them will "
            f"fail: pip install {missing_packages(libraries, plugin)}",
            CudaRuntimeWarning,
            stacklevel=2,
        )


def check_cudnn(system: System, plugin: Plugin) -> str:
    """Return the version of the cuDNN that XLA will load.

    Raises:
        CudaRuntimeError: no cuDNN has the major version that XLA needs.
    """
    cuda_major = plugin.cuda_major or _CUDA_MAJORS[0]
    remedy = f"pip install 'nvidia-cudnn-cu{cuda_major}>={_CUDNN_MAJOR}.8,<{_CUDNN_MAJOR + 1}'"
    name = f"libcudnn.so.{_CUDNN_MAJOR}"
    try:
        cudnn = system.load_library(name)
    except OSError as error:
        others = []
        for other in (_CUDNN_MAJOR - 1, _CUDNN_MAJOR + 1):
            try:
                system.load_library(f"libcudnn.so.{other}")
                others.append(str(other))
            except OSError:
                pass
        found = f"found cuDNN {', '.join(others)} instead" if others else f"{error}"
        raise CudaRuntimeError(
            f"cuDNN {_CUDNN_MAJOR} is missing: {name} was searched in the package nvidia.cudnn "
            f"and on the library path ({found}); {remedy}"
        ) from None
    cudnn.cudnnGetVersion.restype = ctypes.c_size_t
    cudnn.cudnnGetCudartVersion.restype = ctypes.c_size_t
    number = cudnn.cudnnGetVersion()
    version = f"{number // 10000}.{number // 100 % 100}.{number % 100}"
    if number // 10000 != _CUDNN_MAJOR:
        raise CudaRuntimeError(
            f"{name} is cuDNN {version}, but the plugin needs cuDNN {_CUDNN_MAJOR}; {remedy}"
        )
    built_for = cudnn.cudnnGetCudartVersion() // 1000
    if built_for != cuda_major:
        warnings.warn(
            f"cuDNN {version} in this process is built for CUDA {built_for}, but the plugin "
            f"{plugin.package} is for CUDA {cuda_major}; it may be torch's. If convolutions fail: "
            f"pip install jax-cuda{built_for}-pjrt, which is then preferred",
            CudaRuntimeWarning,
            stacklevel=2,
        )
    return version


def find_data_dir(system: System, plugin: Plugin) -> str | None:
    """Return the folder with ptxas and libdevice, for XLA's --xla_gpu_cuda_data_dir."""
    folder = _COMPILER_FOLDERS[plugin.cuda_major or _CUDA_MAJORS[0]]
    folders = [root / folder for root in _package_roots(system, plugin.path)]
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if system.environ.get(variable):
            folders.append(Path(system.environ[variable]))
    folders += map(Path, system.toolkit_folders)
    for candidate in folders:
        if (candidate / "nvvm" / "libdevice" / "libdevice.10.bc").is_file():
            return str(candidate)
    return None


def set_data_dir(system: System, data_dir: str | None) -> None:
    """Add --xla_gpu_cuda_data_dir to XLA_FLAGS, unless the user has set it there."""
    if data_dir is not None and _DATA_DIR_FLAG not in system.environ.get("XLA_FLAGS", ""):
        _add_flag(system, f"{_DATA_DIR_FLAG}={data_dir}")


def set_flags(system: System, plugin_path: str, flags: Mapping[str, str]) -> None:
    """Add flags with their values to XLA_FLAGS, except those that the user has set.

    Flags that this plugin does not know, and options of LLVM, are left out, too, because XLA would
    abort the process.
    """
    given = system.environ.get("XLA_FLAGS", "")
    flags = {flag: value for flag, value in flags.items() if flag not in given}
    path = Path(plugin_path)
    if not flags or not path.is_file():
        return
    # Reading takes a third of a second; searching a mapping of the file takes twice as long.
    content = path.read_bytes()
    for flag, value in flags.items():
        names = re.findall(r"(?:^|=)-+([^=]+)", f"{flag}={value}")
        if all(name.encode() + b"\0" in content for name in names):
            _add_flag(system, f"{flag}={value}")


def remove_inherited_flags(system: System) -> None:
    """Remove the flags that a parent process has added to XLA_FLAGS."""
    if added := system.environ.pop(_ADDED_VARIABLE, "").split():
        flags = system.environ.get("XLA_FLAGS", "").split()
        system.environ["XLA_FLAGS"] = " ".join(flag for flag in flags if flag not in added)


def _add_flag(system: System, flag: str) -> None:
    for variable in ("XLA_FLAGS", _ADDED_VARIABLE):
        system.environ[variable] = f"{system.environ.get(variable, '')} {flag}".strip()


def prepare(system: System, is_spmd: bool = False) -> Runtime:
    """Find and load everything that a CUDA client needs, except the plugin itself.

    Args:
        system: the machine.
        is_spmd: whether the processes, if there are several, run parts of the same programs.

    Raises:
        CudaRuntimeError: a component is missing, or has the wrong version.
    """
    remove_inherited_flags(system)
    plugins = find_plugins(system)
    driver = find_driver(system)
    plugin = choose_plugin(plugins, driver, system.torch_cuda)
    libraries = load_libraries(system, plugin)
    cudnn_version = check_cudnn(system, plugin)
    warn_of_missing(libraries, plugin)
    data_dir = find_data_dir(system, plugin)
    set_data_dir(system, data_dir)
    flags = {
        _SLICE_FUSION_FLAG: "false",
        _EXCESS_PRECISION_FLAG: "false",
        _LLVM_FLAG: _EXACT_DIVISION,
    } | _COLLECTIVES_FLAGS
    if Processes.from_environ(system.environ).count > 1 and not is_spmd:
        flags[_SHARED_AUTOTUNING_FLAG] = "false"
    set_flags(system, plugin.path, flags)
    return Runtime(plugin, driver, libraries, cudnn_version, data_dir)


def gpu_count(system: System) -> int:
    """Return GPU_NUM_DEVICES, else the number of visible GPUs; 1 if that is unknown.

    The driver is not asked, because a process that has called cuInit cannot fork.
    """
    if text := system.environ.get("GPU_NUM_DEVICES"):
        return int(text)
    visible = system.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return max(1, len([entry for entry in visible.split(",") if entry.strip()]))
    count = ctypes.c_uint(0)
    try:
        nvml = system.load_library("libnvidia-ml.so.1")
        if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            return 1
    except (OSError, AttributeError):
        return 1
    return max(1, count.value)
