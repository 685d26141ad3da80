"""Run one engine in several processes, which torchrun starts (`external_launcher`).

Each process runs the whole engine, and XLA divides its programs among the devices of all of them.
So all processes must start the same programs with the same data; otherwise devices would wait for
each other forever, or compute with another step's data. Therefore the processes compare each step
before they start it.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import hashlib
import itertools
import json
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import torch
import torch_xla
from torch import distributed
from torch.distributed import HashStore, PrefixStore, Store

from torch_xla_ext import plugin
from xla_kernels import Processes

if TYPE_CHECKING:
    import numpy as np
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

# The seconds that a process waits for the others.
TIMEOUT_VARIABLE = "VLLM_XLA_PROCESSES_TIMEOUT"
_DEFAULT_TIMEOUT = 600
# The seconds that a process waits before it checks whether the others are alive.
_PATIENCE = datetime.timedelta(seconds=2)
# Environment that changes the programs of vLLM's backend for XLA.
_ENVIRONMENT = (
    "VLLM_TPU_BUCKET_PADDING_GAP",
    "VLLM_TPU_MOST_MODEL_LEN",
    "VLLM_TPU_DISABLE_TOPK_SAMPLING_OPTIMIZATION",
)
_engines = itertools.count()


class ProcessesError(RuntimeError):
    """The processes of an engine differ, or one of them is missing."""


def are_several() -> bool:
    """Return whether `join` has been called, and this process is one of several."""
    return distributed.is_initialized() and distributed.get_world_size() > 1


def join() -> None:
    """Wait for the other processes, and create torch.distributed's group with all of them.

    vLLM would create a group with only this process.
    """
    processes = Processes.from_environ(os.environ)
    if distributed.is_initialized():
        found = distributed.get_world_size()
        if found != processes.count:
            raise ProcessesError(
                f"torch.distributed has been initialized for {found} processes, but WORLD_SIZE is "
                f"{processes.count}; initialize it for all, or not at all"
            )
        return
    alone = processes.count == 1
    distributed.init_process_group(
        "gloo",
        store=HashStore() if alone else PrefixStore("torch", plugin.connect(os.environ)),
        rank=processes.rank,
        world_size=processes.count,
    )


class Peers:
    """One engine's processes, from the view of one of them.

    Attributes:
        count: the number of processes.
    """

    def __init__(self, rank: int, count: int, store: Store, timeout: float) -> None:
        self._rank, self.count = rank, count
        self._store, self._timeout = store, timeout
        self._step = 0
        # On rank 0: keys that all processes have read, and keys that all will have read in the next
        # step.
        self._read: list[str] = []
        self._written: list[str] = []
        self._noted = hashlib.blake2b(digest_size=8)
        atexit.register(self._leave)

    @classmethod
    def of_engine(cls) -> Peers | None:
        """Return the peers for this process's next engine; None if the process is alone."""
        if not are_several():
            return None
        processes = Processes.from_environ(os.environ)
        store = PrefixStore(f"vllm_xla_gpu/{next(_engines)}", plugin.connect(os.environ))
        timeout = float(os.environ.get(TIMEOUT_VARIABLE, _DEFAULT_TIMEOUT))
        return cls(processes.rank, processes.count, store, timeout)

    def gather(self, value: str) -> list[str]:
        """Return the values that all processes pass in the same call, by rank.

        Raises:
            ProcessesError: a process has exited, or has not made the call in time.
        """
        self._step += 1
        of_ranks = [f"{self._step}/{rank}" for rank in range(self.count)]
        of_all = f"{self._step}/all"
        with self._reaching_store():
            self._store.set(of_ranks[self._rank], value)
            if self._rank:
                self._wait_for([of_all], of_ranks)
                return json.loads(self._store.get(of_all))
            for key in self._read:
                self._store.delete_key(key)
            self._wait_for(of_ranks, of_ranks)
            values = [text.decode() for text in self._store.multi_get(of_ranks)]
            self._store.set(of_all, json.dumps(values))
            self._read, self._written = self._written, [*of_ranks, of_all]
            return values

    def least(self, number: int) -> int:
        return min(map(int, self.gather(str(number))))

    def check_same(self, values: Mapping[str, object], remedy: str) -> None:
        """Raise ProcessesError in all processes, with the differences, if their values differ."""
        texts = self.gather(json.dumps({name: str(value) for name, value in values.items()}))
        if len(set(texts)) == 1:
            return
        own, *others = map(json.loads, texts)
        differences = [
            f"{name}: {_shortened(own.get(name))} for rank 0, but {_shortened(of_rank.get(name))}"
            f" for rank {rank}"
            for rank, of_rank in enumerate(others, 1)
            for name in own | of_rank
            if own.get(name) != of_rank.get(name)
        ]
        raise ProcessesError(
            f"the {self.count} processes of this engine differ: {'; '.join(differences[:4])}. "
            f"{remedy}"
        )

    def check_step(self, output: SchedulerOutput, packed: np.ndarray) -> None:
        """Compare a step that is about to start, and the events since the previous step.

        Args:
            output: the output of XlaGpuScheduler.
            packed: the data that will be sent to the device.
        """
        batch = [packed, output.grammar_bitmask]
        values: dict[str, object] = {
            "batch": (
                f"{output.total_num_scheduled_tokens} tokens of "
                f"{len(output.num_scheduled_tokens)} sequences "
                f"({_digest(*[b'' if part is None else part.tobytes() for part in batch])})"
            ),
            "results of earlier steps": self._noted.hexdigest(),
        }
        if added := output.added:
            values |= _summary(added)
        self.check_same(
            values, "Give all processes the same prompts and parameters, in the same order"
        )

    def note(self, data: bytes) -> None:
        """Record a value that must be the same in all processes at the next step."""
        self._noted.update(data)

    def program_folder(self, path: str) -> str:
        """Return this process's folder of compiled programs; drop those that others lack.

        XLA's processes exchange autotuning results when they compile a program. A process that
        reads the program from a file would send none.
        """
        folder = Path(path, f"rank{self._rank}of{self.count}")
        folder.mkdir(parents=True, exist_ok=True)
        names = {file.name for file in folder.iterdir()}
        of_all = set.intersection(
            *(set(json.loads(text)) for text in self.gather(json.dumps(sorted(names))))
        )
        for name in names - of_all:
            (folder / name).unlink()
        return str(folder)

    def _wait_for(self, keys: list[str], of_ranks: list[str]) -> None:
        """Wait for keys in the store; `of_ranks` are the keys that each process writes."""
        begin = time.monotonic()
        with contextlib.suppress(distributed.DistStoreError):  # when that time is over
            return self._store.wait(keys, _PATIENCE)
        while True:
            if lost := plugin.lost_process():
                raise ProcessesError(lost)
            missing = [r for r, key in enumerate(of_ranks) if not self._store.check([key])]
            # Rank 0 must answer, too.
            ended = [r for r in {0, *missing} if self._store.check([f"ended/{r}"])]
            if self._store.check(keys):
                return None
            if ended:
                raise ProcessesError(
                    f"rank {_listed(ended)} has exited, but the engine needs all {self.count} "
                    "processes; read that process's output"
                )
            if time.monotonic() - begin > self._timeout:
                raise ProcessesError(
                    f"rank {_listed(missing or [0])} did not reach step {self._step} of this "
                    f"engine within {self._timeout:g} s ({TIMEOUT_VARIABLE}). All {self.count} "
                    "processes must create the same engines, and generate with the same prompts, "
                    "in the same order"
                )
            time.sleep(0.05)

    @contextlib.contextmanager
    def _reaching_store(self) -> Iterable[None]:
        try:
            yield
        except distributed.DistError as error:
            text = str(error).partition("\n")[0]
            raise ProcessesError(
                f"the processes' store is gone, and with it rank 0, or torchrun: {text}; read "
                "their output"
            ) from None

    def _leave(self) -> None:
        with contextlib.suppress(RuntimeError):  # the store may have gone
            self._store.set(f"ended/{self._rank}", "")


