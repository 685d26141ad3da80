"""Puts the package's wheel together: its own files, shared modules of torch_xla_ext, and libraries.

The modules of torch_xla_ext that need PyTorch alone are copied, as modules of torch_xla_gpu: the
package torch_xla_ext itself needs torch_xla, and with it another PyTorch.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import re
import tomllib
import zipfile
from pathlib import Path

# Modules of torch_xla_ext that import nothing but PyTorch and each other.
SHARED = (
    "custom_call/transforms.py",
    "plugin/__init__.py",
    "plugin/discovery.py",
    "plugin/driver.py",
    "plugin/errors.py",
    "plugin/options.py",
    "launchers/cuda_source/__init__.py",
    "launchers/cuda_source/binary.py",
    "launchers/cuda_source/cache.py",
    "launchers/cuda_source/kernel_calls.py",
    "launchers/cuda_source/machine_code.py",
    "launchers/cuda_source/compiler.py",
    "launchers/cuda_source/configuration.py",
    "launchers/cuda_source/cpp_types.py",
    "launchers/cuda_source/headers.py",
    "launchers/cuda_source/kernel.py",
    "launchers/launch.py",
    "launchers/cuda_source/nvrtc.py",
    "launchers/cuda_source/argument_binding.py",
    "launchers/cuda_source/kernel_signature.py",
    "launchers/__init__.py",
    "signature/*.py",
    "operator/tensor_checks.py",
    "operator/autograd.py",
    "operator/checked.py",
    "operator/declaration.py",
    "operator/torch_library.py",
    "ops/*.py",
    "registry/__init__.py",
    "registry/elf.py",
    "registry/kernel_symbols.py",
    "registry/libraries.py",
    "attention/__init__.py",
    "attention/cudnn.py",
)
# The libraries are linked against glibc alone (BUILD).
TAG = "py3-none-manylinux_2_34_x86_64"
_DATE = (1980, 1, 1, 0, 0, 0)


def renamed(text: str) -> str:
    """A module of torch_xla_ext as one of torch_xla_gpu."""
    text = re.sub(r"^(\s*from) torch_xla_ext import", r"\1 torch_xla_gpu import", text, flags=re.M)
    return re.sub(r"\btorch_xla_ext\.", "torch_xla_gpu.", text)


def contents(sources: list[Path], shared: list[Path], libraries: list[Path]) -> dict[str, bytes]:
    """The package's files by their paths in the wheel.

    Raises:
        ValueError: one of SHARED is not among the files.
    """
    files = {}
    for pattern in SHARED:
        found = [path for path in shared if path.match(f"torch_xla_ext/{pattern}")]
        if not found:
            raise ValueError(f"package.py: no file torch_xla_ext/{pattern}")
        for path in found:
            name = f"torch_xla_gpu/{Path(pattern).parent}/{path.name}"
            files[name] = renamed(path.read_text()).encode()
    for path in sources:
        folder = path.parts.index("torch_tpu", path.parts.index("integrations"))
        name = "/".join(path.parts[folder + 1 :])
        files[name] = path.read_bytes()  # in place of a shared one
    for path in libraries:
        files[f"torch_xla_gpu/{path.name}"] = path.read_bytes()
    return files


def write_wheel(project: dict[str, object], files: dict[str, bytes], folder: Path) -> Path:
    """Writes the wheel, the same bytes for the same files."""
    name, version = project["name"].replace("-", "_"), project["version"]
    info = f"{name}-{version}.dist-info"
    metadata = [
        "Metadata-Version: 2.4",
        f"Name: {project['name']}",
        f"Version: {version}",
        f"Summary: {project['description']}",
        f"License-Expression: {project['license']}",
        f"Requires-Python: {project['requires-python']}",
        *(f"Requires-Dist: {each}" for each in project["dependencies"]),
    ]
    files = files | {
        f"{info}/METADATA": "\n".join([*metadata, ""]).encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: package.py\n"
        f"Root-Is-Purelib: false\nTag: {TAG}\n".encode(),
    }
    rows = []
    for path, content in sorted(files.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        rows.append(f"{path},sha256={digest},{len(content)}")
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()
    wheel = folder / f"{name}-{version}-{TAG}.whl"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(path, _DATE), content, zipfile.ZIP_DEFLATED)
    return wheel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--project", type=Path, required=True, help="pyproject.toml")
    parser.add_argument("--source", type=Path, action="append", default=[])
    parser.add_argument("--shared", type=Path, action="append", default=[])
    parser.add_argument("--library", type=Path, action="append", default=[])
    parser.add_argument("--unpacked", action="store_true", help="the files, and no wheel")
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    args = parser.parse_args()
    project = tomllib.loads(args.project.read_text())["project"]
    files = contents(args.source, args.shared, args.library)
    if args.unpacked:
        for path, content in files.items():
            (args.out / path).parent.mkdir(parents=True, exist_ok=True)
            (args.out / path).write_bytes(content)
    else:
        write_wheel(project, files, args.out)


if __name__ == "__main__":
    main()
