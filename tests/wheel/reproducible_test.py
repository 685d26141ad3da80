"""A wheel that is built again elsewhere is the same, byte by byte."""

import filecmp
import os
import zipfile
from pathlib import Path


def test_built_twice_is_identical() -> None:
    (first,) = Path(os.environ["WHEEL_DIR"]).glob("*")
    (second,) = Path(os.environ["WHEEL_AGAIN_DIR"]).glob("*")
    assert first.resolve() != second.resolve(), "the test compares one build with itself"
    assert first.name == second.name
    if not filecmp.cmp(first, second, shallow=False):
        with zipfile.ZipFile(first) as a, zipfile.ZipFile(second) as b:
            assert a.namelist() == b.namelist()
            differing = [n for n in a.namelist() if a.getinfo(n).CRC != b.getinfo(n).CRC]
        raise AssertionError(f"two builds differ in {differing or 'the zip structure'}")
