"""Run pytest without Bazel, in the environment that `./bazelw run //:develop` makes.

    pytest tests/graph/views_test.py    in this process
    pytest tests/graph                  each file in a process of its own (bazel/pytest/forked.py)

This file sets the variables that Bazel's rules set, unless they are set, and skips test files that
need missing packages or files. Bazel's own runs do not read this file.
"""

import importlib.util
import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest
import runner

ROOT = Path(__file__).parent
# Folders and files whose tests need a module that the environment may lack, and the target that
# provides it. None stands for files that only Bazel makes.
NEEDS = {
    "tests/csrc/registry/stages_jax_test.py": ("jax", "//tests/csrc/registry:stages_jax_test"),
    "tests/docs/huggingface_page_test.py": ("transformers", "//tests/docs:huggingface_page_test"),
    "tests/docs/site_test.py": (None, "//tests/docs:site_test"),
    "tests/bazel/wheel/extension_test.py": (None, "//tests/bazel/wheel:extension_test"),
    "tests/examples/own_kernel_jax_test.py": ("jax", "//tests/examples:own_kernel_jax_test"),
    "tests/examples/own_kernel_static_test.py": (None, "//tests/examples:own_kernel_static_test"),
    "tests/examples/smollm2_test.py": ("transformers", "//tests/examples:smollm2_test"),
    "tests/integrations/huggingface": ("transformers", "//tests/integrations/huggingface:all"),
    "tests/integrations/torch_tpu": ("torch_tpu", "//tests/integrations/torch_tpu:torch_tpu_test"),
    "tests/integrations/vllm": ("vllm", "//tests/integrations/vllm:all"),
    "tests/users/pure_functions_test.py": ("jax", "//tests/users:pure_functions_test"),
    "tests/wheel/install_test.py": (None, "//tests/wheel:install_test"),
    "tests/wheel/reproducible_test.py": (None, "//tests/wheel:reproducible_test"),
    "tests/wheel/structure_test.py": (None, "//tests/wheel:structure_test"),
}
# Files that need a process that has not imported torch_xla before.
ALONE = ["tests/wheel/import_test.py"]


def reason_to_skip(file: Path) -> str | None:
    """Return why a test file cannot run here, and the command that runs it."""
    for path, (module, target) in NEEDS.items():
        if file.is_relative_to(ROOT / path) and not (module and importlib.util.find_spec(module)):
            missing = f"{module} is not installed" if module else "needs what Bazel makes"
            return f"{missing}: ./bazelw test {target}"
    return None


def set_variables() -> None:
    """Set the variables of bazel/pytest/runner.py that are not set."""
    binaries = Path(sys.prefix, "test_binaries/variables.json")
    libraries = json.loads(binaries.read_text()) if binaries.is_file() else {}
    tests = runner.environment([str(ROOT / "tests")], Path(tempfile.mkdtemp(prefix="tests-")))
    for private in ("HOME", "TMPDIR"):  # the caches in them are the tests' by other variables
        del tests[private]
    if own := os.environ.pop("PYTHONPATH", ""):
        tests["PYTHONPATH"] = own + os.pathsep + tests["PYTHONPATH"]
    for name, value in {**runner.DEFAULTS, **libraries, **tests}.items():
        os.environ.setdefault(name, value)


set_variables()
os.chdir(ROOT)  # tests read files by their paths in the repository


def files_of(arguments: list[str], folder: Path) -> list[str]:
    """Return the test files, or tests (file::test), that pytest's arguments name."""
    files = []
    for argument in arguments:
        path, _, part = argument.partition("::")
        found = Path(folder, path)
        if found.is_dir():
            files += map(str, sorted(found.rglob("*_test.py")))
        else:
            files.append(f"{found}::{part}" if part else str(found))
    return files


def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Run several files one by one, each in a process that is forked from a common one.

    A test file chooses the number of devices, compiles with process-wide options, or registers
    kernels, and so would disturb the next file in the same process.
    """
    files = files_of(config.args, config.invocation_params.dir)
    if len(files) < 2:
        return None
    options = [each for each in config.invocation_params.args if each not in config.args]
    reasons = {file: reason_to_skip(Path(file.partition("::")[0])) for file in files}
    for file in ALONE:
        if str(ROOT / file) in reasons:
            reasons[str(ROOT / file)] = f"run it alone: pytest {file}"
    skipped = Counter(filter(None, reasons.values()))
    for reason, count in skipped.items():
        print(f"=== {count} files skipped: {reason}")
    runnable = [os.path.relpath(file) for file, reason in reasons.items() if reason is None]
    if not runnable:
        return int(pytest.ExitCode.NO_TESTS_COLLECTED)
    program = [str(ROOT / "bazel/pytest/forked.py")]
    if os.environ["PJRT_DEVICE"] == "CPU":  # CUDA does not work in a fork
        program.append("--preload=torch_xla")
    sys.stdout.flush()
    return os.execv(sys.executable, [sys.executable, "-P", *program, "--", *options, *runnable])


def pytest_report_header() -> str | None:
    if Path(sys.prefix, "test_binaries").is_dir() or "HOST_KERNELS" in os.environ:
        return None
    return "tests lack compiled libraries: `./bazelw run //:develop` makes an environment with them"


class Skipped(pytest.Module):
    """A file that is not imported, because its imports would fail."""

    def collect(self) -> list[pytest.Item]:
        pytest.skip(reason_to_skip(self.path), allow_module_level=True)


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Module | None:
    if reason_to_skip(module_path):
        return Skipped.from_parent(parent, path=module_path)
    return None
