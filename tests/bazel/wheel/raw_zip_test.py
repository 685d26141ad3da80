"""Python's zipfile reads RawZipWriter's files."""

import zipfile
from pathlib import Path

import pytest
import raw_zip
from raw_zip import RawZipWriter

LARGE = b"upstream binary " * 500_000


@pytest.fixture
def source(tmp_path: Path) -> zipfile.ZipFile:
    path = tmp_path / "source.zip"
    program = zipfile.ZipInfo("program")
    program.external_attr = 0o100755 << 16
    program.extra = b"\x99\x99\x04\x00abcd"  # an extra field, which has to be skipped
    with zipfile.ZipFile(path, "w") as zip_file:
        zip_file.writestr("large", LARGE, zipfile.ZIP_DEFLATED)
        zip_file.writestr(program, "#!/bin/sh\n")
        zip_file.writestr("empty", b"")
    return zipfile.ZipFile(path)


def test_round_trip(tmp_path: Path, source: zipfile.ZipFile) -> None:
    path = tmp_path / "out.zip"
    with RawZipWriter(path) as out:
        out.add("a/text.txt", b"hello " * 100)
        out.add("grün.txt", b"x", executable=True)
        for name in ("large", "program", "empty"):
            out.copy("copied/" + name, source, source.getinfo(name))
    with zipfile.ZipFile(path) as result:
        assert result.testzip() is None
        assert result.namelist() == [
            *("a/text.txt", "grün.txt"),
            *("copied/large", "copied/program", "copied/empty"),
        ]
        assert result.read("a/text.txt") == b"hello " * 100
        assert result.read("copied/large") == LARGE
        assert result.read("copied/empty") == b""
        modes = {i.filename: oct(i.external_attr >> 16) for i in result.infolist()}
        assert modes["grün.txt"] == modes["copied/program"] == "0o100755"
        assert modes["a/text.txt"] == modes["copied/large"] == "0o100644"
        assert {i.date_time for i in result.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_copies_compressed_bytes(tmp_path: Path, source: zipfile.ZipFile) -> None:
    path = tmp_path / "out.zip"
    info = source.getinfo("large")
    with RawZipWriter(path) as out:
        out.copy("large", source, info)
    with open(source.filename, "rb") as file:
        file.seek(info.header_offset + 30 + len(info.filename))
        compressed = file.read(info.compress_size)
    assert compressed in path.read_bytes()


def test_a_cut_off_source_is_an_error(tmp_path: Path, source: zipfile.ZipFile) -> None:
    whole = Path(source.filename).read_bytes()
    Path(source.filename).write_bytes(whole[:60])
    with (
        pytest.raises(ValueError, match=r"source\.zip is truncated within large"),
        RawZipWriter(tmp_path / "out.zip") as out,
    ):
        out.copy("large", source, source.getinfo("large"))


def test_too_many_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_zip, "_MAX_ENTRIES", 3)
    with (
        pytest.raises(ValueError, match="c: a zip file of 3 entries would need zip64"),
        RawZipWriter(tmp_path / "out.zip") as out,
    ):
        for name in "abc":
            out.add(name, b"")


def test_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_zip, "_MAX_SIZE", 100)
    with (
        pytest.raises(ValueError, match="a: a zip file of 4 GiB or more would need zip64"),
        RawZipWriter(tmp_path / "out.zip") as out,
    ):
        out.add("a", bytes(100))
