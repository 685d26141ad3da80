"""The examples in the pages on attention give what the pages show."""

import doctest
from pathlib import Path

import pytest


@pytest.mark.parametrize(("page", "examples"), [("paged_attention", 20), ("tpu_code", 7)])
def test_page(page: str, examples: int) -> None:
    path = Path(f"docs/{page}.md").absolute()
    result = doctest.testfile(str(path), module_relative=False)
    assert result.attempted >= examples
    assert result.failed == 0
