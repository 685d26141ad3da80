"""Run a TVM-FFI function, such as FlashInfer's, inside an XLA program.

    PJRT_DEVICE=CPU python examples/launchers/tvm_ffi_rms_norm.py
    PJRT_DEVICE=CUDA python examples/launchers/tvm_ffi_rms_norm.py norm.so

On a GPU it is `rmsnorm` of FlashInfer's module `norm`, which
``flashinfer.jit.norm.gen_norm_module().build_and_load()`` compiles into FlashInfer's cache. On the
CPU this script compiles a function with the same arguments instead. It needs apache-tvm-ffi and, on
the CPU, g++. See docs/launchers.md.
"""

import argparse
import importlib.util
import os
import subprocess
import tempfile

import torch
import torch_xla

import torch_xla_ext

ON_CPU = r"""
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

#include <cmath>

using tvm::ffi::TensorView;

void RmsNorm(TensorView out, TensorView input, TensorView weight, double eps, bool) {
  const float* x = static_cast<const float*>(input.data_ptr());
  const float* w = static_cast<const float*>(weight.data_ptr());
  float* y = static_cast<float*>(out.data_ptr());
  const int64_t columns = input.size(1);
  for (int64_t row = 0; row < input.size(0); ++row, x += columns, y += columns) {
    double squares = 0;
    for (int64_t i = 0; i < columns; ++i) squares += x[i] * x[i];
    const double scale = 1 / std::sqrt(squares / columns + eps);
    for (int64_t i = 0; i < columns; ++i) y[i] = x[i] * scale * w[i];
  }
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(rmsnorm, RmsNorm);
"""


def compiled_for_cpu() -> str:
    package = importlib.util.find_spec("tvm_ffi").submodule_search_locations[0]
    library = f"{tempfile.mkdtemp()}/norm.so"
    command = ["g++", "-std=c++17", "-O2", "-shared", "-fPIC", f"-I{package}/include"]
    subprocess.run([*command, "-x", "c++", "-", "-o", library], input=ON_CPU.encode(), check=True)
    return library


def main() -> None:
    on_gpu = os.environ.get("PJRT_DEVICE") == "CUDA"
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if on_gpu:
        parser.add_argument("library", help="FlashInfer's norm.so")
    arguments = parser.parse_args()
    torch_xla_ext.register_kernel(
        "RmsNorm",
        arguments.library if on_gpu else compiled_for_cpu(),
        abi="tvm-ffi",
        symbol="rmsnorm",
        platform="CUDA" if on_gpu else "Host",
        signature="(x: T[n, d], weight: T[d]) -> (out: T[n, d]) where T: F32 | F16 | BF16",
        parameters="eps: f64, enable_pdl: bool",
        arguments="out x weight eps enable_pdl",
        cuda_graph=True,
    )
    # As an operator, calls are checked by the signature; it works under torch.compile and
    # torch.export.
    rms_norm = torch_xla_ext.define_operator(
        "example::rms_norm(Tensor x, Tensor weight, float eps, bool enable_pdl=False) -> Tensor",
        target="RmsNorm",
    )

    device = torch_xla.device()
    dtype = torch.bfloat16 if on_gpu else torch.float32
    x, weight = torch.randn(16, 512).to(dtype), torch.randn(512).to(dtype)
    expected = torch.nn.functional.rms_norm(x.float(), (512,), weight.float(), 1e-6).to(dtype)
    result = rms_norm(x.to(device), weight.to(device), 1e-6)
    torch.testing.assert_close(result.cpu(), expected)
    compiled = torch.compile(
        lambda x, weight: rms_norm(x, weight, 1e-6) * 2, backend="openxla", fullgraph=True
    )
    torch.testing.assert_close(compiled(x.to(device), weight.to(device)).cpu(), expected * 2)
    print("rmsnorm: as PyTorch's, also under torch.compile")


if __name__ == "__main__":
    main()
