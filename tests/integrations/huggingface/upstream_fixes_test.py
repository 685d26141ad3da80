"""The table of what is replaced in Hugging Face's libraries."""

import importlib.metadata
import subprocess
import sys

import pytest

from torch_xla_huggingface import upstream_fixes
from xla_kernels.replacement import Fix


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


@pytest.mark.parametrize("fix", upstream_fixes.FIXES, ids=lambda fix: fix.name)
def test_a_row(fix: Fix) -> None:
    """The libraries under test have the versions for which the row was written."""
    for library in fix.versions.split(", "):
        name, _, versions = library.partition(" ")
        first, _, last = versions.partition(" to ")
        version = importlib.metadata.version(name)
        assert _release(first) <= _release(version) <= _release(last or first)


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
