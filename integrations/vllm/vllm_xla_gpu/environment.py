"""Check that the environment has matching vLLM and torch_xla, and a plugin for the GPUs.

install.py imports this module before vLLM and torch are installed.
"""

import importlib.metadata
import importlib.util
import os
from collections.abc import Mapping

from vllm_xla_gpu.limits import UnsupportedError

VLLM_VERSION = "0.11.0"  # the last one for torch 2.8.0
TORCH_XLA_VERSION = "2.8.1"  # of the wheel that has the operators
_VLLM_PACKAGES = ("vllm", "vllm-tpu")  # packages with the module `vllm`


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def installed() -> dict[str, str]:
    """Return the versions of vLLM in this environment, by package name."""
    versions = {package: _version(package) for package in _VLLM_PACKAGES}
    return {package: version for package, version in versions.items() if version is not None}


def unserved(found: Mapping[str, str]) -> str | None:
    """Return why the packages that `installed` found are unsupported, or None."""
    public = {package: version.split("+")[0] for package, version in found.items()}
    if public == {"vllm": VLLM_VERSION}:
        return None
    names = " and ".join(f"{package} {version}" for package, version in found.items())
    return f"vllm-xla-gpu is for vllm {VLLM_VERSION}, but this environment has {names or 'none'}"


def check_packages() -> None:
    """Check the versions: other vLLMs have different classes, other torch_xlas lack the kernels."""
    if reason := unserved(installed()):
        raise UnsupportedError(
            f"{reason}; run `python integrations/vllm/install.py` in an environment without vLLM"
        )
    torch_xla = _version("torch_xla") or "none"
    has_operators = importlib.util.find_spec("torch_xla_ext") is not None
    if torch_xla.split("+")[0] != TORCH_XLA_VERSION or not has_operators:
        raise UnsupportedError(
            f"vllm-xla-gpu needs torch_xla {TORCH_XLA_VERSION} with the package torch_xla_ext, but "
            f"this environment has torch_xla {torch_xla}"
            + ("" if has_operators else " without it")
            + "; install the wheel that `./bazelw build //:wheel` makes"
        )


def check_device() -> None:
    """Check for the plugin and driver that PJRT_DEVICE=CUDA needs, without a client.

    Raises:
        xla_kernels.plugin.errors.CudaRuntimeError: one is missing; the message has the remedy.
    """
    if os.environ.get("PJRT_DEVICE") != "CUDA":
        return
    from xla_kernels.plugin import discovery

    system = discovery.System.current()
    plugins = discovery.find_plugins(system)
    discovery.choose_plugin(plugins, discovery.find_driver(system), system.torch_cuda)
