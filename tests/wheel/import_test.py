"""The installed wheel imports and works where there is no GPU, no driver and no CUDA."""

import importlib.metadata
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
from testing.scripts import run_script

from torch_xla_ext.tools import doctor

PACKAGES = ["torch_xla_ext", "torch_xla_ext_startup", "torch_xla_huggingface", "xla_kernels"]
# And modules that they import for some calls only.
WHEEL = {*PACKAGES, "torch_xla", "_XLAC", "torch._dynamo", "torch._inductor"}


def test_the_wheel_under_test_is_ours() -> None:
    assert importlib.metadata.version("torch_xla").startswith("2.8.1+gpucc2.")


def test_the_package_is_imported_when_it_is_needed() -> None:
    """torch_xla imports a small module of ours; the first use of the package imports the rest."""
    code = (
        "import sys, torch, torch_xla\n"
        "print('torch_xla_ext_startup.plugin' in sys.modules, 'torch_xla_ext' in sys.modules)\n"
        "library = torch.library.Library('xla_gpu', 'FRAGMENT')\n"
        "print(torch.ops.xla_gpu, 'torch_xla_ext' in sys.modules)\n"
        "x = torch.ones(2, device='xla')\n"
        "print(torch.ops.xla_gpu.simple_add(x, x).tolist(), 'torch_xla_ext' in sys.modules)\n"
        "library.define('own(Tensor x) -> Tensor')\n"
        "print(torch.ops.xla_gpu.own)\n"
        "print(type(torch.ops.xla_gpu).__name__, hasattr(torch.ops.xla_gpu, 'missing'))\n"
    )
    assert run(code) == [
        "True False",
        "<module 'torch.ops.xla_gpu' from 'torch.ops'> False",
        "[2.0, 2.0] True",
        "xla_gpu.own",
        "_OpNamespace False",
    ]


def test_quantized_operators_are_there_without_an_import() -> None:
    code = (
        "import sys, torch, torch_xla\n"
        "print('torch.ao.quantization.fx._decomposed' in sys.modules)\n"
        "print(torch.ops.quantized_decomposed.quantize_per_channel)\n"
    )
    assert run(code) == ["False", "quantized_decomposed.quantize_per_channel"]


@pytest.mark.parametrize("first", ["torch_xla", "torch_xla_ext"])
def test_upstreams_kernels_are_replaced_without_our_package(first: str) -> None:
    code = (
        f"import sys, torch, {first}\n"
        "from torch_xla.experimental import custom_kernel\n"
        "q = torch.zeros(1, 1, 8, 64, device='xla')\n"
        "print(custom_kernel.flash_attention(q, q, q).shape)\n"
        "print(custom_kernel.gmm.__code__.co_filename.endswith('torch_xla_ext/custom_kernel/install.py'))\n"
        "sizes = torch.tensor([8], device='xla')\n"
        "print(custom_kernel.gmm(q[0, 0], q[0].mT, sizes).shape)\n"
    )
    assert run(code) == ["torch.Size([1, 1, 8, 64])", "True", "torch.Size([8, 8])"]


@pytest.mark.parametrize("first", ["torch_xla", "torch_xla_ext"])
def test_dynamo_is_imported_when_it_is_used(first: str) -> None:
    code = (
        f"import sys, torch, {first}\n"
        "model = torch.nn.Linear(2, 2).to('xla')\n"
        "model(torch.ones(1, 2, device='xla')).sum().backward()\n"
        "print('torch._dynamo' in sys.modules, 'torch._inductor' in sys.modules)\n"
        "torch._dynamo.config.cache_size_limit = 3\n"  # by a user
        "print('torch._dynamo' in sys.modules, torch._dynamo.config.specialize_float)\n"
        "print('torch._dynamo' in sys.modules, torch._dynamo.config.automatic_dynamic_shapes)\n"
        "print(torch._dynamo.config.recompile_limit, torch._dynamo.is_compiling())\n"
        "import torch._dynamo.config as config\n"
        "print(config is torch._dynamo.config, config.cache_size_limit, config.specialize_float)\n"
    )
    assert run(code) == ["False False", "False True", "False False", "3 False", "True 3 True"]


