"""Fixtures of the tests of the patch series' tools."""

from __future__ import annotations

from pathlib import Path

import fake_xla
import pytest


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> fake_xla.FakeXla:
    # Neither the machine's git configuration nor Bazel's folder plays a part.
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.delenv("BUILD_WORKING_DIRECTORY", raising=False)
    return fake_xla.make(tmp_path)
