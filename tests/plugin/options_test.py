"""Client options from environment variables."""

import pytest

from xla_kernels.plugin.options import Processes, client_create_options

DEFAULTS = {"platform_name": "cuda", "allocator": "default", "node_id": 0, "num_nodes": 1}


def test_defaults() -> None:
    assert client_create_options({}) == DEFAULTS


@pytest.mark.parametrize(
    ("environ", "options"),
    [
        ({"PJRT_ALLOCATOR_CUDA_ASYNC": "1"}, {"allocator": "cuda_async"}),
        ({"PJRT_ALLOCATOR_CUDA_ASYNC": "0"}, {"allocator": "default"}),
        ({"PJRT_ALLOCATOR_FRACTION": "0.3"}, {"memory_fraction": 0.3}),
        ({"PJRT_ALLOCATOR_PREALLOCATE": "0"}, {"preallocate": False}),
        ({"PJRT_ALLOCATOR_PREALLOCATE": "1"}, {"preallocate": True}),
    ],
)
def test_allocator(environ: dict[str, str], options: dict[str, object]) -> None:
    assert client_create_options(environ) == DEFAULTS | options


def test_torchrun_with_a_gpu_for_each_process() -> None:
    environ = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "RANK": "3", "WORLD_SIZE": "4"}
    assert client_create_options(environ) == DEFAULTS | {
        "visible_devices": [1],
        "node_id": 3,
        "num_nodes": 4,
    }


def test_spawned_processes() -> None:
    environ = {"PJRT_LOCAL_PROCESS_RANK": "1", "PJRT_LOCAL_PROCESS_COUNT": "2"}
    assert client_create_options(environ) == DEFAULTS | {
        "visible_devices": [1],
        "node_id": 1,
        "num_nodes": 2,
    }


def test_torch_xlas_own_variables_come_first() -> None:
    environ = {"PJRT_LOCAL_PROCESS_RANK": "0", "LOCAL_RANK": "5"}
    assert Processes.from_environ(environ).local_rank == 0


def test_one_process_with_all_gpus() -> None:
    assert "visible_devices" not in client_create_options({"WORLD_SIZE": "1", "RANK": "0"})


def test_one_process_a_host_with_all_its_gpus() -> None:
    environ = {"LOCAL_WORLD_SIZE": "1", "RANK": "1", "WORLD_SIZE": "2"}
    options = client_create_options(environ)
    assert "visible_devices" not in options
    assert (options["node_id"], options["num_nodes"]) == (1, 2)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("PJRT_ALLOCATOR_FRACTION", "1.5", "a number above 0 and at most 1"),
        ("PJRT_ALLOCATOR_FRACTION", "half", "a number above 0 and at most 1"),
        ("PJRT_ALLOCATOR_PREALLOCATE", "no", "0 or 1"),
        ("PJRT_ALLOCATOR_CUDA_ASYNC", "2", "0 or 1"),
        ("RANK", "first", "an integer"),
    ],
)
def test_unusable_values(name: str, value: str, expected: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be {expected}, but is '{value}'"):
        client_create_options({name: value})
