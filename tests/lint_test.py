"""The repository's own files follow the formatters, the linters, and the layout's rules.

Reads the work tree, not runfiles, so that files without a target are checked, too.
"""

import ast
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

TOOLS = Path(sys.executable).parent
ROOT = Path("pyproject.toml").resolve().parent
CPP = (".cc", ".h", ".cu", ".cuh")
# The rules for commits apply after this commit.
FIRST_COMMIT = "0a0c013a"


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run("git", "-c", "safe.directory=*", *arguments)


def own_files() -> list[str]:
    """Returns the files that git knows or would add, without deleted ones."""
    listed = git("ls-files", "-co", "--exclude-standard")
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


def test_the_files_that_conftest_names_exist() -> None:
    tables = {}
    for node in ast.parse(Path(ROOT, "conftest.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in ("NEEDS", "ALONE"):
            tables[ast.unparse(node.targets[0])] = ast.literal_eval(node.value)
    named = [*tables["NEEDS"], *tables["ALONE"]]
    assert [name for name in named if not Path(ROOT, name).exists()] == []
    packages = {
        target.removeprefix("//").partition(":")[0] for _, target in tables["NEEDS"].values()
    }
    assert [name for name in packages if not Path(ROOT, name, "BUILD").exists()] == []


def _listed_tests(build: Path) -> set[str]:
    """The test files that the targets of a BUILD file name; all, for wheel_tests without names."""
    listed = set()
    for node in ast.walk(ast.parse(build.read_text())):  # Starlark is Python here
        if isinstance(node, ast.Constant) and str(node.value).removesuffix(".py").endswith("_test"):
            listed.add(str(node.value).removesuffix(".py"))
        is_list = isinstance(node, ast.Call) and ast.unparse(node.func) == "wheel_tests"
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "kernel_folder":
            listed.add(f"{build.parent.name}_test")
        if is_list and not any(keyword.arg == "tests" for keyword in node.keywords):
            listed |= {file.stem for file in build.parent.glob("*_test.py")}
    return listed


def test_a_target_runs_each_test() -> None:
    """Except for those that need a GPU, which run under plain pytest."""
    tests = [Path(ROOT, name) for name in FILES if name.endswith("_test.py")]
    builds = {
        test: next(p / "BUILD" for p in test.parents if (p / "BUILD").exists()) for test in tests
    }
    assert [
        str(test.relative_to(ROOT))
        for test, build in builds.items()
        if not test.stem.endswith("_gpu_test") and build != ROOT / "tests/gpu/BUILD"
        if test.stem not in _listed_tests(build)
    ] == []


def test_docstrings_do_not_begin_with_a_relative_clause() -> None:
    """Outside of tests. Ruff's D401 asks for the imperative, but takes "What" for a noun."""
    found = []
    for name in PYTHON:
        if name.startswith("tests/") or name.endswith("_test.py"):
            continue
        for node in ast.walk(ast.parse(Path(ROOT, name).read_text())):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                words = (ast.get_docstring(node) or "").split()
                if words and words[0] in ("As", "By", "How", "Of", "Those", "What", "Which"):
                    found.append(f"{name}: {' '.join(words[:6])} …")
    assert found == []


def test_subjects_of_commits() -> None:
    """CONTRIBUTING.md: `area: imperative summary`, within 72 characters."""
    log = git("log", "--no-merges", "--format=%s", f"{FIRST_COMMIT}..HEAD")
    if log.returncode != 0:
        pytest.skip(f"the clone does not go back to {FIRST_COMMIT}")
    subjects = log.stdout.splitlines()
    assert [subject for subject in subjects if len(subject) > 72 or ": " not in subject] == []


def test_starlark_is_only_in_bazel() -> None:
    assert [n for n in FILES if n.endswith(".bzl") and not n.startswith("bazel/")] == []


def test_no_header_depends_on_the_architectures_of_a_source_file() -> None:
    """The linker keeps one definition of an inline function, from an arbitrary file."""
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
    """Other libraries are imported where a function receives their objects; front ends never."""
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
