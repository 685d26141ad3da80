"""Choose the build, in the layout of Hugging Face's `kernels`, that fits this process.

The layout is that of its "kernel requirements": ``build/<variant>/``, with Python code and a shared
library, where the variant names the framework and platform: ``torch28-cxx11-cu128-x86_64-linux``,
``torch-stable-abi28-cpu-x86_64-linux``, ``tvm-ffi01-cu128-x86_64-linux``, or ``torch-cuda`` and
``torch-universal`` for builds with only Python code.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata

import torch

from xla_kernels.plugin import driver

_PATTERN = re.compile(
    r"(?:torch-stable-abi(?P<stable>\d+)|torch(?P<torch>\d+)(?:-(?P<abi>cxx\d+))?"
    r"|tvm-ffi(?P<tvm>\d+)|torch)"
    r"-(?P<backend>[a-z]+)(?P<version>\d*)(?:-(?P<cpu>\w+)-(?P<os>\w+))?"
)
_TVM_FFI = "apache-tvm-ffi"


@dataclass(frozen=True)
class System:
    """The versions that a build must fit.

    Attributes:
        torch, tvm_ffi: major and minor version; None for a package that is not installed.
        cuda: the CUDA version of PyTorch; None if PyTorch cannot use GPUs.
        driver_cuda: the newest CUDA version that the driver supports; None if XLA's device is not a
            GPU.
    """

    torch: tuple[int, int]
    tvm_ffi: tuple[int, int] | None
    cuda: tuple[int, int] | None
    driver_cuda: tuple[int, int] | None
    has_new_abi: bool = True
    cpu: str = "x86_64"
    os: str = "linux"

    @staticmethod
    def current(xla_platform: str) -> System:
        """Describe this process, for XLA's platform "Host" or "CUDA"."""
        on_gpu = xla_platform == "CUDA"
        try:
            tvm_ffi = _two(metadata.version(_TVM_FFI))
        except metadata.PackageNotFoundError:
            tvm_ffi = None
        has_cuda = on_gpu and torch.version.cuda and torch.cuda.is_available()
        return System(
            torch=_two(torch.__version__),
            tvm_ffi=tvm_ffi,
            cuda=_two(torch.version.cuda) if has_cuda else None,
            driver_cuda=driver.cuda_version() if on_gpu else None,
            has_new_abi=torch.compiled_with_cxx11_abi(),
            cpu=platform.machine(),
            os=platform.system().lower(),
        )


@dataclass(frozen=True)
class Variant:
    """A build, described by its name.

    Attributes:
        framework: "torch-stable-abi", "torch" or "tvm-ffi", with a version; or "python".
        version: the framework's version.
        backend: "cuda", "cpu", "universal", or another one.
        cuda: the CUDA version.
    """

    name: str
    framework: str
    version: tuple[int, int] | None
    abi: str | None
    backend: str
    cuda: tuple[int, int] | None
    cpu: str | None
    os: str | None

    @staticmethod
    def parse(name: str) -> Variant | None:
        """Parse the name of a variant; return None if it is not one."""
        match = _PATTERN.fullmatch(name)
        if match is None:
            return None
        framework, digits = "python", None
        for key, text in (("stable", "torch-stable-abi"), ("torch", "torch"), ("tvm", "tvm-ffi")):
            if match[key] is not None:
                framework, digits = text, match[key]
        if (framework == "python") != (match["cpu"] is None):
            return None
        backend = {"cu": "cuda"}.get(match["backend"], match["backend"])
        cuda = match["version"] if match["backend"] == "cu" else None
        return Variant(
            name=name,
            framework=framework,
            version=digits and (int(digits[0]), int(digits[1:] or 0)),
            abi=match["abi"],
            backend=backend,
            cuda=cuda and (int(cuda[:-1]), int(cuda[-1])),
            cpu=match["cpu"],
            os=match["os"],
        )

    def why_not(self, system: System) -> str | None:
        """Return why this build does not fit; None if it does."""
        on_gpu = system.driver_cuda is not None
        wanted = "cuda" if on_gpu else "cpu"
        if self.backend not in (wanted, "universal"):
            return f"it is for {self.backend}, but XLA's device is {wanted}"
        if self.framework == "python":
            return None
        if (self.cpu, self.os) != (system.cpu, system.os):
            return f"this machine is {system.cpu}-{system.os}"
        return self._why_not_framework(system) or self._why_not_cuda(system)

    def _why_not_framework(self, system: System) -> str | None:
        if self.framework == "tvm-ffi":
            if system.tvm_ffi is None:
                return f"{_TVM_FFI} is not installed"
            if self.version != system.tvm_ffi:
                return f"{_TVM_FFI} {_text(system.tvm_ffi)} is installed"
            return None
        if self.framework == "torch-stable-abi":
            fits = self.version <= system.torch
        else:
            fits = self.version == system.torch
        if not fits:
            return f"torch is {_text(system.torch)}"
        if self.abi is not None and (self.abi == "cxx11") != system.has_new_abi:
            return "torch has another C++ ABI"
        return None

    def _why_not_cuda(self, system: System) -> str | None:
        if self.cuda is None:
            return None
        if self.framework == "tvm-ffi":  # it brings its own CUDA
            if self.cuda > system.driver_cuda:
                return f"the driver is for CUDA {_text(system.driver_cuda)}"
            return None
        if system.cuda is None:
            return "this process's torch cannot use CUDA"
        if self.cuda[0] != system.cuda[0] or self.cuda[1] > system.cuda[1]:
            return f"torch is for CUDA {_text(system.cuda)}"
        return None

    @property
    def preference(self) -> tuple[object, ...]:
        """Sort key: the greatest is the build that Hugging Face's package `kernels` prefers."""
        order = ("python", "tvm-ffi", "torch", "torch-stable-abi").index(self.framework)
        return (
            order,
            self.version if self.framework == "torch-stable-abi" else (),
            self.abi is None,
            self.cuda or (),
            self.backend != "universal",
        )


def choose(
    names: Sequence[str], system: System, frameworks: Sequence[str] | None = None
) -> tuple[Variant | None, dict[str, str]]:
    """Return the best variant that fits, and why the others do not.

    Args:
        frameworks: the requested ones; None for all.
    """
    fitting, refused = [], {}
    for name in names:
        variant = Variant.parse(name)
        if variant is None:
            refused[name] = "it is not the name of a variant"
        elif frameworks is not None and variant.framework not in frameworks:
            refused[name] = f"it is not for {' or '.join(frameworks)}"
        elif (reason := variant.why_not(system)) is not None:
            refused[name] = reason
        else:
            fitting.append(variant)
    return max(fitting, key=lambda each: each.preference, default=None), refused


def _two(version: str) -> tuple[int, int]:
    return tuple(int(each) for each in re.findall(r"\d+", version)[:2])


def _text(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
