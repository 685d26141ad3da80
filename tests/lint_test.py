"""The repository's own files keep to the formatters and linters, and to the layout's rules.

Reads the work tree, not runfiles: a file that no target names is looked at as well.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

TOOLS = Path(sys.executable).parent
ROOT = Path("pyproject.toml").resolve().parent
CPP = (".cc", ".h", ".cu", ".cuh")


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def own_files() -> list[str]:
    """Returns the files that git knows or would add, without deleted ones."""
    listed = run("git", "-c", "safe.directory=*", "ls-files", "-co", "--exclude-standard")
    assert listed.returncode == 0, f"{ROOT} is no git work tree: {listed.stderr}"
    return [name for name in listed.stdout.splitlines() if Path(ROOT, name).exists()]


FILES = own_files()
PYTHON = [name for name in FILES if name.endswith(".py")]


def test_there_is_something_to_look_at() -> None:
    assert "pyproject.toml" in FILES
    assert PYTHON


@pytest.mark.parametrize("command", [("check",), ("format", "--diff")], ids=["check", "format"])
def test_ruff(command: tuple[str, ...]) -> None:
    result = run(TOOLS / "ruff", *command, "--no-cache", *PYTHON)
    assert result.returncode == 0, result.stdout + result.stderr


def test_clang_format() -> None:
    sources = [name for name in FILES if name.endswith(CPP)]
    result = run(TOOLS / "clang-format", "--dry-run", "-Werror", *sources)
    assert result.returncode == 0, result.stderr


def test_starlark_is_only_in_bazel() -> None:
    assert [n for n in FILES if n.endswith(".bzl") and not n.startswith("bazel/")] == []


def test_no_header_depends_on_the_architectures_of_a_source_file() -> None:
    """The linker keeps one definition of an inline function, of any of the files."""
    headers = [name for name in FILES if name.endswith((".h", ".cuh"))]
    assert [n for n in headers if "__CUDA_ARCH_LIST__" in Path(ROOT, n).read_text()] == []


def test_text_files_end_with_one_newline_and_no_blanks() -> None:
    for name in FILES:
        if name.endswith((".bzl", "BUILD", "WORKSPACE", ".md", ".in", ".lds", ".toml", *CPP)):
            text = Path(ROOT, name).read_text()
            assert text == "" or (text.endswith("\n") and not text.endswith("\n\n")), name
            trailing = [i for i, line in enumerate(text.split("\n"), 1) if line != line.rstrip()]
            assert (name, trailing) == (name, [])


def test_xla_kernels_needs_pytorch_alone() -> None:
    """Other libraries are imported where a function has one of their objects, front ends never."""
    for name in PYTHON:
        if not name.startswith("torch_xla_ext/python/xla_kernels/"):
            continue
        tree = ast.parse(Path(ROOT, name).read_text())
        imported = _imported(tree.body)
        assert (name, imported - sys.stdlib_module_names - {"numpy", "torch", "xla_kernels"}) == (
            name,
            set(),
        )
        front_ends = {"torch_xla", "torch_xla_ext", "torch_xla_gpu", "torch_tpu"}
        assert (name, _imported(ast.walk(tree)) & front_ends) == (name, set())


def _imported(nodes: Iterable[ast.AST]) -> set[str]:
    """The top-level packages that the import statements among these nodes name."""
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add(node.module)
    return {name.partition(".")[0] for name in names}
