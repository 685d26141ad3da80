"""probe.py: which Pythons are accepted, and its sentences on the others."""

import json
import subprocess
import sys
from pathlib import Path

import probe
import pytest


def info(**changes: str) -> dict[str, str]:
    return {**probe.describe(), "executable": "/opt/python", **changes}


def test_the_running_python_will_do() -> None:
    result = subprocess.run([sys.executable, probe.__file__], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["tag"] == "cp{}{}".format(*sys.version_info[:2])
    assert Path(found["include"], "Python.h").exists()


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_supported_pythons_have_no_problem(version: str) -> None:
    assert probe.problem(info(version=version)) is None


@pytest.mark.parametrize("version", ["2.7", "3.10", "3.14"])
def test_unsupported_version(version: str) -> None:
    assert probe.problem(info(version=version)) == (
        f"/opt/python is cpython {version}, but torch_xla 2.8.1 has wheels for CPython 3.11, "
        "3.12, 3.13: install Python 3.11 (Debian: `apt-get install python3 python3-dev "
        "python3-pip python3-venv`) or set PYTHON_BIN_PATH to one"
    )


def test_unsupported_implementation() -> None:
    sentence = probe.problem(info(implementation="pypy", version="3.11"))
    assert sentence.startswith("/opt/python is pypy 3.11, but torch_xla 2.8.1 has wheels for CPyth")


def test_unsupported_platform() -> None:
    assert probe.problem(info(platform="linux-aarch64")) == (
        "/opt/python is for linux-aarch64, but torch_xla 2.8.1 has wheels for linux-x86_64: "
        "build there, or in a container of that platform"
    )


def test_no_headers(tmp_path: Path) -> None:
    assert probe.problem(info(include=str(tmp_path))) == (
        f"/opt/python has no Python.h in {tmp_path}: install its headers (Debian: `apt-get install "
        "python3-dev`) or set PYTHON_BIN_PATH to another Python"
    )


def test_the_program_prints_one_sentence(tmp_path: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import probe; "
        "probe.SUPPORTED = ('2.0',); probe.main()"
    )
    folder = str(Path(probe.__file__).parent)
    result = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True)
    assert result.returncode == 1
    assert result.stderr.startswith("python: ")
    assert result.stderr.count("\n") == 1
