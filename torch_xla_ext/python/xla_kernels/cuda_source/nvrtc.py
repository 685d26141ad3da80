"""Find NVRTC, NVIDIA's run-time compiler for CUDA C++, and compile with it."""

import ctypes
import functools
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from xla_kernels.plugin import discovery

LIBRARY_VARIABLE = "TORCH_XLA_EXT_NVRTC"
# The folders of NVIDIA's pip packages with the library, and with CUDA's headers.
_PACKAGES = {12: "nvidia/cuda_nvrtc", 13: "nvidia/cu13"}
_HEADERS = {
    12: ("nvidia/cuda_runtime/include", "nvidia/cuda_cccl/include"),
    13: ("nvidia/cu13/include",),
}
_TOOLKIT_LIBRARIES = ("lib64", "targets/x86_64-linux/lib")
_TOOLKIT_HEADERS = ("include", "targets/x86_64-linux/include")
_lock = threading.Lock()


class CompilationError(RuntimeError):
    """The compiler rejected the source; the text has the compiler's messages and source lines."""


class MissingError(RuntimeError, ImportError):
    """NVRTC is not installed; the text says how to install it."""


@dataclass(frozen=True)
class Compiled:
    """A compiled program.

    Attributes:
        module: a cubin, or the text of PTX.
        names: the functions' names in the module, by the expressions that name them.
        log: the compiler's warnings.
    """

    module: bytes
    names: dict[str, str]
    log: str


class Nvrtc:
    """A loaded NVRTC library."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        self.path = path if "/" in path else _mapped_file(path)
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.version = (major.value, minor.value)

    @functools.cached_property
    def architectures(self) -> list[int]:
        """The compute capabilities that NVRTC compiles for, 90 for 9.0."""
        count = ctypes.c_int()
        self._call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        numbers = (ctypes.c_int * count.value)()
        self._call("nvrtcGetSupportedArchs", numbers)
        return sorted(numbers)

    def compile(
        self,
        source: str,
        file: str,
        options: Sequence[str],
        expressions: Sequence[str],
        headers: Mapping[str, str],
        ptx: bool = False,
    ) -> Compiled:
        """Compile a program.

        Args:
            source: the text.
            file: the source's name in messages.
            options: NVRTC's options, including -arch.
            expressions: name expressions of the functions to compile.
            headers: texts of headers that are not files, by the names with which they are included.
            ptx: whether to return PTX, which is for an architecture compute_XX.

        Raises:
            CompilationError: the program does not compile, or has no such function.
        """
        program = ctypes.c_void_p()
        names = (ctypes.c_char_p * len(headers))(*(name.encode() for name in headers))
        texts = (ctypes.c_char_p * len(headers))(*(text.encode() for text in headers.values()))
        self._call(
            "nvrtcCreateProgram",
            ctypes.byref(program),
            ctypes.c_char_p(source.encode()),
            ctypes.c_char_p(file.encode()),
            ctypes.c_int(len(headers)),
            texts,
            names,
        )
        try:
            for expression in expressions:
                self._call("nvrtcAddNameExpression", program, ctypes.c_char_p(expression.encode()))
            encoded = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            failed = self._library.nvrtcCompileProgram(program, len(options), encoded)
            log = self._text(program, "nvrtcGetProgramLog").decode(errors="replace").strip()
            if failed:
                raise CompilationError(log or f"NVRTC: {self._error(failed)}")
            lowered = {}
            for expression in expressions:
                name = ctypes.c_char_p()
                self._call(
                    "nvrtcGetLoweredName",
                    program,
                    ctypes.c_char_p(expression.encode()),
                    ctypes.byref(name),
                )
                lowered[expression] = name.value.decode()
            module = self._text(program, "nvrtcGetPTX" if ptx else "nvrtcGetCUBIN")
            return Compiled(module, lowered, log)
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def _text(self, program: ctypes.c_void_p, function: str) -> bytes:
        size = ctypes.c_size_t()
        self._call(function + "Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(max(size.value, 1))
        self._call(function, program, buffer)
        is_text = function != "nvrtcGetCUBIN"
        return buffer.raw.rstrip(b"\0") if is_text else buffer.raw

    def _call(self, function: str, *arguments: object) -> None:
        failed = getattr(self._library, function)(*arguments)
        if failed:
            raise RuntimeError(f"{function}: {self._error(failed)}")

    def _error(self, number: int) -> str:
        text = self._library.nvrtcGetErrorString
        text.restype = ctypes.c_char_p
        return text(number).decode()


def _mapped_file(name: str) -> str:
    """Return the path at which the dynamic loader found a library."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        file = line.split(maxsplit=5)[-1]
        if Path(file).name.startswith(name):
            return file
    return name


