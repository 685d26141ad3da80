"""The external inputs of //kernels, in this project's build and in a build of torch_xla from
source."""

load(":pip.bzl", "pip_archive")
load(":python.bzl", "python_repository")

# Headers of XLA's stable C interfaces and of its custom-call target registry: the only ones that
# the code of this project may include. They are the same at the commit that torch_xla 2.8.1 pins.
_XLA_HEADERS = [
    "LICENSE",
    "xla/backends/profiler/plugin/profiler_c_api.h",
    "xla/ffi/api/api.h",
    "xla/ffi/api/c_api.h",
    "xla/ffi/api/c_api_internal.h",
    "xla/ffi/api/ffi.h",
    "xla/pjrt/c/pjrt_c_api.h",
    "xla/pjrt/c/pjrt_c_api_*_extension.h",
    "xla/service/custom_call_status.h",
    "xla/service/custom_call_target_registry.h",
]

# Folders of headers for the test that compares csrc/interpose/abi with the real classes. In a build of
# torch_xla from source they would shadow its own.
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

def kernel_archives(python, for_tests):
    """Declares the packages that the kernels are compiled with.

    Args:
      python: the `python.json` of a python_repository, whose pip fetches them.
      for_tests: whether @xla_headers has all headers, for //torch_xla_ext/csrc/interpose/abi:layout_test.
    """
    pip_archive(
        name = "xla_headers",
        build_file = Label("//bazel/third_party:xla_headers.BUILD"),
        files = ["tensorflow/include/" + h for h in _XLA_HEADERS] +
                ["tensorflow/include/" + folder + "*" for folder in _ALL_XLA_HEADERS if for_tests],
        lock = Label("//bazel/pip:locks/xla_headers.lock"),
        python = python,
    )
    pip_archive(
        name = "cuda",
        build_file = Label("//bazel/third_party:cuda.BUILD"),
        files = [
            "nvidia/cu13/*",
            "nvidia_cuda_runtime-*/licenses/License.txt",
        ],
        lock = Label("//bazel/pip:locks/cuda.lock"),
        python = python,
    )

def kernel_repositories():
    """Declares the same packages for the WORKSPACE of PyTorch/XLA.

    patches/*/0002 adds the call. In that build @python is another repository, and labels have to
    name this project's repository.
    """
    python_repository(name = "torch_xla_ext_python")
    kernel_archives(python = "@torch_xla_ext_python//:python.json", for_tests = False)
