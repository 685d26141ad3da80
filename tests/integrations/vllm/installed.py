"""Installs vllm-xla-gpu as a user does, before vLLM looks for its plugins, and imports both.

BUILD imports this module once for all files of a target: a process that imports vLLM itself takes
eight seconds. Nothing in here may use a device or start a thread, for the tests are forked.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path


def _install(project: Path, target: Path) -> None:
    with tempfile.TemporaryDirectory() as copy:  # pip builds in the folder
        shutil.copytree(project, copy, dirs_exist_ok=True)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        options = ["--no-index", "--no-deps", "--no-build-isolation", "--target", str(target)]
        subprocess.run([*pip, *options, copy], check=True)


if importlib.util.find_spec("vllm_xla_gpu") is None:  # a GPU machine may have it, but not pip
    _target = Path(tempfile.mkdtemp(), "site")
    _install(Path("integrations/vllm").absolute(), _target)
    sys.path.insert(0, str(_target))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(_target), os.environ["PYTHONPATH"]])
# The engine runs in this process, where compilations can be counted; vLLM reports no usage.
os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",  # which the server reads when it is imported
    # 64 MiB for caches, because each engine writes zeros to all of them.
    "VLLM_CPU_KVCACHE_SPACE": "0.0625",
    # For sockets, whose paths may have 107 characters; the path of a test's own folder is longer.
    "VLLM_RPC_BASE_PATH": tempfile.mkdtemp(dir="/tmp"),
}