def _plugin_majors(system: discovery.System) -> list[int]:
    """Return CUDA's major versions, beginning with the plugin's."""
    plugins = [plugin.cuda_major for plugin in discovery.find_plugins(system)]
    torch_major = int(system.torch_cuda.split(".")[0]) if system.torch_cuda else None
    if torch_major in plugins:  # the chosen plugin (discovery.choose_plugin)
        plugins.insert(0, torch_major)
    order = [*plugins, torch_major, *sorted(_PACKAGES, reverse=True)]
    return list(dict.fromkeys(major for major in order if major in _PACKAGES))


def _toolkits(system: discovery.System) -> list[Path]:
    variables = [system.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    return [Path(folder) for folder in (*variables, *system.toolkit_folders) if folder]


def _candidates(system: discovery.System) -> Iterator[str]:
    for major in _plugin_majors(system):
        name = f"libnvrtc.so.{major}"
        for root in system.search_path:
            file = Path(root, _PACKAGES[major], "lib", name)
            if file.is_file():
                yield str(file)
        for toolkit in _toolkits(system):
            for folder in _TOOLKIT_LIBRARIES:
                if (toolkit / folder / name).is_file():
                    yield str(toolkit / folder / name)
        yield name


@functools.cache
def _load(path: str) -> Nvrtc:
    return Nvrtc(path)


def find(system: discovery.System | None = None) -> Nvrtc:
    """Return the NVRTC that the environment names, or else the one for the plugin's CUDA version.

    Raises:
        MissingError: NVRTC is not installed.
        RuntimeError: the environment names a file that is not NVRTC.
    """
    system = system or discovery.System.current()
    with _lock:
        if path := system.environ.get(LIBRARY_VARIABLE):
            try:
                return _load(path)
            except OSError as error:
                raise RuntimeError(
                    f"{LIBRARY_VARIABLE} does not name an NVRTC library: {error}"
                ) from None
        for path in _candidates(system):
            try:
                return _load(path)
            except OSError:
                continue
    major = _plugin_majors(system)[0]
    package = "nvidia-cuda-nvrtc-cu12" if major == 12 else "nvidia-cuda-nvrtc"
    raise MissingError(
        f"NVRTC, which compiles CUDA source, is not installed: pip install {package}, or set "
        f"{LIBRARY_VARIABLE} to the path of libnvrtc.so.{major}; or compile the kernel on another "
        "machine (CudaKernel.save)"
    )


def header_folders(nvrtc: Nvrtc) -> list[Path]:
    """Return the folders with CUDA's own headers: NVIDIA's pip packages, then a toolkit."""
    system = discovery.System.current()
    names = _HEADERS.get(nvrtc.version[0], ())
    folders = [Path(root, name) for root in system.search_path for name in names]
    toolkits = [Path(os.path.realpath(nvrtc.path)).parent.parent, *_toolkits(system)]
    folders += [toolkit / folder for toolkit in toolkits for folder in _TOOLKIT_HEADERS]
    # Since CUDA 13, CCCL's headers (cuda/std, CUB, and nv/target, which CUDA's headers include)
    # have a separate folder.
    both = [path for folder in folders for path in (folder, folder / "cccl") if path.is_dir()]
    real = {os.path.realpath(path): path for path in reversed(both)}
    return list(reversed(real.values()))
