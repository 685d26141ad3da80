"""The Python blocks of docs/distributed.md run, on two devices (BUILD)."""

import re
import warnings
from pathlib import Path


def test_blocks() -> None:
    page = Path("docs/distributed.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    assert len(blocks) == 2
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*is gathered")
        for block in blocks:
            exec(block, {})
