"""Discovery and doctor on a host with a GPU."""

import json
import os
import subprocess
import sys

import torch
import torch_xla

from xla_kernels.plugin import discovery


def run(
    code: str | None = None, *command: str, **variables: str | None
) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, **{k: v for k, v in variables.items() if v is not None}}
    for name, value in variables.items():
        if value is None:
            environ.pop(name, None)
    arguments = [sys.executable, *(command if code is None else ["-c", code])]
    return subprocess.run(arguments, env=environ, capture_output=True, text=True, timeout=300)


def test_neither_ld_library_path_nor_xla_flags_is_needed() -> None:
    code = (
        "import os, torch, torch_xla\n"
        "a = torch.randn(256, 256)\n"
        "x = a.to(torch_xla.device())\n"
        "print((torch.sin(x @ x) + torch.erfinv(torch.tanh(x))).sum().cpu().isfinite().item())\n"
        "print(os.environ['XLA_FLAGS'])\n"
    )
    # The bundle's own Python needs its library folder in LD_LIBRARY_PATH.
    libraries = os.environ.get("BUNDLE_LIBRARIES")
    result = run(code, LD_LIBRARY_PATH=libraries, XLA_FLAGS=None)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("True")


def test_doctor() -> None:
    result = run(None, "-m", "torch_xla_ext", "doctor", "--json")
    assert result.returncode == 0, result.stdout + result.stderr
    report = json.loads(result.stdout)
    assert report["ok"]
    assert report["platform"] == "CUDA"
    assert report["devices"]
    assert list(report["self_test"].values()) == ["simple_add works"] * len(report["devices"])
    targets = [(t["name"], t["platform"], t["api"]) for t in report["targets"]]
    assert ("XlaGpuSimpleAdd", "CUDA", "untyped") in targets


def test_without_a_visible_gpu() -> None:
    code = (
        "import torch_xla\n"
        "for _ in range(2):\n"
        "    try:\n"
        "        torch_xla.device()\n"
        "    except RuntimeError as error:\n"
        "        print(error)\n"
    )
    result = run(code, CUDA_VISIBLE_DEVICES="")
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("no GPU") == 2
    assert "CUDA_VISIBLE_DEVICES is ''" in result.stdout


def test_the_cpu_is_untouched() -> None:
    code = "import torch_xla; print(torch_xla.device()); import os; print(os.environ['XLA_FLAGS'])"
    result = run(code, PJRT_DEVICE="CPU", XLA_FLAGS=None)
    assert result.returncode == 0
    assert "xla_gpu_cuda_data_dir" not in result.stdout


def test_the_plugin_and_the_driver_are_known(device: torch.device) -> None:
    plugins = discovery.find_plugins(discovery.System.current())
    assert plugins
    driver = discovery.find_driver(discovery.System.current())
    assert driver.version
    assert driver.device_count == len(torch_xla._XLAC._xla_get_devices())
