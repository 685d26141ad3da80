"""The two checks that stop a build: the upstream binary's digest, and undefined symbols."""

import hashlib
import subprocess
import sys
from pathlib import Path

import check_symbols
import check_upstream_binary
import pytest
from fakes import compile_library


@pytest.fixture
def binary(tmp_path: Path) -> Path:
    path = tmp_path / "binary"
    path.write_bytes(b"upstream")
    return path


def digests(tmp_path: Path, digest: str, name: str = "_XLAC.so") -> Path:
    path = tmp_path / "digests"
    path.write_text(f"# comment\n\n{digest}  {name}\n")
    return path


def test_the_pinned_binary_passes(tmp_path: Path, binary: Path) -> None:
    pinned = digests(tmp_path, hashlib.sha256(b"upstream").hexdigest())
    check_upstream_binary.check(binary, "_XLAC.so", pinned)


def test_another_binary_stops_the_build(tmp_path: Path, binary: Path) -> None:
    pinned = digests(tmp_path, "0" * 64)
    stamp = tmp_path / "stamp"
    result = subprocess.run(
        [sys.executable, check_upstream_binary.__file__, binary, "_XLAC.so", pinned, stamp],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1
    assert not stamp.exists()
    assert result.stderr == (
        f"the upstream _XLAC.so has SHA-256 {hashlib.sha256(b'upstream').hexdigest()}, but "
        f"csrc/interpose/abi was written for {'0' * 64} ({pinned}): check every layout there "
        "against the new binary, then pin its digest there\n"
    )


def test_a_binary_without_a_pin_stops_the_build(tmp_path: Path, binary: Path) -> None:
    pinned = digests(tmp_path, "0" * 64, name="other")
    with pytest.raises(ValueError, match="was written for none of that name"):
        check_upstream_binary.check(binary, "_XLAC.so", pinned)


def test_symbols_that_a_library_defines(tmp_path: Path) -> None:
    provider = compile_library(tmp_path / "provider.so", "int there; int also(void) {return 1;}")
    front = compile_library(
        tmp_path / "front.so",
        "extern int there; int also(void); extern int PyThing; "
        "__attribute__((weak)) int maybe(void);"
        "int use(void) { return there + also() + PyThing + (maybe ? maybe() : 0); }",
    )
    assert check_symbols.missing_symbols("nm", str(front), [str(provider)]) == []
    assert check_symbols.missing_symbols("nm", str(front), []) == ["also", "there"]


def test_a_missing_symbol_stops_the_build(tmp_path: Path) -> None:
    front = compile_library(
        tmp_path / "front.so", "int _ZN3xla4GoneEi(int); int use(void) {return _ZN3xla4GoneEi(1);}"
    )
    stamp = tmp_path / "stamp"
    result = subprocess.run(
        [sys.executable, check_symbols.__file__, "--nm", "/usr/bin/nm", "--stamp", stamp, front],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1
    assert not stamp.exists()
    assert result.stderr.startswith("front.so needs 1 symbols that no library defines (is a decl")
    assert result.stderr.endswith("\n  xla::Gone(int)\n")
