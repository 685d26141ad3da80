"""The compiled libraries that tests load, by the environment variables that have their paths.

`wheel_test(binaries = [...])` builds those that a test names, and `bazel run //:develop` all of
them, for a pytest that is run by hand (conftest.py).
"""

TEST_BINARIES = {
    "FAKE_CUDNN": ["//tests/plugin:libcudnn.so.9"],
    "FAKE_DRIVER": ["//tests/plugin:libcuda.so.1"],
    "FAKE_PLUGINS": ["//tests/pjrt_shim:fakes"],
    "GATHER_KERNELS": ["//tests/kernel_api:libgather.so"],
    "HOST_KERNELS": ["//tests/csrc:libhost_kernels.so"],
    "NODE_PROBE": ["//tests/csrc/custom_call:node_probe.so"],
    "PAGED_KERNELS": ["//benchmarks:libpaged_kernels.so"],
    "STAGES_FOR_JAX": ["//tests/csrc/registry:libstages_for_jax.so"],
    "STATEFUL_HANDLERS": ["//tests/csrc/registry:libstateful_handlers.so"],
    "TWINS": [
        "//tests/kernel_api:libtwin2.so",
        "//tests/kernel_api:libtwin3.so",
    ],
    "UNTYPED_PAYLOAD_PROBE": ["//tests/kernel_api:libuntyped_payload_probe.so"],
}

def labels_of(binaries):
    """Returns the labels of the libraries that these variables name."""
    return [label for name in binaries for label in TEST_BINARIES[name]]

def environment_of(binaries):
    """Returns {variable: paths in the runfiles}, to be expanded, for a test's `env`."""
    return {
        name: " ".join(["$(rootpaths %s)" % label for label in TEST_BINARIES[name]])
        for name in binaries
    }
