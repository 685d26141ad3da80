"""The sessions in docs/debugging.md give what the page shows."""

import doctest
from pathlib import Path


def test_sessions_print_the_pages_output() -> None:
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    page = Path("docs/debugging.md").absolute()
    result = doctest.testfile(str(page), module_relative=False, optionflags=options)
    assert result.attempted > 10
    assert result.failed == 0
