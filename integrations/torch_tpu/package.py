"""Assemble the wheel: torch_xla_gpu, xla_kernels, and libraries."""

import argparse
import base64
import hashlib
import tomllib
import zipfile
from pathlib import Path

# The libraries are linked against glibc alone (BUILD).
TAG = "py3-none-manylinux_2_34_x86_64"
_DATE = (1980, 1, 1, 0, 0, 0)


def write_wheel(project: dict[str, object], files: dict[str, bytes], folder: Path) -> Path:
    """Write the wheel, the same bytes for the same files."""
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
    parser.add_argument("--file", action="append", default=[], help="path in the wheel=path")
    parser.add_argument("--unpacked", action="store_true", help="the files, and no wheel")
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    args = parser.parse_args()
    project = tomllib.loads(args.project.read_text())["project"]
    pairs = (each.split("=", 1) for each in args.file)
    files = {name: Path(path).read_bytes() for name, path in pairs}
    if args.unpacked:
        for path, content in files.items():
            (args.out / path).parent.mkdir(parents=True, exist_ok=True)
            (args.out / path).write_bytes(content)
    else:
        write_wheel(project, files, args.out)


if __name__ == "__main__":
    main()
