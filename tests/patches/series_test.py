"""The series of this repository: their form, and the places that name their patches."""

from __future__ import annotations

import re
from pathlib import Path

import check
import pytest
import series

PATCHES = Path("patches")
ALL = series.load_all(PATCHES)


def test_releases() -> None:
    assert [one.release for one in ALL] == ["2.7.0", "2.8.1"]


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.release)
def test_form(one: series.Series) -> None:
    assert list(check.check_form(one)) == []


# What mends a defect that one release alone has.
OF_ONE_RELEASE = {"Declare c10::cuda::set_device as torch 2.8 defines it"}


def test_every_release_has_the_same_patches() -> None:
    subjects = [
        [patch.subject for patch in one.patches if patch.subject not in OF_ONE_RELEASE]
        for one in ALL
    ]
    assert subjects[0] == subjects[1]


def test_the_archive_is_patched_with_the_series() -> None:
    text = Path("bazel/torch_xla_src.bzl").read_text()
    listed = re.findall(r'^    "(0.*\.patch)",$', text, re.MULTILINE)
    assert listed == [patch.path.name for patch in ALL[-1].patches]
