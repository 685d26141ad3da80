"""Make `.venv` in the checkout: torch, the built library, and this checkout's Python files.

The rule in bazel/develop.bzl runs this. The environment has

- torch (the CPU build, if the package index has one) and the packages of the lock files; if it is
  made with PJRT_DEVICE=CUDA, torch with CUDA's libraries and the packages of the extra "cuda12";
- the files of the built wheel that do not come from the checkout: upstream's torch_xla, and our
  library in front of its extension module;
- links to the checkout in place of the wheel's other files. A folder is one link if all of its
  files in the wheel are from one folder of the checkout, so that new files in it are found, too;
- `test_binaries/`: the libraries that tests load, and `variables.json` with their paths, which
  conftest.py reads.

Run it again after a change of C++ or CUDA code, or after adding a kernel: it replaces the changed
files. Errors are one sentence on stderr.
"""

import csv
import fcntl
import io
import json
import os
import re
import shutil
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "example"))
import run

run.PROGRAM = "develop"


def write(file: Path, content: bytes) -> None:
    """Replace a file atomically; a process that has loaded the old file keeps it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as new:
        new.write(content)
    Path(new.name).chmod(0o644)
    Path(new.name).replace(file)


def remove(path: Path) -> None:
    """Remove a file, a link (but not its target) or a folder, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def names(wheel: Path) -> list[str]:
    """Return the files of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return [info.filename for info in archive.infolist() if not info.is_dir()]


def requirements_of_extra(metadata: str, extra: str) -> list[str]:
    """Return the requirements of an extra in METADATA."""
    return re.findall(rf'^Requires-Dist: (.+); extra == "{extra}"$', metadata, re.MULTILINE)


def unpack(wheel: Path, site: Path, linked: Iterable[str]) -> list[str]:
    """Unpack a wheel without the linked files; return the paths of changed files.

    RECORD lists only unpacked files, because `pip uninstall` would follow links into the checkout.
    """
    without = set(linked)
    written = []
    with zipfile.ZipFile(wheel) as archive:
        (record_name,) = [n for n in archive.namelist() if n.endswith(".dist-info/RECORD")]
        dist_info = PurePosixPath(record_name).parent.name
        for old in site.glob("torch_xla-*.dist-info"):
            if old.name != dist_info:
                shutil.rmtree(old)
        for info in archive.infolist():
            if info.is_dir() or info.filename in without:
                continue
            content = archive.read(info)
            if info.filename == record_name:
                rows = csv.reader(io.StringIO(content.decode()))
                record = io.StringIO()
                csv.writer(record).writerows(row for row in rows if row[0] not in without)
                content = record.getvalue().encode()
            file = site / info.filename
            if file.parent.resolve() != site.resolve() / PurePosixPath(info.filename).parent:
                raise run.ExampleError(
                    f"unpacking {file} would write into {file.parent.resolve()}, because its "
                    "folder is a link or lies in one: delete .venv and run develop again"
                )
            if not file.is_file() or zlib.crc32(file.read_bytes()) != zlib.crc32(content):
                write(file, content)
                written.append(info.filename)
    return written


Sources = Mapping[str, Path | None]


def link_files(sources: Sources, site: Path) -> None:
    """Link files of the checkout into `site`, and whole folders if possible.

    Args:
        sources: {path in `site`: the checkout's file, or None for a file that is unpacked}.
        site: the environment's packages.
    """
    children: dict[str, dict[str, Path | None]] = {}
    for path, source in sources.items():
        name, _, rest = path.partition("/")
        children.setdefault(name, {})[rest] = source
    for name, files in children.items():
        here = site / name
        if files == {"": None}:
            continue
        target = _common_folder(files)
        if target is None:
            if here.is_symlink() or here.is_file():
                here.unlink()
            here.mkdir(exist_ok=True)
            wanted = {path.partition("/")[0] for path in files}
            for entry in here.iterdir():
                if entry.name not in wanted:
                    remove(entry)
            link_files(files, here)
        elif not here.is_symlink() or here.readlink() != target:
            remove(here)
            here.symlink_to(target)


def _common_folder(files: Sources) -> Path | None:
    """Return the single file without a path, or the folder with all files at these paths."""
    if "" in files:
        return files[""]
    folders = set()
    for path, source in files.items():
        parts = PurePosixPath(path).parts
        if source is None or source.parts[-len(parts) :] != parts:
            return None
        folders.add(source.parents[len(parts) - 1])
    return folders.pop() if len(folders) == 1 else None


def copy_binaries(binaries: Mapping[str, list[Path]], folder: Path) -> None:
    """Copy the libraries that tests load, and write down the variable of each."""
    folder.mkdir(exist_ok=True)
    variables = {}
    for variable, files in binaries.items():
        copies = [folder / file.name for file in files]
        for file, copy in zip(files, copies, strict=True):
            content = file.read_bytes()
            if not copy.is_file() or copy.read_bytes() != content:
                write(copy, content)
        variables[variable] = " ".join(map(str, copies))
    write(folder / "variables.json", json.dumps(variables, indent=2).encode())


def without_cuda(lock: Path, folder: Path) -> Path:
    """Return the lock file without CUDA's libraries, which torch's CPU build does not need."""
    blocks = lock.read_text().replace("\\\n", "\0").splitlines()
    kept = [block.replace("\0", "\\\n") for block in blocks if not block.startswith("nvidia-")]
    folder.mkdir(exist_ok=True)
    result = folder / lock.name
    result.write_text("\n".join(kept) + "\n")
    return result


def prepare(manifest: Mapping[str, object], checkout: Path, device: str) -> run.Environment:
    """Make or refresh the environment; raise ExampleError if that fails."""
    environment = run.Environment(checkout / ".venv")
    environment.prepare_torch(device)
    (site,) = environment.folder.glob("lib/python*/site-packages")
    locks = [Path(lock) for lock in manifest["locks"]]
    if not (site / "nvidia").is_dir():
        locks = [without_cuda(lock, environment.folder / "locks") for lock in locks]
    environment.install_locks(locks)
    wheel = run.only_wheel(Path(manifest["wheel"]))
    sources = {path: Path(file).resolve() for path, file in manifest["sources"].items()}
    packages = {path.partition("/")[0] for path in sources}
    unpacked = {name: None for name in names(wheel) if name.partition("/")[0] in packages}
    link_files({**unpacked, **sources}, site)
    written = unpack(wheel, site, sources)
    if device == "CUDA":
        (metadata,) = site.glob("torch_xla-*.dist-info/METADATA")
        environment.install_requirements(requirements_of_extra(metadata.read_text(), "cuda12"))
    libraries = [name for name in written if name.endswith(".so")]
    run.say(f"{', '.join(libraries) or 'no library'} replaced; Python files are {checkout}'s")
    binaries = {name: [Path(f) for f in files] for name, files in manifest["binaries"].items()}
    copy_binaries(binaries, environment.folder / "test_binaries")
    return environment


def main() -> None:
    checkout = Path(os.environ["BUILD_WORKSPACE_DIRECTORY"]).resolve()
    manifest = json.loads(Path(sys.argv[1]).read_text())
    try:
        with open(checkout / ".venv.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            prepare(manifest, checkout, os.environ.get("PJRT_DEVICE", "CPU"))
    except run.ExampleError as error:
        sys.exit(f"develop: {error}")
    except OSError as error:
        sys.exit(f"develop: {error}; `.venv` may be a link to a folder on another disk")
    run.say("activate it: . .venv/bin/activate")


if __name__ == "__main__":
    main()
