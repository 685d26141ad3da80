"""Compile all programs of a model runner, and run them once, before the first request."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch_xla
from vllm.v1.worker.tpu_model_runner import TPUModelRunner

import torch_xla_ext
from torch_xla_ext.graph import CapturedStep
from vllm_xla_gpu import memory
from vllm_xla_gpu.batch import BatchShape, pack_empty
from vllm_xla_gpu.compile_options import step_options, threads

if TYPE_CHECKING:
    from vllm.lora.models import LoRAModelManager

    from vllm_xla_gpu.start import Start
    from vllm_xla_gpu.tensor_parallel import Devices

    Operands = tuple[torch.Tensor, ...]


@dataclasses.dataclass(frozen=True)
class CapturedByRows:
    """A function of tensors whose first has a row for each sequence.

    Attributes:
        steps: the captured functions, by the number of rows.
        place: puts a tensor where they expect it.
    """

    steps: dict[int, CapturedStep]
    place: Callable[[torch.Tensor], torch.Tensor]

    def __call__(self, *tensors: torch.Tensor) -> object:
        return self.steps[len(tensors[0])](*map(self.place, tensors))

    def prepare(self, *tensors: torch.Tensor) -> None:
        self.steps[len(tensors[0])].prepare(*map(self.place, tensors))


class WarmedUpRunner(TPUModelRunner, abc.ABC):
    """The part of a runner that compiles its programs.

    Attributes:
        start: measures the engine's start.
        _devices: the devices that share the model, if there are several.
        _run: the steps, by their numbers of tokens.
    """

    start: Start
    _devices: Devices | None
    _run: dict[int, CapturedStep]

    @abc.abstractmethod
    def _shape(self, num_tokens: int) -> BatchShape:
        """Return the shape of a batch with this many tokens."""

    @abc.abstractmethod
    def _run_model(self, num_tokens: int, packed: torch.Tensor) -> object:
        """Compute a step."""

    @abc.abstractmethod
    def _start(self, num_tokens: int, packed: np.ndarray) -> object:
        """Start a step."""

    @abc.abstractmethod
    def _calls_beside_steps(self) -> Iterator[tuple[CapturedStep | CapturedByRows, Operands]]:
        """Yield the functions that a step may call after the model, with operands."""

    @property
    @abc.abstractmethod
    def _adapter_manager(self) -> LoRAModelManager:
        """The manager of adapters' slots."""

    def _start_empty_steps(self) -> None:
        for num_tokens in self.num_tokens_paddings:
            self._start(num_tokens, pack_empty(self._shape(num_tokens)))

    def _options(self, num_tokens: int) -> contextlib.AbstractContextManager[None]:
        is_fp8 = self.vllm_config.quant_config is not None
        return step_options(num_tokens, is_fp8, 1 if self._devices is None else self._devices.count)

    @torch.no_grad()
    def profile_run(self, num_tokens: int) -> None:
        self._run_model(num_tokens, self._empty_batch(num_tokens))
        with self._options(num_tokens):
            torch_xla.sync(wait=True)

    def _empty_batch(self, num_tokens: int) -> torch.Tensor:
        return torch.from_numpy(pack_empty(self._shape(num_tokens))).to(self.device)

    @torch.no_grad()
    def capture_model(self) -> None:
        """Compile all programs, several at a time, and run them once.

        vLLM compiles and runs one after the other.
        """
        with self.maybe_setup_dummy_loras(self.lora_config):
            if self.lora_config is not None:
                self._write_warmup_adapters()
            calls = list(self._calls_beside_steps())
            with (
                self.start.part("compiling"),
                torch_xla_ext.parallel_compilation(self._tuning_threads()),
                self.start.part("tracing"),
            ):
                for num_tokens in self.num_tokens_paddings:
                    with self._options(num_tokens):
                        self._run[num_tokens].prepare(self._empty_batch(num_tokens))
                for function, operands in calls:
                    function.prepare(*operands)
            with self.start.part("first runs"):
                for function, operands in calls:
                    function(*operands)
                self._record_graphs()
        self._update_num_xla_graphs("all programs")

    def _tuning_threads(self) -> int | None:
        """Limit the threads, each of which times a matmul on operands of its own.

        Beside the caches, there must be room for the operands and two results: XLA compares them.
        """
        count = self._devices.count if self._devices is not None else 1
        vocabulary = self.model_config.get_vocab_size()

        def size(weight: torch.Tensor) -> int:
            results, inputs = weight.shape
            num_rows = self.max_num_reqs if results >= vocabulary else self.num_tokens_paddings[-1]
            return weight.nbytes + num_rows * (inputs + 2 * results) * self.dtype.itemsize

        weights = (weight for weight in self.model.state_dict().values() if weight.dim() == 2)
        largest = max(map(size, weights), default=count) // count
        most = threads() or len(os.sched_getaffinity(0))
        return memory.room_for(largest, self.device, most)

    def _record_graphs(self) -> None:
        """Run all steps until each has its CUDA graph; otherwise requests would wait for that.

        XLA:GPU drops all graphs when it compiles a program. It records one when its program runs
        for the second time after that.
        """
        for _ in range(2):
            self._start_empty_steps()
        torch_xla.sync(wait=True)  # or the first steps would compile copies of what was captured

    def _write_warmup_adapters(self) -> None:
        """Compile the program that writes an adapter to its slot."""
        for adapter in self.lora_manager.list_adapters():  # those of maybe_setup_dummy_loras
            self._adapter_manager.activate_adapter(adapter)
