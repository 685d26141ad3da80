"""The sessions in the pages give what the pages show."""

import doctest
from pathlib import Path

import pytest

LOOSELY = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.mark.parametrize(
    ("page", "examples", "options"),
    [("debugging", 11, LOOSELY), ("paged_attention", 20, 0), ("tpu_code", 7, 0)],
)
def test_page(page: str, examples: int, options: int) -> None:
    path = Path(f"docs/{page}.md").absolute()
    result = doctest.testfile(str(path), module_relative=False, optionflags=options)
    assert result.attempted >= examples
    assert result.failed == 0
