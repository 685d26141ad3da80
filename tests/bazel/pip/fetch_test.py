"""fetch.py against a package index of the test: a folder, or a port that nothing listens on."""

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import fetch
import pytest

NONE = "0" * 64


def make_wheel(folder: Path, version: str = "1.0") -> str:
    """Writes toy-VERSION into `folder` and returns its SHA-256."""
    folder.mkdir(exist_ok=True)
    path = folder / f"toy-{version}-py3-none-any.whl"
    info = f"toy-{version}.dist-info"
    program = zipfile.ZipInfo("toy/bin/run")
    program.external_attr = 0o100755 << 16
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("toy/include/a.h", "// a")
        wheel.writestr("toy/include/deep/b.h", "// b")
        wheel.writestr("toy/readme.txt", "not wanted")
        wheel.writestr(program, "#!/bin/sh\n")
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: toy\nVersion: {version}\n"
        )
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is pip's only package index."""
    folder = tmp_path / "index"
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def lock(tmp_path: Path, *requirements: str) -> str:
    path = tmp_path / "toy.lock"
    path.write_text("\n".join(requirements) + "\n")
    return str(path)


def run_extract(tmp_path: Path, lock_file: str, *rules: str, keep_wheels: bool = False) -> Path:
    out = tmp_path / "out"
    out.mkdir()
    fetch.extract(lock_file, str(out), list(rules), keep_wheels)
    return out


def files(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


def test_extracts_only_matching_files(index: Path, tmp_path: Path) -> None:
    pin = f"toy==1.0 --hash=sha256:{make_wheel(index)}"
    out = run_extract(tmp_path, lock(tmp_path, pin), "toy/include/*", "toy/bin/run=program")
    assert files(out) == {"toy/include/a.h", "toy/include/deep/b.h", "program"}
    assert (out / "program").stat().st_mode & 0o777 == 0o755


def test_keeps_the_wheel_when_asked(index: Path, tmp_path: Path) -> None:
    pin = f"toy==1.0 --hash=sha256:{make_wheel(index)}"
    out = run_extract(tmp_path, lock(tmp_path, pin), keep_wheels=True)
    assert files(out) == {"toy-1.0-py3-none-any.whl"}


def test_wrong_digest(index: Path, tmp_path: Path) -> None:
    digest = make_wheel(index)
    pins = lock(tmp_path, f"toy==1.0 --hash=sha256:{NONE} --hash=sha256:{'1' * 64}")
    with pytest.raises(fetch.FetchError) as error:
        run_extract(tmp_path, pins, "toy/*")
    assert str(error.value) == (
        f"the file that pip fetched for toy==1.0 has SHA-256 {digest}, but toy.lock allows only "
        f"{NONE} (or its siblings there): clear pip's cache with `pip cache purge` and check the "
        "package index that pip is set to; only if the change is wanted and reviewed, run "
        "bazel/pip/update_locks.py"
    )
    assert files(tmp_path / "out") == set(), "a file of an unknown wheel was left"


def test_missing_release(index: Path, tmp_path: Path) -> None:
    make_wheel(index, version="2.0")
    with pytest.raises(fetch.FetchError) as error:
        run_extract(tmp_path, lock(tmp_path, f"toy==1.0 --hash=sha256:{NONE}"))
    python = "{}.{}".format(*sys.version_info[:2])
    assert str(error.value) == (
        f"pip finds other releases but no wheel of toy==1.0 for Python {python} on this machine, "
        "which toy.lock asks for: check the network and the package index that pip is set to "
        "(`pip config list`)"
    )


def test_missing_package(index: Path, tmp_path: Path) -> None:
    index.mkdir()
    with pytest.raises(fetch.FetchError, match=r"pip finds no release of toy==1\.0 for Python"):
        run_extract(tmp_path, lock(tmp_path, f"toy==1.0 --hash=sha256:{NONE}"))


@pytest.mark.parametrize("other_release", [False, True])
def test_no_network(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other_release: bool
) -> None:
    """The error is the same if a folder of pip's configuration lists another release."""
    index.mkdir()
    if other_release:
        make_wheel(index, version="2.0")
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(fetch.FetchError) as error:
        run_extract(tmp_path, lock(tmp_path, f"toy==1.0 --hash=sha256:{NONE}"))
    assert str(error.value) == (
        "pip could not reach its package index for toy.lock: check the network and "
        "`pip config list`, then build again"
    )


def test_a_rule_that_matches_nothing(index: Path, tmp_path: Path) -> None:
    pin = f"toy==1.0 --hash=sha256:{make_wheel(index)}"
    with pytest.raises(fetch.FetchError, match=r"have no file that matches toy/lib/\*: they are"):
        run_extract(tmp_path, lock(tmp_path, pin), "toy/include/*", "toy/lib/*")


def test_an_unpinned_requirement_is_refused(index: Path, tmp_path: Path) -> None:
    make_wheel(index)
    with pytest.raises(fetch.FetchError, match=r"^pip failed on toy\.lock: ERROR: .*[Hh]ash"):
        run_extract(tmp_path, lock(tmp_path, "toy==1.0"))


def test_python_without_pip(tmp_path: Path) -> None:
    folder = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    with pytest.raises(fetch.FetchError, match="has no pip: install it"):
        fetch.pip(str(folder / "bin/python"), ["download"], lock(tmp_path, "toy==1.0"))


def test_make_venv_installs_the_lock(index: Path, tmp_path: Path) -> None:
    pin = f"toy==1.0 --hash=sha256:{make_wheel(index)}"
    fetch.make_venv(lock(tmp_path, pin), str(tmp_path / "venv"))
    assert list((tmp_path / "venv").glob("lib/python*/site-packages/toy/include/a.h"))


def test_make_folder_installs_the_lock(index: Path, tmp_path: Path) -> None:
    pin = f"toy==1.0 --hash=sha256:{make_wheel(index)}"
    fetch.make_folder(lock(tmp_path, pin), str(tmp_path / "packages"))
    assert (tmp_path / "packages/toy/include/a.h").exists()


def test_the_program_prints_one_sentence(index: Path, tmp_path: Path) -> None:
    index.mkdir()
    pins = lock(tmp_path, f"toy==1.0 --hash=sha256:{NONE}")
    result = subprocess.run(
        [sys.executable, fetch.__file__, "extract", "--lock", pins, "--out", str(tmp_path)],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("pip finds no release of toy==1.0")
