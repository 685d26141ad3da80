"""docs/own_kernel.md: its files compile with its command; its program and its error are right."""

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
    (program,) = [block for block in blocks("python") if "register_kernel(" in block]
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


def test_from_a_string() -> None:
    program, check, *_ = blocks("python")
    assert "cuda_kernel(" in program
    assert "square.check()" in check
    program += check
    program += """
assert torch.equal(y.cpu(), x.cpu() ** 2)
assert square.compile("sm_90a")["square"].startswith(b"\\x7fELF")
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_the_compilers_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_XLA_EXT_KERNEL_CACHE", str(tmp_path))
    (text,) = re.findall(r"^CompilationError: (.*?)```", PAGE, re.MULTILINE | re.DOTALL)
    source = re.search(r'"""(.*?)"""', blocks("python")[0], re.DOTALL)[1]
    kernel = torch_xla_ext.cuda_kernel(source.replace("* x[i]", "* y[i]"), "square")
    with pytest.raises(RuntimeError) as error:
        kernel.compile("sm_90a")
    expected = [line.strip() for line in text.splitlines()]
    assert [line.strip() for line in str(error.value).splitlines()][: len(expected)] == expected
