"""Each row of the table of what is replaced in Hugging Face's libraries has a test."""

from pathlib import Path

import pytest

from torch_xla_huggingface import upstream_fixes
from xla_kernels.replacement import Fix


@pytest.mark.parametrize("fix", upstream_fixes.FIXES, ids=lambda fix: fix.name)
def test_the_file_exists(fix: Fix) -> None:
    assert Path(__file__).with_name(Path(fix.test).name).exists()
