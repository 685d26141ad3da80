"""``python -m torch_xla_ext doctor`` reports installed and missing parts, and runs a self-test."""

import importlib.metadata
import platform
import re
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

import torch
import torch_xla

from torch_xla_ext import ops
from torch_xla_ext.registry.platforms import platform_of
from torch_xla_ext.registry.registration import registered_targets
from xla_kernels import replacement
from xla_kernels.cuda_source import nvrtc
from xla_kernels.plugin import discovery
from xla_kernels.plugin.errors import CudaRuntimeError, CudaRuntimeWarning


@dataclass
class Report:
    """The findings of doctor. `problems` is empty if everything that should work does."""

    device_type: str
    chosen_by: str
    platform: str
    versions: dict[str, str | None]
    cuda: dict[str, object] | None = None
    devices: list[str] = field(default_factory=list)
    targets: list[dict[str, str]] = field(default_factory=list)
    fixes: list[dict[str, object]] = field(default_factory=list)
    self_test: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems

    def to_dict(self) -> dict[str, object]:
        return {"ok": self.ok, **asdict(self)}

    def text(self) -> str:
        lines = [
            f"{name:<14}{version or 'not installed'}" for name, version in self.versions.items()
        ]
        lines.append(f"{'PJRT_DEVICE':<14}{self.device_type} ({self.chosen_by})")
        lines.append(f'{"platform":<14}"{self.platform}": register targets for it')
        for name, value in (self.cuda or {}).items():
            if isinstance(value, dict):
                lines.append(name)
                lines += [f"  {key:<20}{entry or 'not found'}" for key, entry in value.items()]
            else:
                lines.append(f"{name:<14}{value or 'not found'}")
        lines += [f"{'device':<14}{device}" for device in self.devices]
        names = {target["name"] for target in self.targets}
        lines.append(f"{'targets':<14}{len(names)}; python -m torch_xla_ext targets lists them")
        lines.append(
            f"{'fixes':<14}{len(self.fixes)}; {replacement.WITHOUT_ENVIRONMENT}=name leaves one out"
        )
        lines += [
            "  {libraries:<16}{attributes} ({name}): {reason}".format(**fix) for fix in self.fixes
        ]
        lines += [f"{'self-test':<14}{device}: {text}" for device, text in self.self_test.items()]
        lines += [f"{'warning':<14}{text}" for text in self.warnings]
        lines += [f"{'PROBLEM':<14}{text}" for text in self.problems]
        lines.append("all works" if self.ok else f"{len(self.problems)} problem(s)")
        return "\n".join(lines)


def targets() -> list[dict[str, str]]:
    """Return the custom-call targets of this process, and their functions."""
    return [{**target._asdict(), "function": target.function} for target in registered_targets()]


def fixes() -> list[dict[str, object]]:
    """Return the functions of other libraries that are replaced, one row for each reason."""
    rows = []
    for fix, names in replacement.active():
        holder = names[0].rpartition(".")[0]
        # Functions of one module or class are listed after its name.
        attributes = ", ".join([names[0], *(n.removeprefix(f"{holder}.") for n in names[1:])])
        row = {"name": fix.name, "libraries": ", ".join(fix.libraries), "attributes": attributes}
        rows.append(row | {key: getattr(fix, key) for key in ("versions", "reason", "test")})
    return rows


def untested_versions() -> list[str]:
    """Return a sentence for each installed library with a version that its fixes are not for."""
    names: dict[tuple[str, ...], list[str]] = {}
    for fix in replacement.installed():
        for library, first, last in re.findall(
            r"(\S+) ([\d.]+)(?: to ([\d.]+))?(?:, |$)", fix.versions
        ):
            names.setdefault((library, first, last or first), []).append(fix.name)
    found = []
    for (library, first, last), fixes in names.items():
        try:
            version = importlib.metadata.version(library)
        except importlib.metadata.PackageNotFoundError:
            continue
        if not _numbers(first) <= _numbers(version) <= _numbers(last):
            text = first if first == last else f"{first} to {last}"
            major, minor = _numbers(last)
            found.append(
                f"{library} {version}: fixes ({', '.join(fixes)}) are for {text} and may "
                f'have nothing to replace; pip install "{library}>={first},<{major}.{minor + 1}"'
            )
    return found


def _numbers(version: str) -> tuple[int, int]:
    major, minor = re.findall(r"\d+", f"{version}.0")[:2]
    return int(major), int(minor)


def default_device_type(
    initial: dict[str, str], system: discovery.System, has_driver: Callable[[], bool]
) -> str:
    """Return PJRT_DEVICE: the user's choice, else CUDA on a machine with CUDA.

    Args:
        initial: the environment with which the process was started; since then, torch_xla's import
            may have set PJRT_DEVICE.
        system: where to look for plugins.
        has_driver: whether there is an NVIDIA driver.
    """
    if chosen := initial.get("PJRT_DEVICE"):
        return chosen
    if initial.get(discovery.PLUGIN_VARIABLE) or discovery.find_plugins(system) or has_driver():
        return "CUDA"
    return "CPU"


