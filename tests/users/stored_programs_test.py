"""Later processes load programs that initialize_cache stores, unless these are stale."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from testing.scripts import run_program

import torch_xla_ext

# Programs with an untyped call are compiled again on the CPU (runtime/stored_programs.h).
UNTYPED = 1
PROGRAMS = Path(__file__).with_name("stored_programs.py")
SITE = Path(torch_xla_ext.__file__).parents[1]


def found(result: subprocess.CompletedProcess[str]) -> dict:
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


def run(folder: Path, *args: str, **environment: str) -> dict:
    return found(run_program(PROGRAMS, folder, *args, **environment))


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    """A folder of stored programs, and the output of the process that stored them."""
    folder = tmp_path_factory.mktemp("stored")
    first = run(folder, "add")
    assert first["compiled"] == len(list(folder.iterdir())) >= 10
    return folder, first


def test_nothing_else_is_compiled_again(stored: tuple[Path, dict]) -> None:
    folder, first = stored
    files = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert run(folder, "add") == {**first, "compiled": UNTYPED}
    changed = [path for path in folder.iterdir() if files.get(path) != path.stat().st_mtime_ns]
    assert len(changed) == UNTYPED
    assert len(list(folder.iterdir())) == len(files)


def test_a_kernel_that_does_something_else_now(stored: tuple[Path, dict]) -> None:
    """A stored program calls kernels by name, so it runs what the new process registers."""
    folder, first = stored
    second = run(folder, "multiply")  # compares with the product
    assert second["compiled"] == UNTYPED
    assert second["values"]["combined"] != first["values"]["combined"]


def test_another_wheel(stored: tuple[Path, dict], tmp_path: Path) -> None:
    """The other wheel's library has one more byte."""
    folder, first = stored
    site = tmp_path / "site"
    site.mkdir()
    for path in SITE.iterdir():
        if not path.name.startswith("_XLAC."):
            (site / path.name).symlink_to(path)
            continue
        shutil.copyfile(path, site / path.name)
        with open(site / path.name, "ab") as file:
            file.write(b"\0")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(site), os.environ["PYTHONPATH"]])
    }
    before = set(folder.iterdir())
    command = [sys.executable, PROGRAMS, folder, "add"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert found(result) == first
    for new in set(folder.iterdir()) - before:
        new.unlink()


def test_other_flags(stored: tuple[Path, dict], tmp_path: Path) -> None:
    copy = tmp_path / "stored"
    shutil.copytree(stored[0], copy)
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_backend_optimization_level=1"
    assert run(copy, "add", XLA_FLAGS=flags)["compiled"] == stored[1]["compiled"]


def test_damaged_files(stored: tuple[Path, dict], tmp_path: Path) -> None:
    """Programs whose files are damaged are compiled and stored again."""
    copy = tmp_path / "stored"
    shutil.copytree(stored[0], copy)
    typed = [path for path in sorted(copy.iterdir()) if b"TestCombine" not in path.read_bytes()]
    empty, short, *_ = typed
    sizes = [path.stat().st_size for path in (empty, short)]
    os.truncate(empty, 0)
    os.truncate(short, sizes[1] // 2)
    assert run(copy, "add") == {**stored[1], "compiled": 2 + UNTYPED}
    assert [path.stat().st_size for path in (empty, short)] == sizes


def test_sharded_programs(tmp_path: Path) -> None:
    first = run(tmp_path, CPU_NUM_DEVICES="2")
    stored = len(list(tmp_path.iterdir()))
    # One more program gathers the values, which have one sharding. Upstream does not store it.
    assert first["compiled"] == stored + 1 > 3
    assert run(tmp_path, CPU_NUM_DEVICES="2") == {**first, "compiled": 1}
