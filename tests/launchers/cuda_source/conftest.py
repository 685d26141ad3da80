"""A cache of compiled kernels for each test."""

from pathlib import Path

import pytest

from cuda_source.sources import on_a_gpu
from xla_kernels.cuda_source import cache

__all__ = ["on_a_gpu"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "kernels"
    monkeypatch.setenv(cache.FOLDER_VARIABLE, str(path))
    return path
