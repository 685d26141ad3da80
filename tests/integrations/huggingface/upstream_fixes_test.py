"""The table of what is replaced in Hugging Face's libraries."""

from __future__ import annotations

import importlib
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

from torch_xla_huggingface import upstream_fixes

FIXES = [*upstream_fixes.FIXES, upstream_fixes.MODELS]


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


@pytest.mark.parametrize("fix", FIXES, ids=lambda fix: fix.module)
def test_a_row(fix: upstream_fixes.Fix) -> None:
    """It names what is there, and the version under test is one that it was written for."""
    assert Path(__file__).with_name(fix.test).exists()
    file, _, name = fix.function.partition(".")
    assert callable(getattr(importlib.import_module(f"torch_xla_huggingface.{file}"), name))
    first, _, last = fix.versions.partition(" to ")
    version = importlib.metadata.version(fix.library)
    assert _release(first) <= _release(version) <= _release(last or first)


def test_which_modules_are_changed() -> None:
    assert len(upstream_fixes.BY_MODULE) == len(upstream_fixes.FIXES)
    assert upstream_fixes.is_model("transformers.models.mixtral.modeling_mixtral")
    assert not upstream_fixes.is_model("transformers.models.mixtral.configuration_mixtral")
    assert not any(map(upstream_fixes.is_model, upstream_fixes.BY_MODULE))


def test_the_table_imports_no_library() -> None:
    code = (
        "import sys, torch_xla\n"
        "print(sorted(name for name in sys.modules if name.startswith('torch_xla_huggingface')))\n"
        "print({'torch_xla_ext', 'transformers', 'accelerate', 'safetensors'} & {*sys.modules})\n"
    )
    result = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [
        "['torch_xla_huggingface', 'torch_xla_huggingface.upstream_fixes']",
        "set()",
    ]
