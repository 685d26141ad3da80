"""xla_kernel: a kernel for CUDA and the Host, registered where it is linked in."""

load(":configurations.bzl", "kernels")
load(":cuda.bzl", "cuda_library")
load(":operators.bzl", "operator_module")

_KERNEL_API = Label("//torch_xla_ext/include:kernel_api")
_FLOATS = Label("//torch_xla_ext/include:floats")

# With this macro, XLA_KERNEL_CUDA and XLA_KERNEL_HOST register the kernels that they define.
_STATIC = "TORCH_XLA_EXT_STATIC_KERNELS"

def xla_kernel(name, srcs, hdrs = [], deps = [], nvcc_copts = [], extra_archs = [], op = None, op_deps = [], op_samples = None, **kwargs):
    """Compiles a kernel that is written with torch_xla_ext/kernel.h.

    It is in the wheel if it is listed in //kernels, or passed to `wheel_with_kernels` or
    `--@torch_xla_ext//kernels:additional`.

    Args:
      name: the library.
      srcs: the .cu files, with XLA_KERNEL_CUDA, and the .cc files, with XLA_KERNEL_HOST. With both,
        the kernel can be tested without a GPU; without a .cc file, its operator raises an error on
        the CPU that it supports only CUDA.
      hdrs: headers that both include, with the signature and the parameters.
      deps: C++ libraries that they need besides torch_xla_ext/kernel.h. A cc_library with
        `includes` adds an include path.
      nvcc_copts: more options for nvcc, such as `--expt-relaxed-constexpr`.
      extra_archs: as in cuda_library: `90a`, for instance.
      op: the Python file of its operator, which is torch_xla_ext.ops.NAME in the wheel.
      op_deps: operator_modules that it imports.
      op_samples: samples.py, the arguments with which tests/ops tests the operator.
      **kwargs: visibility and the like.
    """
    cuda = [src for src in srcs if src.endswith(".cu")]
    host = [src for src in srcs if src.endswith(".cc")]
    if not cuda or len(cuda) + len(host) != len(srcs):
        fail("xla_kernel %s: srcs must be .cu files for CUDA and perhaps .cc files for the Host, but are %s" %
             (name, ", ".join(srcs)))
    cuda_library(
        name = name + "_cuda",
        srcs = cuda,
        hdrs = hdrs,
        copts = ["-D" + _STATIC] + nvcc_copts,
        extra_archs = extra_archs,
        deps = deps + [_KERNEL_API],
        visibility = ["//visibility:private"],
    )
    parts = [name + "_cuda"]
    if host:
        native.cc_library(
            name = name + "_host",
            srcs = host,
            hdrs = hdrs,
            local_defines = [_STATIC],
            deps = deps + [
                _FLOATS,
                _KERNEL_API,
            ],
            # The registration is a static object that nothing refers to.
            alwayslink = True,
            visibility = ["//visibility:private"],
        )
        parts.append(name + "_host")
    if op:
        operator_module(
            name = name + "_op",
            src = op,
            module = name,
            samples = op_samples,
            deps = op_deps,
            visibility = ["//visibility:private"],
        )
        parts.append(name + "_op")
    kernels(name = name, deps = parts, **kwargs)
