"""docs/own_kernel.md: its files compile by its command, and its program and its error are true."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import torch_xla_ext

PAGE = Path("docs/own_kernel.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for block in blocks(r"c\+\+"):
        tmp_path.joinpath(re.match(r"// (\S+)\n", block)[1]).write_text(block)
    (command,) = re.findall(r"^\$ (g\+\+ .*)$", PAGE, re.MULTILINE)
    words = command.replace("$INCLUDE", torch_xla_ext.include_dir()).split()
    subprocess.run(words, cwd=tmp_path, check=True)
    return tmp_path


def test_the_page(folder: Path) -> None:
    (program,) = blocks("python")
    (error,) = re.findall(r"^TypeError: (.*)$", PAGE, re.MULTILINE)
    program += f"""
try:
    torch.ops.my_ns.square(x.double())
except TypeError as found:
    assert str(found) == {error!r}, found
else:
    raise AssertionError("no error")
"""
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
