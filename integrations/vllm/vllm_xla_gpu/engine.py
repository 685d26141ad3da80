"""Overlapping steps: the engine starts a step while the one before it runs.

The tokens of a step feed the next one on the device. While that one runs, the host receives the
tokens, sends them out and schedules.
"""

from __future__ import annotations

import concurrent.futures

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import CachedRequestData, SchedulerOutput
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.engine.core_client import InprocClient
from vllm.v1.engine.processor import Processor
from vllm.v1.executor.abstract import UniProcExecutor
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from vllm_xla_gpu import processes
from vllm_xla_gpu.checks import check_prompt
from vllm_xla_gpu.sampling import has_penalties

_STEPS_IN_FLIGHT = 2


class XlaGpuExecutor(UniProcExecutor):
    """Its `execute_model` returns a step that has been started, of which `result()` waits."""

    @property
    def max_concurrent_batches(self) -> int:
        return _STEPS_IN_FLIGHT


class LaunchedExecutor(XlaGpuExecutor):
    """In a process that torchrun has started, with the same engine as in the others."""

    def _init_executor(self) -> None:
        processes.join()
        super()._init_executor()


class XlaGpuScheduler(AsyncScheduler):
    """vLLM's scheduler for steps that overlap, with what it lacks for some requests."""

    _finished_later: frozenset[str] = frozenset()  # of which the worker has not been told
    _added: tuple[Request, ...] = ()  # since the step before

    def add_request(self, request: Request) -> None:
        if processes.are_several() and request.use_structured_output:
            # Its grammar is made in a thread. Of each process it has to be there at the same step.
            concurrent.futures.wait([request.structured_output_request._grammar])
        super().add_request(request)
        self._added += (request,)

    def schedule(self) -> SchedulerOutput:
        """The next step; an empty one if it has to wait for the tokens of the one before."""
        if any(r.num_output_placeholders and _needs_its_tokens(r) for r in self.running):
            return _nothing()
        output = super().schedule()
        # The engine drops an output that is empty.
        finished = self._finished_later | output.finished_req_ids
        if output.total_num_scheduled_tokens:
            output.finished_req_ids, finished = set(finished), frozenset()
            output.added, self._added = self._added, ()
        self._finished_later = finished
        output.requests = {name: self.requests[name] for name in output.num_scheduled_tokens}
        return output

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """Gives the tokens of a step to the requests that it was for.

        One may have ended since then, and another one may have its name.
        """
        for name, request in scheduler_output.requests.items():
            if self.requests.get(name) is not request:
                del scheduler_output.num_scheduled_tokens[name]
        return super().update_from_output(scheduler_output, model_runner_output)


def _needs_its_tokens(request: Request) -> bool:
    """Whether the host has to know a token for the choice of the next one: masks and penalties."""
    params = request.sampling_params
    return request.use_structured_output or has_penalties(params) or bool(params.bad_words)


def _nothing() -> SchedulerOutput:
    return SchedulerOutput(
        scheduled_new_reqs=[],
        scheduled_cached_reqs=CachedRequestData.make_empty(),
        num_scheduled_tokens={},
        total_num_scheduled_tokens=0,
        scheduled_spec_decode_tokens={},
        scheduled_encoder_inputs={},
        num_common_prefix_blocks=[],
        finished_req_ids=set(),
        free_encoder_input_ids=[],
        structured_output_request_ids={},
        grammar_bitmask=None,
    )


def _get_output(client: InprocClient) -> EngineCoreOutputs:
    outputs, _ = client.engine_core.step_with_batch_queue()
    return (outputs or {}).get(0) or EngineCoreOutputs()


# The client for an engine in the caller's process knows of no steps that overlap.
InprocClient.get_output = _get_output

_validate = Processor._validate_model_input


def _validate_prompt(processor: Processor, prompt: dict, *args: object, **kwargs: object) -> None:
    _validate(processor, prompt, *args, **kwargs)
    check_prompt(len(prompt["prompt_token_ids"]), processor.model_config.max_model_len)


Processor._validate_model_input = _validate_prompt
