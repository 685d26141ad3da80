"""Discovery on simulated machines: every error text, and which plugin is preferred."""

from collections.abc import Callable
from pathlib import Path

import pytest
from testing.scripts import run_script

from xla_kernels.plugin import discovery
from xla_kernels.plugin.errors import CudaRuntimeError, CudaRuntimeWarning


class Library:
    """A library whose functions are the attributes given."""

    def __init__(self, **functions: object) -> None:
        self.__dict__.update(functions)


def write(value: int) -> Callable[..., int]:
    """A C function that stores `value` through its last argument and returns 0."""

    def function(*arguments: object) -> int:
        arguments[-1]._obj.value = value
        return 0

    return function


def libcuda(version: int = 13000, init: int = 0, devices: int = 1) -> Library:
    return Library(
        cuDriverGetVersion=write(version),
        cuInit=lambda flags: init,
        cuDeviceGetCount=write(devices),
    )


def libnvml() -> Library:
    def driver_version(buffer: object, length: object) -> int:
        buffer.value = b"580.159.04"
        return 0

    return Library(
        nvmlInit_v2=lambda: 0,
        nvmlSystemGetDriverVersion=driver_version,
        nvmlDeviceGetCount_v2=write(4),
    )


class Function:
    """A C function with a result; ctypes' attribute restype can be set."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __call__(self) -> int:
        return self.value


def libcudnn(version: int = 91002, cuda: int = 13000) -> Library:
    return Library(cudnnGetVersion=Function(version), cudnnGetCudartVersion=Function(cuda))


def system(
    libraries: dict[str, Library] | None = None, path: Path | None = None, **kwargs: object
) -> discovery.System:
    """A machine that has `libraries` by name, and Python packages in `path`."""
    loaded: list[str] = []

    def load(name: str) -> Library:
        if name in (libraries or {}):
            loaded.append(name)
            return libraries[name]
        if Path(name).is_file():
            loaded.append(name)
            return (libraries or {}).get(Path(name).name, Library())
        raise OSError(f"{name}: cannot open shared object file: No such file or directory")

    result = discovery.System(
        environ=kwargs.pop("environ", {}),
        search_path=[str(path)] if path else [],
        torch_cuda=kwargs.pop("torch_cuda", None),
        load_library=load,
        toolkit_folders=kwargs.pop("toolkit_folders", ()),
    )
    result.loaded = loaded
    return result


GOOD = {"libcuda.so.1": libcuda(), "libnvidia-ml.so.1": libnvml(), "libcudnn.so.9": libcudnn()}


def touch(*parts: str | Path) -> str:
    path = Path(*parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return str(path)


def install(root: Path, major: int, version: str = "0.11.2") -> str:
    (root / f"jax_cuda{major}_pjrt-{version}.dist-info").mkdir(parents=True)
    return touch(root, "jax_plugins", f"xla_cuda{major}", "xla_cuda_plugin.so")


class TestPlugins:
    def test_the_newest_installed_first(self, tmp_path: Path) -> None:
        twelve, thirteen = install(tmp_path, 12, "0.7.2"), install(tmp_path, 13)
        found = discovery.find_plugins(system(path=tmp_path))
        assert [(p.path, p.cuda_major, p.package) for p in found] == [
            (thirteen, 13, "jax-cuda13-pjrt 0.11.2"),
            (twelve, 12, "jax-cuda12-pjrt 0.7.2"),
        ]

    def test_the_environment_wins(self, tmp_path: Path) -> None:
        install(tmp_path, 13)
        own = touch(tmp_path, "other", "xla_cuda12", "plugin.so")
        environ = {discovery.PLUGIN_VARIABLE: own}
        (found,) = discovery.find_plugins(system(path=tmp_path, environ=environ))
        assert (found.path, found.cuda_major) == (own, 12)
        assert discovery.PLUGIN_VARIABLE in found.package

    def test_the_environment_names_nothing(self) -> None:
        environ = {discovery.PLUGIN_VARIABLE: "/no/plugin.so"}
        with pytest.raises(CudaRuntimeError, match=r"does not exist: /no/plugin.so; set it"):
            discovery.find_plugins(system(environ=environ))


class TestDriver:
    def test_found(self) -> None:
        driver = discovery.find_driver(system(GOOD))
        assert (driver.cuda_version, driver.version) == ((13, 0), "580.159.04")
        assert driver.text == "driver 580.159.04 for CUDA 13.0"

    def test_without_the_management_library(self) -> None:
        driver = discovery.find_driver(system({"libcuda.so.1": libcuda(12040)}))
        assert driver.text == "driver of unknown version for CUDA 12.4"

    def test_no_driver(self) -> None:
        with pytest.raises(CudaRuntimeError, match=r"no NVIDIA driver: libcuda.so.1") as error:
            discovery.find_driver(system())
        assert "install the NVIDIA driver" in str(error.value)
        assert "PJRT_DEVICE=CPU" in str(error.value)

    @pytest.mark.parametrize("library", [libcuda(init=100), libcuda(devices=0)])
    def test_no_gpu(self, library: Library) -> None:
        machine = system({"libcuda.so.1": library}, environ={"CUDA_VISIBLE_DEVICES": ""})
        with pytest.raises(CudaRuntimeError, match=r"no GPU: .*CUDA_VISIBLE_DEVICES is ''"):
            discovery.find_driver(machine)

    @pytest.mark.parametrize(
        ("status", "text"),
        [(803, r"cuInit returns error 803; .*reinstall"), (3, r"it was forked .*spawn")],
    )
    def test_broken(self, status: int, text: str) -> None:
        with pytest.raises(CudaRuntimeError, match=text):
            discovery.find_driver(system({"libcuda.so.1": libcuda(init=status)}))


class TestChoice:
    PLUGINS = (
        discovery.Plugin("/13.so", 13, "jax-cuda13-pjrt 0.11.2"),
        discovery.Plugin("/12.so", 12, "jax-cuda12-pjrt 0.7.2"),
    )

    @staticmethod
    def driver(*version: int) -> discovery.Driver:
        return discovery.Driver(version, "570.1", 1)

    def choose(self, plugins: list[int], driver: int, torch_cuda: str | None = None) -> str:
        return discovery.choose_plugin(list(plugins), driver, torch_cuda).path

    def test_the_driver_selects_the_plugin(self) -> None:
        assert self.choose(self.PLUGINS, self.driver(13, 0)) == "/13.so"
        assert self.choose(self.PLUGINS, self.driver(12, 8)) == "/12.so"

    def test_the_cuda_of_torch(self) -> None:
        assert self.choose(self.PLUGINS, self.driver(13, 0), "12.8") == "/12.so"
        assert self.choose(self.PLUGINS[:1], self.driver(13, 0), "12.8") == "/13.so"

    def test_unknown_cuda_version(self) -> None:
        own = discovery.Plugin("/own.so", None, "from the environment")
        assert self.choose([own], self.driver(12, 0)) == "/own.so"

    @pytest.mark.parametrize(("version", "major"), [((13, 0), 13), ((12, 4), 12)])
    def test_no_plugin(self, version: int, major: int) -> None:
        with pytest.raises(CudaRuntimeError, match=f"pip install jax-cuda{major}-pjrt"):
            self.choose([], self.driver(*version))

    def test_driver_too_old(self) -> None:
        with pytest.raises(CudaRuntimeError, match="the driver is too old") as error:
            self.choose(self.PLUGINS[:1], self.driver(12, 4))
        for part in ("jax-cuda13-pjrt 0.11.2", "CUDA 13.0", "for CUDA 12.4", "580 or newer"):
            assert part in str(error.value)
        assert "pip install jax-cuda12-pjrt, or update" in str(error.value)

    def test_driver_too_old_for_any(self) -> None:
        with pytest.raises(CudaRuntimeError, match="update the driver to 525 or newer") as error:
            self.choose(self.PLUGINS, self.driver(11, 8))
        assert "pip install" not in str(error.value)


class TestLibraries:
    PLUGIN = discovery.Plugin("/x.so", 13, "jax-cuda13-pjrt 0.11.2")

    def test_pip_packages_come_first(self, tmp_path: Path) -> None:
        cublas = touch(tmp_path, "nvidia", "cu13", "lib", "libcublas.so.13")
        machine = system({"libcublas.so.13": Library(), "libcufft.so.12": Library()}, tmp_path)
        loaded = discovery.load_libraries(machine, self.PLUGIN)
        assert loaded["libcublas.so.13"] == cublas
        assert loaded["libcufft.so.12"] == "libcufft.so.12"
        assert loaded["libnccl.so.2"] is None

    def test_beside_the_plugin(self, tmp_path: Path) -> None:
        plugin = discovery.Plugin(install(tmp_path, 12), 12, "")
        cublas = touch(tmp_path, "nvidia", "cublas", "lib", "libcublas.so.12")
        assert discovery.load_libraries(system(), plugin)["libcublas.so.12"] == cublas

    def test_missing_ones_are_warned_of(self) -> None:
        with pytest.warns(CudaRuntimeWarning, match=r"libcublas.so.13.*pip install .*cublas"):
            discovery.warn_of_missing({"libcublas.so.13": None, "libnccl.so.2": "/x"}, self.PLUGIN)

    def test_cudnn(self) -> None:
        assert discovery.check_cudnn(system(GOOD), self.PLUGIN) == "9.10.2"

    def test_no_cudnn(self) -> None:
        with pytest.raises(CudaRuntimeError, match=r"cuDNN 9 is missing: libcudnn.so.9") as error:
            discovery.check_cudnn(system(), self.PLUGIN)
        assert "pip install 'nvidia-cudnn-cu13>=9.8,<10'" in str(error.value)

    def test_cudnn_of_another_major_version(self) -> None:
        machine = system({"libcudnn.so.8": libcudnn(8907)})
        with pytest.raises(CudaRuntimeError, match="found cuDNN 8 instead"):
            discovery.check_cudnn(machine, self.PLUGIN)

    def test_cudnn_whose_name_lies(self) -> None:
        machine = system({"libcudnn.so.9": libcudnn(100100)})
        with pytest.raises(CudaRuntimeError, match=r"is cuDNN 10.1.0, but the plugin needs"):
            discovery.check_cudnn(machine, self.PLUGIN)

    def test_cudnn_for_another_cuda(self) -> None:
        machine = system({"libcudnn.so.9": libcudnn(cuda=12080)})
        with pytest.warns(CudaRuntimeWarning, match="built for CUDA 12.*is for CUDA 13"):
            assert discovery.check_cudnn(machine, self.PLUGIN) == "9.10.2"


class TestDataDir:
    PLUGIN = discovery.Plugin("/x.so", 13, "")

    def test_pip_package_then_toolkit(self, tmp_path: Path) -> None:
        toolkit = tmp_path / "toolkit"
        touch(toolkit, "nvvm", "libdevice", "libdevice.10.bc")
        machine = system(path=tmp_path, toolkit_folders=(str(toolkit),))
        assert discovery.find_data_dir(machine, self.PLUGIN) == str(toolkit)
        touch(tmp_path, "nvidia", "cu13", "nvvm", "libdevice", "libdevice.10.bc")
        assert discovery.find_data_dir(machine, self.PLUGIN) == str(tmp_path / "nvidia" / "cu13")

    def test_cuda_home(self, tmp_path: Path) -> None:
        touch(tmp_path, "nvvm", "libdevice", "libdevice.10.bc")
        machine = system(environ={"CUDA_HOME": str(tmp_path)})
        assert discovery.find_data_dir(machine, self.PLUGIN) == str(tmp_path)

    def test_none(self, tmp_path: Path) -> None:
        machine = system(path=tmp_path)
        assert discovery.find_data_dir(machine, self.PLUGIN) is None
        discovery.set_data_dir(machine, None)
        assert machine.environ == {}

    def test_the_flag_is_added(self) -> None:
        machine = system(environ={"XLA_FLAGS": "--xla_a=1"})
        discovery.set_data_dir(machine, "/cuda")
        assert machine.environ["XLA_FLAGS"] == "--xla_a=1 --xla_gpu_cuda_data_dir=/cuda"

    def test_the_users_own_flag_stays(self) -> None:
        flags = "--xla_gpu_cuda_data_dir=/mine"
        machine = system(environ={"XLA_FLAGS": flags})
        discovery.set_data_dir(machine, "/cuda")
        assert machine.environ["XLA_FLAGS"] == flags


class TestFlagsOfXla:
    FLAG = "--xla_gpu_enable_dynamic_slice_fusion"

    def plugin(self, folder: Path, content: bytes) -> str:
        path = folder / "plugin.so"
        path.write_bytes(content)
        return str(path)

    def test_a_flag_is_set(self, tmp_path: Path) -> None:
        machine = system(environ={"XLA_FLAGS": "--xla_a=1"})
        path = self.plugin(tmp_path, b"x\0xla_gpu_enable_dynamic_slice_fusion\0y")
        discovery.set_flags(machine, path, {self.FLAG: "false"})
        assert machine.environ["XLA_FLAGS"] == f"--xla_a=1 {self.FLAG}=false"

    def test_a_plugin_that_does_not_know_it(self, tmp_path: Path) -> None:
        for content in (b"", b"x\0xla_gpu_enable_dynamic_slice_fusion_2\0y"):
            machine = system()
            discovery.set_flags(machine, self.plugin(tmp_path, content), {self.FLAG: "false"})
            assert machine.environ == {}

    @pytest.mark.parametrize("is_known", [True, False])
    def test_an_option_of_llvm(self, tmp_path: Path, is_known: bool) -> None:
        content = b"\0xla_extra\0" + b"nvptx-a\0" * is_known
        machine = system()
        discovery.set_flags(machine, self.plugin(tmp_path, content), {"--xla_extra": "-nvptx-a=2"})
        assert machine.environ.get("XLA_FLAGS") == ("--xla_extra=-nvptx-a=2" if is_known else None)

    def test_the_users_own_flag_stays(self, tmp_path: Path) -> None:
        machine = system(environ={"XLA_FLAGS": f"{self.FLAG}=true"})
        path = self.plugin(tmp_path, b"\0xla_gpu_enable_dynamic_slice_fusion\0")
        discovery.set_flags(machine, path, {self.FLAG: "false"})
        assert machine.environ["XLA_FLAGS"] == f"{self.FLAG}=true"

    def test_a_child_process_removes_what_its_parent_has_added(self, tmp_path: Path) -> None:
        machine = system(environ={"XLA_FLAGS": "--xla_a=1"})
        path = self.plugin(tmp_path, b"\0xla_gpu_enable_dynamic_slice_fusion\0")
        discovery.set_flags(machine, path, {self.FLAG: "false"})
        discovery.set_data_dir(machine, "/cuda")
        assert len(machine.environ["XLA_FLAGS"].split()) == 3
        discovery.remove_inherited_flags(machine)
        assert machine.environ == {"XLA_FLAGS": "--xla_a=1"}

    def test_a_child_process_on_the_cpu(self) -> None:
        """Its XLA aborts the process for a flag that only the parent's plugin knows."""
        flag = "--xla_gpu_of_another_version=1"
        variables = {"XLA_FLAGS": flag, "TORCH_XLA_EXT_ADDED_XLA_FLAGS": flag, "PJRT_DEVICE": "CPU"}
        code = "import torch, torch_xla; print(torch.ones(2, device='xla').tolist())"
        done = run_script(code, timeout=120, **variables)
        assert done.stdout == "[1.0, 1.0]\n", done.stderr

    @pytest.mark.filterwarnings("ignore::xla_kernels.plugin.errors.CudaRuntimeWarning")
    @pytest.mark.parametrize(
        ("count", "is_spmd", "is_off"),
        [("1", False, False), ("2", False, True), ("2", True, False)],
    )
    def test_autotuning_by_several_processes(
        self, tmp_path: Path, count: str, is_spmd: bool, is_off: bool
    ) -> None:
        path = install(tmp_path, 13)
        Path(path).write_bytes(Path(path).read_bytes() + b"\0xla_gpu_shard_autotuning\0")
        machine = system(GOOD, tmp_path, environ={"RANK": "0", "WORLD_SIZE": count})
        discovery.prepare(machine, is_spmd)
        flags = machine.environ.get("XLA_FLAGS", "")
        assert ("--xla_gpu_shard_autotuning=false" in flags) == is_off


@pytest.mark.filterwarnings("ignore::xla_kernels.plugin.errors.CudaRuntimeWarning")
def test_prepare(tmp_path: Path) -> None:
    path = install(tmp_path, 13)
    touch(tmp_path, "nvidia", "cu13", "nvvm", "libdevice", "libdevice.10.bc")
    machine = system(GOOD, tmp_path)
    runtime = discovery.prepare(machine)
    assert runtime.plugin.path == path
    assert runtime.cudnn_version == "9.10.2"
    assert runtime.data_dir in machine.environ["XLA_FLAGS"]


class TestGpuCount:
    def test_sources(self) -> None:
        assert discovery.gpu_count(system(GOOD, environ={"GPU_NUM_DEVICES": "3"})) == 3
        assert discovery.gpu_count(system(GOOD, environ={"CUDA_VISIBLE_DEVICES": "0,2"})) == 2
        assert discovery.gpu_count(system(GOOD)) == 4
        assert discovery.gpu_count(system()) == 1

    def test_the_driver_is_not_initialised(self) -> None:
        machine = system(GOOD)
        discovery.gpu_count(machine)
        assert "libcuda.so.1" not in machine.loaded
