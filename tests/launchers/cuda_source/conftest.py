"""A cache of compiled kernels for each test."""

from pathlib import Path

import pytest

from xla_kernels.cuda_source import cache


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "kernels"
    monkeypatch.setenv(cache.FOLDER_VARIABLE, str(path))
    return path
