"""Translate the environment variables of upstream's CUDA plugin into client options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


def _read(
    environ: Mapping[str, str], name: str, parse: Callable[[str], T], expected: str
) -> T | None:
    text = environ.get(name)
    if text is None:
        return None
    try:
        return parse(text)
    except (KeyError, ValueError):
        raise ValueError(f"{name} must be {expected}, but is {text!r}") from None


def _integer(environ: Mapping[str, str], *names: str) -> int | None:
    """Return the integer value of the first variable that is set."""
    for name in names:
        value = _read(environ, name, int, "an integer")
        if value is not None:
            return value
    return None


def _parse_fraction(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise ValueError(text)
    return value


def _parse_bool(text: str) -> bool:
    return {"0": False, "1": True}[text]


@dataclass(frozen=True)
class Processes:
    """This process's rank among the processes that torchrun or xmp.spawn started."""

    local_rank: int
    local_count: int
    rank: int
    count: int

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Processes:
        local_rank = _integer(environ, "PJRT_LOCAL_PROCESS_RANK", "LOCAL_RANK") or 0
        local_count = _integer(environ, "PJRT_LOCAL_PROCESS_COUNT", "LOCAL_WORLD_SIZE") or 1
        rank = _integer(environ, "RANK")
        count = _integer(environ, "WORLD_SIZE")
        return cls(
            local_rank=local_rank,
            local_count=local_count,
            rank=local_rank if rank is None else rank,
            count=local_count if count is None else count,
        )


def client_create_options(environ: Mapping[str, str]) -> dict[str, object]:
    """Return the options for the plugin's client.

    Args:
        environ: PJRT_ALLOCATOR_CUDA_ASYNC (0 or 1), PJRT_ALLOCATOR_FRACTION (of the device's
            memory), PJRT_ALLOCATOR_PREALLOCATE (0 or 1); PJRT_LOCAL_PROCESS_RANK or LOCAL_RANK,
            PJRT_LOCAL_PROCESS_COUNT or LOCAL_WORLD_SIZE, RANK and WORLD_SIZE. With several
            processes on the host, each uses the GPU of its local rank; a single process (SPMD) uses
            all GPUs.

    Raises:
        ValueError: a variable has no usable value.
    """
    processes = Processes.from_environ(environ)
    cuda_async = _read(environ, "PJRT_ALLOCATOR_CUDA_ASYNC", _parse_bool, "0 or 1")
    options = {
        "platform_name": "cuda",
        "allocator": "cuda_async" if cuda_async else "default",
        "memory_fraction": _read(
            environ, "PJRT_ALLOCATOR_FRACTION", _parse_fraction, "a number above 0 and at most 1"
        ),
        "preallocate": _read(environ, "PJRT_ALLOCATOR_PREALLOCATE", _parse_bool, "0 or 1"),
        "visible_devices": [processes.local_rank] if processes.local_count > 1 else None,
        "node_id": processes.rank,
        "num_nodes": processes.count,
    }
    return {name: value for name, value in options.items() if value is not None}