@pytest.mark.parametrize("device", ["meta", "xla"])
def test_dynamo_is_imported_where_a_mode_is_active(device: str) -> None:
    """Importing dynamo computes with tensors, which fails in PyTorch itself if a mode is active."""
    code = (
        "import torch, torch_xla\n"
        f"with torch.device('{device}'):\n"
        "    import torch._dynamo\n"
        "    print(torch.ones(2).device.type)\n"
        "x = torch.ones(2, device='xla')\n"
        "print(torch.compile(lambda x: x + 1, backend='openxla')(x).tolist())\n"
    )
    assert run(code) == [device, "[2.0, 2.0]"]


def test_scan_and_export_import_dynamo() -> None:
    code = (
        "import sys, torch, torch_xla\n"
        "from torch_xla.experimental.scan import scan\n"
        "from torch_xla.stablehlo import exported_program_to_stablehlo\n"
        "print('torch._dynamo' in sys.modules)\n"
        "x = torch.arange(3.0, device='xla', requires_grad=True)\n"
        "add = lambda carry, x: (carry + x, carry + x)\n"
        "last, sums = scan(add, torch.zeros((), device='xla'), x)\n"
        "sums.sum().backward()\n"
        "print(sums.tolist(), x.grad.tolist())\n"
        "exported = torch.export.export(torch.nn.ReLU(), (torch.ones(2),))\n"
        "program = exported_program_to_stablehlo(exported)\n"
        "print('stablehlo.maximum' in program.get_stablehlo_text())\n"
    )
    assert run(code) == ["False", "[0.0, 1.0, 3.0] [3.0, 2.0, 1.0]", "True"]


@pytest.mark.parametrize(
    "first",
    [
        "torch_xla",
        "torch._dynamo, torch_xla",
        "torch._dynamo.backends.torchxla, torch_xla",
        "torch_xla_ext",
    ],
)
def test_inductor_is_imported_by_the_first_compilation(first: str) -> None:
    code = (
        f"import inspect, sys, torch, {first}, torch_xla\n"
        "from torch_xla._dynamo import dynamo_bridge\n"
        "inspect.getmodule(type('', (), {}))\n"  # looks at all modules
        "print('openxla' in torch._dynamo.list_backends())\n"
        "def f(x): return x + 1, (x + 1).clone()\n"
        "x = torch.ones(2, device='xla')\n"
        "print([t.tolist() for t in torch_xla.compile(f)(x)])\n"
        "print('torch._inductor.lowering' in sys.modules)\n"
        "print([t.tolist() for t in torch.compile(f, backend='openxla')(x)])\n"
        "print('torch._inductor.lowering' in sys.modules)\n"
        "print(dynamo_bridge.extract_internal.__module__, type(dynamo_bridge).__name__)\n"
        "from torch_xla.core.dynamo_bridge import extract_compiled_graph\n"
        "print(extract_compiled_graph is dynamo_bridge.extract_compiled_graph)\n"
    )
    assert run(code) == [
        "True",
        "[[2.0, 2.0], [2.0, 2.0]]",
        "False",
        "[[2.0, 2.0], [2.0, 2.0]]",
        "True",
        "torch_xla_ext_startup.upstream_fixes.dynamo_bridge module",
        "True",
    ]


