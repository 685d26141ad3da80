"""vllm-xla-gpu, and a folder for models."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import installed  # noqa: F401  (BUILD has imported it already; a pytest that is run by hand has not)
import pytest


@pytest.fixture(scope="session")
def models() -> Iterator[Path]:
    """A folder for models."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)
