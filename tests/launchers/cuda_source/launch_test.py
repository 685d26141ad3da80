"""The launch of compiled kernels (csrc/launchers), with a driver that records launches."""

import ctypes
import os
import struct

import numpy as np
import pytest
import torch_xla

from xla_kernels import launch as launches
from xla_kernels.launch import Launch

MODULE = "a module"


class Driver:
    def __init__(self) -> None:
        # From now on this is the process's libcuda.so.1: the dynamic loader finds it by its name.
        self._library = ctypes.CDLL(os.environ["FAKE_DRIVER"])
        self._library.fake_driver_log.restype = ctypes.c_char_p

    def log(self) -> list[str]:
        return self._library.fake_driver_log().decode().splitlines()

    def expect(self, *sizes: int) -> None:
        self._library.fake_driver_parameter_sizes((ctypes.c_int * len(sizes))(*sizes), len(sizes))


@pytest.fixture(scope="module")
def loaded() -> Driver:
    return Driver()


@pytest.fixture
def driver(loaded: Driver) -> Driver:
    loaded.log()
    loaded.expect()
    return loaded


def launch(
    parameters: list[str] | str,
    module: str = MODULE,
    kernel: str = "f",
    operands: tuple[int, ...] = (),
    results: tuple[int, ...] = (),
    **options: object,
) -> None:
    data = module.encode()
    given = {"grid": (2, 3, 4), "block": (32, 2, 1)} | options
    made = Launch(module=data, digest=launches.digest_of(kernel, data), kernel=kernel, **given)
    words = parameters if isinstance(parameters, list) else [parameters]
    torch_xla._XLAC._xla_launch_compiled_kernel(
        attributes=made.attributes(words), operands=operands, results=results, stream=77
    )


def test_parameters(driver: Driver) -> None:
    driver.expect(8, 8, 4, 1, 20, 8)
    struct = bytes(range(1, 21))
    launch(
        [
            launches.operand(1),
            launches.result(0),
            launches.value(np.float32(1).tobytes()),
            launches.value(b"\xff"),
            launches.value(struct),
            launches.NULL,
        ],
        kernel="with_parameters",
        operands=(0x10, 0x20),
        results=(0x1234567890,),
    )
    assert driver.log() == [
        "load a module",
        "function with_parameters",
        "launch grid=2,3,4 block=32,2,1 shared=0 stream=77 2000000000000000 9078563412000000 "
        f"0000803f ff {struct.hex()} 0000000000000000",
    ]


def test_a_module_is_loaded_once(driver: Driver) -> None:
    for _ in range(3):
        launch([], module="another module")
    log = driver.log()
    assert log.count("load another module") == 1
    assert sum(line.startswith("launch") for line in log) == 3
    launch([], module="another module", kernel="g")
    assert driver.log()[:2] == ["load another module", "function g"]


def test_clusters_cooperative_and_dependent_launches(driver: Driver) -> None:
    launch([], cluster=(2, 1, 1), cooperative=True, dependent=True, spread=True)
    assert driver.log()[-1].endswith("stream=77 dependent cooperative cluster=2,1,1 spread")
    launch([], cluster=(2, 1, 2))
    assert driver.log()[-1].endswith("stream=77 cluster=2,1,2")
    launch([])
    assert driver.log()[-1].endswith("stream=77")


def test_shared_memory_is_raised_when_it_is_needed(driver: Driver) -> None:
    raised = []
    for shared in (39_000, 41_000, 40_500, 200_000):
        launch([], module="with shared memory", shared=shared)
        raised.append([line for line in driver.log() if line.startswith("attribute")])
    # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES; the driver says that 40,000 are free.
    assert raised == [[], ["attribute 8=41000"], [], ["attribute 8=200000"]]


def test_large_clusters_are_allowed_once(driver: Driver) -> None:
    allowed = []
    for cluster in ((8, 1, 1), (16, 1, 1), (16, 1, 1)):
        launch([], module="in clusters", cluster=cluster, grid=(16, 1, 1))
        allowed.append([line for line in driver.log() if line.startswith("attribute")])
    # CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
    assert allowed == [[], ["attribute 14=1"], []]


def test_no_blocks_are_no_launch(driver: Driver) -> None:
    launch([], grid=(0, 1, 1))
    assert driver.log() == []


@pytest.mark.parametrize("word", ["t1", "r0", "q0", "x1", "t", "", "xzz"])
def test_wrong_words(driver: Driver, word: str) -> None:
    with pytest.raises(RuntimeError, match="XlaGpuCompiledKernel: f: attribute parameters"):
        launch(["t0", word, "t0"], operands=(1,))
    assert driver.log() == []


def test_failures_name_the_kernel_and_leave_nothing(driver: Driver) -> None:
    with pytest.raises(
        RuntimeError, match=r"f: cuModuleLoadDataEx: CUDA_ERROR_FAKE \(made up\): pt"
    ):
        launch([], module="bad PTX")
    with pytest.raises(RuntimeError, match="XlaGpuCompiledKernel: missing: cuModuleGetFunction"):
        launch([], module="good", kernel="missing")
    assert driver.log() == ["load good", "unload"]


def test_tensor_maps(driver: Driver) -> None:
    """Each launch makes tensor maps from the address, and passes their bytes as a parameter."""
    driver.expect(128, 4)
    description = struct.pack("<4I3I3Q2Q", 6, 3, 1, 3, 64, 32, 2, 100, 50, 7, 200, 10_000)
    for address in (0x10, 0x20):
        launch(
            [launches.tensor_map(launches.result(1), description), launches.value(b"abcd")],
            kernel="with_a_map",
            results=(0x30, address),
        )
    shown = "map type=6 swizzle=3 fill=1 sizes 100 50 7 strides 200 10000 box 64 32 2"
    begin = "launch grid=2,3,4 block=32,2,1 shared=0 stream=77"
    assert driver.log() == [
        *(shown, "load a module", "function with_a_map"),
        f"{begin} 10{'00' * 127} {b'abcd'.hex()}",
        *(shown, f"{begin} 20{'00' * 127} {b'abcd'.hex()}"),
    ]


@pytest.mark.parametrize(
    ("description", "message"),
    [
        (struct.pack("<4I1I1Q", 7, 9, 0, 1, 64, 100), r"cuTensorMapEncodeTiled: CUDA_ERROR_FAKE"),
        (struct.pack("<4I1I", 7, 0, 0, 1, 64), "description is malformed"),
        (struct.pack("<4I1I2Q", 7, 0, 0, 1, 64, 100, 0), "description is malformed"),
        (struct.pack("<4I", 7, 0, 0, 6), "description is malformed"),
        (b"", "description is malformed"),
    ],
)
def test_tensor_maps_that_are_refused(driver: Driver, description: bytes, message: str) -> None:
    word = launches.tensor_map(launches.operand(0), description)
    with pytest.raises(RuntimeError, match=message):
        launch(word, operands=(0x10,))
    with pytest.raises(RuntimeError, match='"t1" is not an operand'):
        launch(launches.tensor_map(launches.operand(1), description), operands=(0x10,))
    assert driver.log() == []