def has_driver(system: discovery.System) -> bool:
    try:
        system.load_library("libcuda.so.1")
    except OSError:
        return False
    return True


def compiled_for(version: str) -> str:
    """Describe the GPUs for which a wheel with this version has kernels.

    The version names the architectures if they are not the default: 2.8.1+gpucc2.sm90.f5d0d066.
    """
    archs = re.findall(r"[.]sm(\d+[af]?)", version)
    if not archs:
        return "GPUs of compute capability 8.0 and later"
    listed = ", ".join(f"sm_{arch}" for arch in archs)
    # Only an architecture without a suffix is also kept as PTX, for later GPUs.
    later = " and later ones" if any(arch.isdigit() for arch in archs) else " only"
    return f"{listed}{later}: built with --//bazel/cuda:archs={','.join(archs)}"


def _check_cuda(report: Report, system: discovery.System) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CudaRuntimeWarning)
        runtime = discovery.prepare(system)
    report.warnings += [str(w.message) for w in caught if w.category is CudaRuntimeWarning]
    major, minor = torch_xla._XLAC._xla_load_pjrt_plugin(runtime.plugin.path)
    report.cuda = {
        "plugin": f"{runtime.plugin.package} ({runtime.plugin.path})",
        "PJRT API": f"{major}.{minor}",
        "GPU driver": runtime.driver.text.removeprefix("driver "),
        "cuDNN": runtime.cudnn_version,
        "CUDA toolkit": runtime.data_dir,
        "libraries": runtime.libraries,
    }
    if runtime.data_dir is None:
        report.warnings.append(
            "no folder with nvvm/libdevice found: some math functions may not compile; "
            f"pip install nvidia-{'nvvm' if runtime.plugin.cuda_major == 13 else 'cuda-nvcc-cu12'}"
        )


def _nvrtc(system: discovery.System) -> str | None:
    """Describe NVRTC, which compiles the kernels of cuda_kernel, and checks them on the CPU."""
    try:
        found = nvrtc.find(system)
    except RuntimeError:
        return None
    return f"{'.'.join(map(str, found.version))} ({found.path})"


def _self_test(device: str) -> None:
    """Run the kernel XlaGpuSimpleAdd on `device` and compare its result with torch's."""
    a = torch.arange(1000, dtype=torch.float32)
    b = torch.full((1000,), 0.5)
    result = ops.simple_add(a.to(device), b.to(device)).cpu()
    if not torch.equal(result, a + b):
        raise RuntimeError(
            f"wrong result: {result[:4].tolist()}… instead of {(a + b)[:4].tolist()}…"
        )


def examine(device_type: str, chosen_by: str, system: discovery.System) -> Report:
    """Collect the report; this creates torch_xla's client, which a process has only once.

    Args:
        chosen_by: how the device type was chosen, for the report.
    """
    report = Report(
        device_type=device_type,
        chosen_by=chosen_by,
        platform=platform_of(device_type) or device_type,
        versions={
            "Python": platform.python_version(),
            "torch": torch.__version__,
            "torch_xla": torch_xla.__version__,
            "NVRTC": _nvrtc(system),
            "kernels": f"for {compiled_for(torch_xla.__version__)}",
            "system": platform.platform(),
        },
    )
    system.environ["PJRT_DEVICE"] = device_type
    try:
        if device_type == "CUDA":
            _check_cuda(report, system)
        report.devices = torch_xla._XLAC._xla_get_devices()
    except (CudaRuntimeError, RuntimeError) as error:
        report.problems.append(str(error))
    report.targets = targets()
    report.fixes = fixes()
    report.warnings += untested_versions()
    for index, _ in enumerate(report.devices):
        device = f"xla:{index}"
        try:
            _self_test(device)
            report.self_test[device] = f"{ops.simple_add.__name__} works"
        except Exception as error:  # the user wants to see any error
            report.self_test[device] = f"failed: {error}"
            report.problems.append(f"self-test on {device}: {error}")
    if not report.devices and not report.problems:
        report.problems.append(f"PJRT_DEVICE={device_type} has no devices")
    return report


def initial_environment() -> dict[str, str]:
    """Return the environment with which this process was started."""
    with open("/proc/self/environ", "rb") as file:
        entries = file.read().decode(errors="surrogateescape").split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def run(device_type: str | None) -> Report:
    """Make the report for `device_type`, by default that of the machine's device."""
    system = discovery.System.current()
    if device_type is not None:
        return examine(device_type, "by --device", system)
    initial = initial_environment()
    device_type = default_device_type(initial, system, lambda: has_driver(system))
    chosen_by = "by the environment"
    if not initial.get("PJRT_DEVICE"):
        found = "is an NVIDIA driver or a PJRT plugin for CUDA"
        if device_type != "CUDA":
            found = "is no NVIDIA driver and no PJRT plugin for CUDA"
        chosen_by = f"not set; there {found} on this machine"
    return examine(device_type, chosen_by, system)
