#!/usr/bin/env python3
"""Set up vLLM on torch_xla in the environment of the Python that runs this script.

The environment must have torch 2.8.0 and this project's torch_xla wheel. The script installs vLLM
and the packages that it imports, from lock files with versions and SHA-256 (bazel/pip/locks), and
vllm-xla-gpu. A vLLM that `pip install vllm==0.11.0` has installed is kept.
"""

import argparse
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).absolute().parent
ROOT = FOLDER.parents[1]
LOCKS = ROOT / "bazel/pip/locks"
IMPORTED, VLLM = LOCKS / "vllm.lock", LOCKS / "vllm_cuda.lock"  # what vLLM imports, and vLLM
PYTHONS = ((3, 11), (3, 12))

sys.path[:0] = [str(ROOT / "bazel/pip"), str(FOLDER)]
import fetch  # noqa: E402  # turns pip's errors into sentences
from vllm_xla_gpu import environment  # noqa: E402

NEEDED = {"torch": "2.8.0", "torch_xla": environment.TORCH_XLA_VERSION}
CHECK = """
import vllm
from vllm.platforms import current_platform
print(f"vllm {vllm.__version__} on {current_platform.get_device_name()}")
"""


def check_environment() -> None:
    """Raise FetchError unless this environment has the wheel and a supported Python."""
    if sys.version_info[:2] not in PYTHONS:
        raise fetch.FetchError(
            "vllm-xla-gpu is for Python 3.11 and 3.12, but this is Python {}.{}: build the "
            "wheel for one of them (PYTHON_BIN_PATH)".format(*sys.version_info)
        )
    for name, version in NEEDED.items():
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found = "none"
        ours = name != "torch_xla" or "+" in found
        if found.split("+")[0] != version or not ours:
            raise fetch.FetchError(
                f"this environment ({sys.prefix}) has {name} {found}, and vLLM needs {version} "
                "of this project: `./bazelw build //:wheel`, then "
                f"`{sys.executable} -m pip install torch==2.8.0 bazel-bin/wheel/*.whl`"
            )


def install_vllm() -> None:
    """Install vLLM, or keep an installed one.

    Raises:
        FetchError: the installed vLLM has an unsupported version, or pip fails.
    """
    if found := environment.installed():
        if reason := environment.unserved(found):
            raise fetch.FetchError(f"{reason}; this script is for an environment without vLLM")
        print(f"1/3 vLLM is there: vllm {found['vllm']}", flush=True)
        return
    count = sum("==" in line for line in IMPORTED.read_text().splitlines())
    version = environment.VLLM_VERSION
    print(f"1/3 vllm {version} and what it imports: {count} packages", flush=True)
    for lock in (IMPORTED, VLLM):
        fetch.pip(sys.executable, ["install", "--quiet"], str(lock))


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    try:
        check_environment()
        install_vllm()
        print("2/3 vllm-xla-gpu", flush=True)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        with tempfile.TemporaryDirectory() as copy:  # pip builds in the folder
            shutil.copytree(FOLDER, copy, dirs_exist_ok=True)
            subprocess.run([*pip, "--no-deps", copy], check=True)
        print("3/3 check the result, on the CPU", flush=True)
        environment = {**os.environ, "PJRT_DEVICE": "CPU", "VLLM_LOGGING_LEVEL": "WARNING"}
        subprocess.run([sys.executable, "-c", CHECK], check=True, env=environment)
    except fetch.FetchError as error:
        sys.exit(f"install.py: {error}")
    except subprocess.CalledProcessError as error:
        sys.exit(f"install.py: the step above failed ({' '.join(map(str, error.cmd[:4]))} ...)")
    print("Serve with: PJRT_DEVICE=CPU vllm serve MODEL, or PJRT_DEVICE=CUDA on a GPU")


if __name__ == "__main__":
    main()
