"""Installs vllm-xla-gpu as a user does, before vLLM looks for its plugins."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


def _install(project: Path, target: Path) -> None:
    with tempfile.TemporaryDirectory() as copy:  # pip builds in the folder
        shutil.copytree(project, copy, dirs_exist_ok=True)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        options = ["--no-index", "--no-deps", "--no-build-isolation", "--target", str(target)]
        subprocess.run([*pip, *options, copy], check=True)


def pytest_configure(config: pytest.Config) -> None:
    target = Path(tempfile.mkdtemp(), "site")
    _install(Path("integrations/vllm").absolute(), target)
    sys.path.insert(0, str(target))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(target), os.environ["PYTHONPATH"]])
    # The engine in this process, where what is compiled can be counted; and nothing is reported.
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "HF_HUB_OFFLINE": "1",
        # Sockets are in here, whose paths may have 107 characters: a test's own folder has more.
        "VLLM_RPC_BASE_PATH": tempfile.mkdtemp(dir="/tmp"),
    }


@pytest.fixture(scope="session")
def models() -> Iterator[Path]:
    """A folder for models, whose products in float32 are exact: a GPU would multiply in TF32."""
    from torch_xla import backends  # vLLM's plugins are installed before anything is imported

    backends.set_mat_mul_precision("highest")
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)
