"""platform_tag: the tag follows from the symbol versions that a library needs."""

from pathlib import Path

import pytest
from fakes import compile_library, library_needing
from platform_tag import platform_tag

UPSTREAM = "manylinux_2_28_x86_64"


@pytest.mark.parametrize(
    ("needs", "tag"),
    [
        ("GLIBC_2.2.5", UPSTREAM),  # never older than the upstream wheel
        ("GLIBC_2.28", UPSTREAM),
        ("GLIBC_2.34", "manylinux_2_34_x86_64"),
        ("GLIBC_2.35", "manylinux_2_35_x86_64"),
    ],
)
def test_tag_follows_from_symbol_versions(tmp_path: Path, needs: str, tag: str) -> None:
    assert platform_tag([library_needing(tmp_path, needs)], UPSTREAM) == tag


def test_no_library_needs_a_version(tmp_path: Path) -> None:
    plain = compile_library(tmp_path / "plain.so", "int x;")
    assert platform_tag([plain], UPSTREAM) == UPSTREAM
    assert platform_tag([], UPSTREAM) == UPSTREAM


def test_the_most_demanding_library_decides(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    libraries = [library_needing(new, "GLIBC_2.34"), library_needing(old, "GLIBC_2.2.5")]
    assert platform_tag(libraries, UPSTREAM) == "manylinux_2_34_x86_64"


def test_a_version_that_no_platform_has(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"needs_GLIBC_9\.99\.so requires GLIBC_9\.99; no many"):
        platform_tag([library_needing(tmp_path, "GLIBC_9.99")], UPSTREAM)


def test_a_upstream_tag_that_is_no_manylinux_tag(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`linux_x86_64` is not a platform tag manylinux_X_Y"):
        platform_tag([library_needing(tmp_path, "GLIBC_2.34")], "linux_x86_64")