def run(code: str) -> list[str]:
    """Runs code in a process that has imported torch (BUILD), but not this wheel."""
    result = run_script(f"import sys\nassert not {WHEEL} & sys.modules.keys()\n{code}")
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def test_a_checkout_does_not_hide_the_wheel() -> None:
    """Python searches its working folder first, and a checkout has a folder torch_xla_ext/."""
    assert Path("torch_xla_ext/python/torch_xla_ext/__init__.py").exists()
    installed = [importlib.util.find_spec(name).origin for name in PACKAGES]
    code = (
        "import sys, torch_xla_ext, torch_xla_ext_startup, torch_xla_huggingface, xla_kernels\n"
        "print(sys.path[0] == '')\n"
        f"for name in {PACKAGES}: print(sys.modules[name].__file__)\n"
        "from torch_xla_ext import ops\n"
        "print(ops.simple_add.__name__)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.splitlines() == ["True", *installed, "simple_add"], result.stderr
    result = subprocess.run(
        [sys.executable, "-m", "torch_xla_ext", "doctor"], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "simple_add works" in result.stdout
    assert "for GPUs of compute capability 8.0 and later" in result.stdout
    assert re.search(r"^NVRTC {9}(12\.|13\.|not installed)", result.stdout, re.MULTILINE)


@pytest.mark.parametrize("module", ["torch_xla", "torch_xla_ext"])
@pytest.mark.parametrize("configured", [False, True], ids=["after", "before"])
def test_the_root_logger_is_the_programs(module: str, configured: bool) -> None:
    configure = "logging.basicConfig(level=logging.INFO, format='mine: %(message)s')\n"
    code = (
        "import logging, os\n"
        "del os.environ['PJRT_DEVICE']\n"
        f"{configure if configured else ''}"
        f"import {module}\n"
        f"{'' if configured else configure}"
        "print(len(logging.root.handlers))\n"
        "logging.getLogger('torch_xla_ext.capture').info('seen')\n"
    )
    result = run_script(code)
    assert result.stdout == "1\n"
    assert result.stderr.splitlines()[-1] == "mine: seen", result.stderr
    assert "Defaulting to PJRT_DEVICE=CPU" in result.stderr


@pytest.mark.parametrize(
    ("version", "text"),
    [
        ("2.8.1+gpucc2.f5d0d066", "GPUs of compute capability 8.0 and later"),
        ("2.8.1+gpucc2.sm90.f5d0d066", "sm_90 and later ones: built with --//bazel/cuda:archs=90"),
        (
            "2.8.1+gpucc2.sm90a.sm100f.f5d0d066",
            "sm_90a, sm_100f only: built with --//bazel/cuda:archs=90a,100f",
        ),
    ],
)
def test_gpus_of_the_wheel(version: str, text: str) -> None:
    assert doctor.compiled_for(version) == text


def test_import_touches_no_driver() -> None:
    code = (
        "import torch_xla, torch_xla_ext, _XLAC\n"
        "print('FRONT', _XLAC.__file__)\n"
        "print('DRIVER', 'libcuda.so' in open('/proc/self/maps').read())\n"
    )
    front, driver = run(code)
    assert (
        Path(front.removeprefix("FRONT ")).with_name("torch_xla").joinpath("lib/_XLAC.so").exists()
    )
    assert driver == "DRIVER False"


def test_a_tensor_can_be_computed_on_the_cpu() -> None:
    import torch
    import torch_xla

    a = torch.arange(3.0, device=torch_xla.device())
    assert torch.equal((a + a).cpu(), torch.tensor([0.0, 2.0, 4.0]))


def test_import_where_torch_has_cuda() -> None:
    """Upstream then loads no stand-ins for torch's CUDA functions; torch 2.8.0 lacks one."""
    code = (
        "import ctypes, torch\n"
        "torch.cuda.is_available = lambda: True\n"
        "import torch_xla, _XLAC\n"
        "print('FORWARDED', hasattr(ctypes.CDLL(_XLAC.__file__), '_ZN3c104cuda10set_deviceEa'))\n"
        "print((torch.ones(2, device='xla') + 1).tolist())"
    )
    assert run(code) == ["FORWARDED True", "[2.0, 2.0]"]
