"""The Python blocks of docs/distributed.md run, on two devices."""

import os
import re
import warnings
from pathlib import Path

os.environ.setdefault("CPU_NUM_DEVICES", "2")  # before the first device is made


def test_blocks_run_without_gathers() -> None:
    page = Path("docs/distributed.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    assert len(blocks) == 4
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*is gathered")
        for block in blocks:
            exec(block, {})
