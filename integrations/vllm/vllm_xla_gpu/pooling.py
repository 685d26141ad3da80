"""Compute embeddings: the host passes each step's hidden states to vLLM's pooler."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from vllm.sampling_params import SamplingParams
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, ModelRunnerOutput
from vllm.v1.pool.metadata import PoolingMetadata

from vllm_xla_gpu.batch import Batch
from vllm_xla_gpu.model_runner import XlaGpuModelRunner

if TYPE_CHECKING:
    from vllm.tasks import PoolingTask
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.worker.gpu_input_batch import CachedRequestState


class XlaGpuPoolingRunner(XlaGpuModelRunner):
    def load_model(self) -> None:
        super().load_model()
        self.model.pooler.cpu()  # sizes of its tensors change from step to step

    def _make_logits(self) -> None:
        """Do nothing, because pooling needs no logits."""

    def _run_model(self, num_tokens: int, packed: torch.Tensor) -> torch.Tensor:
        """Return the hidden states of all tokens, [num_tokens, hidden]."""
        batch = Batch.unpack(self._received(packed), self._shape(num_tokens))
        return self._sent(self._hidden_of(batch, batch.input_ids))

    def _calls_beside_steps(self) -> Iterator[Any]:
        """None."""
        return iter(())

    def get_supported_pooling_tasks(self) -> list[PoolingTask]:
        """Return the tasks that vLLM's runner for GPUs returns."""
        tasks = super().get_supported_pooling_tasks()
        if self.scheduler_config.chunked_prefill_enabled:
            tasks.remove("encode")  # which asks for all tokens of a prompt
        return tasks

    def _update_states(self, scheduler_output: SchedulerOutput) -> bool:
        """Update the states as vLLM's runner does, which only accepts requests for tokens."""
        new = scheduler_output.scheduled_new_reqs
        for request in new:
            request.sampling_params = SamplingParams(temperature=0)
        changed = super()._update_states(scheduler_output)
        for request in new:
            self.requests[request.req_id].pooling_params = request.pooling_params
        return changed

    @torch.no_grad()
    def execute_model(
        self, scheduler_output: SchedulerOutput, intermediate_tensors: None = None
    ) -> StartedPooling:
        """Start one step of vLLM's scheduler, which has tokens to compute."""
        step = self._start_step(scheduler_output)
        self._verify_num_xla_graphs("execute_model")
        return StartedPooling(
            runner=self,
            requests=step.requests,
            new_tokens=step.new_tokens.tolist(),
            ends=step.ends.tolist(),
            hidden=step.result,
        )


@dataclasses.dataclass
class StartedPooling:
    """A pooling step that may still run, like StartedStep.

    Attributes:
        runner: the runner that started the step.
        requests: the requests, in the order of their rows.
        new_tokens: how many tokens of each request the step computes.
        ends: how many tokens of each request have been computed after the step.
        hidden: [at least as many as new tokens, hidden] on the device.
    """

    runner: XlaGpuPoolingRunner
    requests: list[CachedRequestState]
    new_tokens: list[int]
    ends: list[int]
    hidden: torch.Tensor

    def done(self) -> bool:
        """Return False: the engine starts the next step before it waits for this one."""
        return False

    @torch.no_grad()
    def result(self) -> ModelRunnerOutput:
        """Wait for the hidden states, and return the embeddings; None for an incomplete prompt."""
        hidden = self.hidden.cpu()[: sum(self.new_tokens)]
        lengths = [len(state.prompt_token_ids) for state in self.requests]
        metadata = PoolingMetadata(
            prompt_lens=torch.tensor(lengths),
            prompt_token_ids=None,
            pooling_params=[state.pooling_params for state in self.requests],
        )
        metadata.build_pooling_cursor(self.new_tokens, device=hidden.device)
        pooled = self.runner.model.pooler(hidden_states=hidden, pooling_metadata=metadata)
        req_ids = [state.req_id for state in self.requests]
        return dataclasses.replace(
            EMPTY_MODEL_RUNNER_OUTPUT,
            req_ids=req_ids,
            req_id_to_index={req_id: row for row, req_id in enumerate(req_ids)},
            pooler_output=[
                output if end == length else None
                for output, end, length in zip(pooled, self.ends, lengths, strict=True)
            ],
        )