def settings(config: VllmConfig, devices: int) -> dict[str, object]:
    """Return the settings that determine an engine's programs and the order of its steps.

    Paths and gpu_memory_utilization may differ between hosts.
    """
    model, cache = config.model_config, config.cache_config
    own = model.hf_config.to_dict()
    own.pop("_name_or_path", None)
    flags = os.environ.get("XLA_FLAGS", "").split()
    names = ("dtype", "max_model_len", "seed", "max_logprobs", "disable_sliding_window")
    of_cache = ("block_size", "cache_dtype", "num_gpu_blocks_override", "enable_prefix_caching")
    return (
        own
        | vars(config.scheduler_config)
        | {name: getattr(model, name) for name in names}
        | {name: getattr(cache, name) for name in of_cache}
        | {name: os.environ.get(name) for name in _ENVIRONMENT}
        | {
            "tensor_parallel_size": devices,
            "LoRA": config.lora_config,
            "structured output": config.structured_outputs_config,
            "XLA_FLAGS": sorted(flag for flag in flags if not flag.startswith("--xla_dump")),
            "the version of torch_xla": torch_xla.__version__,
        }
    )


def fingerprint(tensors: Iterable[torch.Tensor]) -> str:
    """Return a fingerprint of host tensors: types, shapes and sums of their bits."""
    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return _digest(
        *(
            f"{x.dtype} {tuple(x.shape)} {x.view(integers[x.itemsize]).sum().item()}".encode()
            for x in tensors
        )
    )


def _summary(added: list[Request]) -> dict[str, str]:
    """Summarize new requests."""
    prompts = [(r.request_id, r.prompt_token_ids) for r in added]
    length = sum(len(tokens) for _, tokens in prompts)
    adapters = [
        r.lora_request and (r.lora_request.lora_name, r.lora_request.lora_int_id) for r in added
    ]
    parameters = [repr(msgspec.structs.asdict(r.sampling_params)).encode() for r in added]
    return {
        "new requests": (
            f"{len(added)} prompts of {length} tokens in all ({_digest(repr(prompts).encode())})"
        ),
        "sampling parameters": _digest(*parameters),
        "adapters": _digest(repr(adapters).encode()),
        "priorities": _digest(repr([r.priority for r in added]).encode()),
    }


def _digest(*parts: bytes) -> str:
    result = hashlib.blake2b(digest_size=8)
    for part in parts:
        result.update(len(part).to_bytes(8, "little"))
        result.update(part)
    return result.hexdigest()


def _shortened(text: str | None) -> str:
    return str(text) if len(str(text)) <= 200 else f"{str(text)[:200]}…"


def _listed(ranks: Iterable[int]) -> str:
    return ", ".join(map(str, ranks))
