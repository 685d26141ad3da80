"""Every outside input of the build, in one list. Each is fetched only when a target needs it."""

load(":pip.bzl", "pip_archive", "pip_env")
load(":python.bzl", "python_repository")

# Headers of XLA's stable C interfaces and of its registry of custom call targets: all that the
# code of this project may include. They agree with the commit that torch_xla 2.8.1 pins.
_XLA_HEADERS = [
    "LICENSE",
    "xla/ffi/api/api.h",
    "xla/ffi/api/c_api.h",
    "xla/ffi/api/ffi.h",
    "xla/pjrt/c/pjrt_c_api.h",
    "xla/pjrt/c/pjrt_c_api_*_extension.h",
    "xla/service/custom_call_status.h",
    "xla/service/custom_call_target_registry.h",
]

# Folders of headers for the test that compares csrc/abi with the real classes.
_ALL_XLA_HEADERS = [
    "Eigen/",
    "absl/",
    "external/ml_dtypes_py/",
    "external/com_google_protobuf/",
    "google/protobuf/",
    "ml_dtypes/",
    "tsl/",
    "unsupported/Eigen/",
    "xla/",
]

def torch_xla_ext_repositories():
    """Declares @python, the pinned packages and the environments that tools and tests run in."""
    python_repository(name = "python")
    pip_archive(
        name = "torch",
        build_file = Label("//bazel/third_party:torch.BUILD"),
        files = [
            "torch/include/*",
            "torch/lib/libc10.so",
            "torch/lib/libtorch.so",
            "torch/lib/libtorch_cpu.so",
            "torch/lib/libtorch_python.so",
        ],
        lock = Label("//bazel/pip:locks/torch.lock"),
    )
    pip_archive(
        name = "torch_xla",
        build_file = Label("//bazel/third_party:torch_xla.BUILD"),
        files = ["_XLAC{ext_suffix}=_XLAC.so"],
        keep_wheels = True,
        lock = Label("//bazel/pip:locks/torch_xla.lock"),
    )
    pip_archive(
        name = "xla_headers",
        build_file = Label("//bazel/third_party:xla_headers.BUILD"),
        files = ["tensorflow/include/" + h for h in _XLA_HEADERS] +
                ["tensorflow/include/" + folder + "*" for folder in _ALL_XLA_HEADERS],
        lock = Label("//bazel/pip:locks/xla_headers.lock"),
    )
    pip_archive(
        name = "cuda",
        build_file = Label("//bazel/third_party:cuda.BUILD"),
        files = [
            "nvidia/cu13/*",
            "nvidia_cuda_runtime-*/licenses/License.txt",
        ],
        lock = Label("//bazel/pip:locks/cuda.lock"),
    )
    pip_env(
        name = "build_tools",
        lock = Label("//bazel/pip:locks/build_tools.lock"),
    )
    pip_env(
        name = "dev_tools",
        lock = Label("//bazel/pip:locks/dev_tools.lock"),
    )
    pip_env(
        name = "test_env",
        lock = Label("//bazel/pip:locks/test_env.lock"),
    )
