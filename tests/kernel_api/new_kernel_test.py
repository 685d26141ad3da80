"""The template: the files that it writes build, and their tests pass, without an edit."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from torch_xla_ext.__main__ import main


def test_builds_and_passes_as_written(tmp_path: Path) -> None:
    folder = tmp_path / "my_op"
    result = subprocess.run(
        [sys.executable, "-m", "torch_xla_ext", "new-kernel", "my_op", folder],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert {path.name for path in folder.iterdir()} == {
        "Makefile",
        "my_op.cu",
        "my_op.cuh",
        "my_op.h",
        "my_op.py",
        "my_op_host.cc",
        "my_op_test.py",
    }
    for path in folder.iterdir():
        assert not re.search(r"@[A-Z_]+@", path.read_text()), "a name that was not filled in"
    made = subprocess.run(
        ["make", "-C", str(folder), f"PYTHON={sys.executable}", "CXX=g++", "test"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([*sys.path, str(folder)])},
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    assert "21 passed" in made.stdout
    assert "warning:" not in made.stderr, made.stderr  # of the compiler


@pytest.mark.parametrize(("gpus", "arch"), [("GPU 0: NVIDIA H200", "native"), ("", "all-major")])
def test_compiles_for_gpus_that_nvcc_can_name(tmp_path: Path, gpus: str, arch: str) -> None:
    """nvcc's `native` is the GPU of this machine, and an error or an old default without one."""
    assert main(["new-kernel", "my_op", str(tmp_path / "my_op")]) == 0
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\necho '{gpus}'\n")
    smi.chmod(0o755)
    command = ["make", "-n", "-C", str(tmp_path / "my_op"), f"PYTHON={sys.executable}"]
    shown = subprocess.run(
        [*command, "libmy_op_cuda.so"],
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        check=True,
        capture_output=True,
        text=True,
    )
    assert f" -arch={arch} " in shown.stdout


@pytest.mark.parametrize(
    "name", ["MyOp", "my op", "1op", "class", "my__op", "", "math", "sys", "torch", "pytest"]
)
def test_wrong_name(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert main(["new-kernel", name, str(tmp_path / "x")]) == 1
    assert f"{name!r} is not a valid kernel name" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_next_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["new-kernel", "my_op", str(tmp_path / "a")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"next: make -C {tmp_path / 'a'} test"
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "pytest" else find(name)
    )
    assert main(["new-kernel", "my_op", str(tmp_path / "b")]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"next: pip install pytest && make -C {tmp_path / 'b'} test"


def test_overwrites_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "my_op.cu").write_text("mine")
    assert main(["new-kernel", "my_op", str(tmp_path)]) == 1
    assert "my_op.cu exists already; choose another folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["my_op.cu"]
