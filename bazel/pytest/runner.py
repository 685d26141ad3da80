"""Run pytest with Bazel's test protocol: filter, XML output, and only the test's own folders.

runner.py [--path=FOLDER ...] [--preload=MODULE ...] -- FILE.py... [PYTEST OPTION ...]

With --preload, each file runs in its own process (forked.py). For pytest without Bazel, conftest.py
in the repository's root sets the same variables.
"""

import argparse
import os
import sys
from pathlib import Path

# Variables of every test, unless the target or the user sets them.
DEFAULTS = {
    "PJRT_DEVICE": "CPU",
    # Tests compile many programs and run each of them once or twice, with small tensors. So LLVM
    # does not optimize, and receives each program in one module instead of 32. XLA's own passes are
    # unchanged.
    "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1",
    # Otherwise tvm_ffi compiles its own functions for torch's tensors, with all of torch's headers,
    # when it is first imported. No test passes it a tensor of torch.
    "TVM_FFI_DISABLE_TORCH_C_DLPACK": "1",
    "HF_HUB_OFFLINE": "1",
}


def environment(paths: list[str], tmp: Path) -> dict[str, str]:
    """Return the variables that keep a test inside its own folder `tmp`."""
    home = tmp / "home"
    home.mkdir(parents=True, exist_ok=True)
    return {
        "HOME": str(home),
        "TMPDIR": str(tmp),
        "XDG_CACHE_HOME": str(home / ".cache"),
        "HYPOTHESIS_STORAGE_DIRECTORY": str(tmp / "hypothesis"),
        "PYTHONPATH": os.pathsep.join(str(Path(path).absolute()) for path in paths),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONNOUSERSITE": "1",
        # torch_xla imports inductor, which would start a pool of processes that no test needs: four
        # seconds for each import.
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        # No test needs inductor's vector code, either. To find out which instructions are
        # available, inductor would compile a program with all of torch's headers: seven seconds.
        "TORCHINDUCTOR_VEC_ISA_OK": "0",
        # Bazel runs as many tests as there are cores. With more threads, OpenMP's threads of
        # several tests would spin while they wait, and PyTorch's sums would take two to three times
        # the processor time.
        "OMP_NUM_THREADS": "1",
    }


def plugins(files: list[str]) -> list[str]:
    """Leave out hypothesis's plugin if nothing uses it, which saves a second in each process."""
    if any("hypothesis" in Path(file).read_text() for file in files if file.endswith(".py")):
        return []
    return ["-p", "no:hypothesispytest"]


def pytest_options(variables: os._Environ[str], tmp: Path) -> list[str]:
    """Translate Bazel's variables into pytest's options."""
    options = ["-p", "no:cacheprovider", f"--basetemp={tmp / 'pytest'}", "--strict-markers", "-ra"]
    if expression := variables.get("TESTBRIDGE_TEST_ONLY"):
        options += [f"-k{expression}"]
    if xml := variables.get("XML_OUTPUT_FILE"):
        options += [f"--junitxml={xml}"]
    if variables.get("TESTBRIDGE_TEST_RUNNER_FAIL_FAST") == "1":
        options += ["--exitfirst"]
    return options


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--path", action="append", default=[], help="folder for PYTHONPATH")
    parser.add_argument("--preload", action="append", default=[], help="module, for forked.py")
    parser.add_argument("arguments", nargs="+", help="for pytest")
    args = parser.parse_args()
    tmp = Path(os.environ["TEST_TMPDIR"])
    program = ["-m", "pytest"]
    if args.preload:
        forked = str(Path(__file__).with_name("forked.py"))
        program = [forked, *[f"--preload={module}" for module in args.preload], "--"]
    # A new process, so that PYTHONPATH and HOME apply to Python itself, too. With -P, our sources
    # in the working folder do not hide the installed packages.
    command = [sys.executable, "-P", *program, *plugins(args.arguments)]
    command += [*pytest_options(os.environ, tmp), *args.arguments]
    os.execve(sys.executable, command, {**DEFAULTS, **os.environ, **environment(args.path, tmp)})


if __name__ == "__main__":
    main()
