"""The examples in docs/paged_attention.md give what the page shows."""

import doctest
from pathlib import Path


def test_paged_attention() -> None:
    page = Path("docs/paged_attention.md").absolute()
    result = doctest.testfile(str(page), module_relative=False)
    assert result.attempted > 10
    assert result.failed == 0
