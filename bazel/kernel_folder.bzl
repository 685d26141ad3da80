"""kernel_folder: the targets of a folder of //kernels, by the names of its files."""

load(":operators.bzl", "operator_module")
load(":pytest.bzl", "wheel_test")
load(":xla_kernel.bzl", "xla_kernel")

def kernel_folder(name, srcs = [], hdrs = [], deps = [], op_deps = [], users = [], env = {}):
    """The kernel NAME.cu and NAME_host.cc with NAME.h, its operator op.py, and NAME_test.py.

    Without a NAME.cu, the operator is composed of other operators. Arguments with which tests/ops
    tests the operator are in samples.py. NOTES.md, if there is one, may be linked to.

    Args:
      name: the folder's name.
      srcs: more of the kernel's source files.
      hdrs: more of its headers.
      deps: C++ libraries that they need besides torch_xla_ext/kernel.h.
      op_deps: operator_modules that op.py imports.
      users: packages that use the kernel, besides //kernels.
      env: environment variables of the test.
    """
    visibility = ["//kernels:__pkg__"] + users
    if native.glob([name + ".cu"], allow_empty = True):
        xla_kernel(
            name = name,
            srcs = native.glob([name + ".cu", name + "_host.cc"]) + srcs,
            hdrs = [name + ".h"] + hdrs,
            op = "op.py",
            op_deps = op_deps,
            op_samples = ([None] + native.glob(["samples.py"], allow_empty = True))[-1],
            visibility = visibility,
            deps = deps,
        )
    else:
        operator_module(name = name, src = "op.py", visibility = visibility)
    wheel_test(
        name = name + "_test",
        srcs = [name + "_test.py", "//kernels:testing"],
        env = env,
    )
    native.exports_files(native.glob(["NOTES.md"], allow_empty = True))
