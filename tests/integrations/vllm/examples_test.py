"""examples/vllm, and the console lines in docs/vllm.md that need no GPU."""

from __future__ import annotations

import re
import subprocess
import sys


def test_offline() -> None:
    result = subprocess.run(
        [sys.executable, "examples/vllm/offline.py"], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr
    lines = re.findall(r"^w\d+.* ->( w\d+)+$", result.stdout, re.M)
    assert len(lines) == 4
    assert re.search(r"^48 tokens of 4 prompts; programs compiled since: 0$", result.stdout, re.M)


def test_served() -> None:
    result = subprocess.run(
        [sys.executable, "examples/vllm/served.py"], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr
    end = r"^6 answers in [\d.]+ s, the first token after [\d.]+ s$"
    assert re.search(end, result.stdout, re.M)
