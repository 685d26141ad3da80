"""Every external input of the build, in one list. Each is fetched only when a target needs it."""

load(":kernel_repositories.bzl", "kernel_archives")
load(":pip.bzl", "pip_archive", "pip_env", "pip_packages")
load(":python.bzl", "python_repository")

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
    kernel_archives(python = "@python//:python.json", for_tests = True)
    pip_env(
        name = "build_tools",
        lock = Label("//bazel/pip:locks/build_tools.lock"),
    )
    pip_env(
        name = "dev_tools",
        lock = Label("//bazel/pip:locks/dev_tools.lock"),
    )
    pip_env(
        name = "docs_tools",
        lock = Label("//bazel/pip:locks/docs_tools.lock"),
    )
    pip_env(
        name = "test_env",
        lock = Label("//bazel/pip:locks/test_env.lock"),
    )
    pip_packages(
        name = "huggingface",
        lock = Label("//bazel/pip:locks/huggingface.lock"),
    )
    pip_packages(
        name = "huggingface5",
        lock = Label("//bazel/pip:locks/huggingface5.lock"),
    )
    pip_env(
        name = "torch_tpu",
        lock = Label("//bazel/pip:locks/torch_tpu.lock"),
    )
    pip_packages(
        name = "jax",
        lock = Label("//bazel/pip:locks/jax.lock"),
    )
    pip_packages(
        name = "smollm2",
        lock = Label("//bazel/pip:locks/smollm2.lock"),
    )
    pip_packages(
        name = "vllm",
        lock = Label("//bazel/pip:locks/vllm.lock"),
    )
    pip_packages(
        name = "vllm_cuda",
        lock = Label("//bazel/pip:locks/vllm_cuda.lock"),
    )
