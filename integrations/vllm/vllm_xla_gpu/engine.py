"""Overlap steps: the engine starts a step while earlier steps still run.

The tokens of a step feed the next one on the device. While the next one runs, the host receives the
tokens, sends them out and schedules.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import time
from typing import TYPE_CHECKING

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import CachedRequestData, SchedulerOutput
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.executor.abstract import UniProcExecutor
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from vllm_xla_gpu import processes
from vllm_xla_gpu.sampling import has_penalties
from vllm_xla_gpu.speculation import Drafter
from vllm_xla_gpu.step_clock import StepClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm.v1.core.kv_cache_manager import KVCacheBlocks

    from vllm_xla_gpu.steps import StartedStep

# On several devices, a step may end before the host has received the previous step's tokens and
# started another step. So three steps are in flight.
_STEPS_IN_FLIGHT, _STEPS_IN_FLIGHT_OF_SEVERAL = 2, 3
# While sequences generate and at most this many prompts wait, a step takes this many tokens, or one
# prompt.
_SHARED_STEP, _FEW_PROMPTS, _FEW_TOKENS = 1152, 8, 4096


@dataclasses.dataclass
class _TimedStep:
    step: StartedStep
    clock: StepClock

    def done(self) -> bool:
        return self.step.done()

    def result(self) -> ModelRunnerOutput:
        return self.clock.wait(self.step.result)


class XlaGpuExecutor(UniProcExecutor):
    def _init_executor(self) -> None:
        self._clock = StepClock()
        # Read the size now, because the worker later sets it to 1.
        self._has_several = self.parallel_config.tensor_parallel_size > 1
        super()._init_executor()

    def sleep_until_needed(self, num_seqs: int) -> None:
        """Sleep until the next step, with this many sequences, must be scheduled."""
        time.sleep(self._clock.seconds_until_needed(num_seqs))

    @property
    def max_concurrent_batches(self) -> int:
        return _STEPS_IN_FLIGHT_OF_SEVERAL if self._has_several else _STEPS_IN_FLIGHT

    def execute_model(
        self, scheduler_output: SchedulerOutput, non_block: bool = True
    ) -> _TimedStep | concurrent.futures.Future[ModelRunnerOutput]:
        """Start a step, and return an object whose `result()` waits for it.

        vLLM also requests steps without tokens.
        """
        if scheduler_output.total_num_scheduled_tokens:
            step = self.collective_rpc("execute_model", args=(scheduler_output,))[0]
            self._clock.start(scheduler_output.total_num_scheduled_tokens)
            return _TimedStep(step, self._clock)
        nothing = concurrent.futures.Future()
        nothing.set_result(EMPTY_MODEL_RUNNER_OUTPUT)
        return nothing


class LaunchedExecutor(XlaGpuExecutor):
    """An executor in one of the processes that torchrun started, which all run the same engine."""

    def _init_executor(self) -> None:
        processes.join()
        super()._init_executor()


class XlaGpuScheduler(AsyncScheduler):
    """vLLM's scheduler for steps that overlap, extended to drafts, embeddings and penalties."""

    _finished_later: frozenset[str] = frozenset()  # requests, not reported to the worker yet
    _added: tuple[Request, ...] = ()  # since the previous step
    _need_their_tokens: tuple[Request, ...] = ()
    _computed_now: int = 0  # steps whose tokens have not arrived
    _last_step: frozenset[str] = frozenset()  # the requests of the step before

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)
        self._drafter = Drafter.of_config(self.vllm_config)
        self._is_pooling = self.vllm_config.model_config.runner_type == "pooling"
        if self._is_pooling:
            # vLLM leaves room for a token of an answer, and would not compute the end of a prompt.
            self.max_model_len += 1
        manager = self.kv_cache_manager
        manager.allocate_slots = functools.partial(
            _allocate_slots,
            manager.allocate_slots,
            manager.create_empty_block_list(),
            self.cache_config.block_size,
        )

    def add_request(self, request: Request) -> None:
        if processes.are_several() and request.use_structured_output:
            # Wait for the thread that compiles the grammar, which must be ready at the same step in
            # each process.
            concurrent.futures.wait([request.structured_output_request._grammar])
        super().add_request(request)
        self._added += (request,)
        if not self._is_pooling and _needs_its_tokens(request):
            self._need_their_tokens += (request,)

    def schedule(self) -> SchedulerOutput:
        """Return the next step; an empty one if it must wait for another step's tokens."""
        waits_for_drafts = self._drafter is not None and self._computed_now > 0
        # The device has only the previous step's tokens.
        waits_for_others = self._computed_now > 1 and (
            any(map(self._needs_an_older_step, self.running))
            or any(map(_begins_anew_too_early, self.waiting))
        )
        if self._need_their_tokens:
            unfinished = (r for r in self._need_their_tokens if not r.is_finished())
            self._need_their_tokens = tuple(unfinished)
        waits_for_host = any(r.num_output_placeholders for r in self._need_their_tokens)
        if waits_for_drafts or waits_for_others or waits_for_host:
            output = _empty_step()
            output.requests = {}
            return output
        self.max_num_scheduled_tokens = self._step_limit()
        output = super().schedule()
        # Pass these on with the next output, because the engine drops an empty one.
        finished = self._finished_later | output.finished_req_ids
        if output.total_num_scheduled_tokens:
            output.finished_req_ids, finished = set(finished), frozenset()
            output.added, self._added = self._added, ()
            self._computed_now += 1
            self._last_step = frozenset(output.num_scheduled_tokens)
        self._finished_later = finished
        return output

    def _needs_an_older_step(self, request: Request) -> bool:
        """Return whether the request continues from a token of a step before the previous one."""
        pending = request.num_output_placeholders
        goes_on = request.num_computed_tokens < request.num_tokens + pending
        return pending > 0 and goes_on and request.request_id not in self._last_step

    def _step_limit(self) -> int:
        """Return the maximum number of tokens of the next step.

        Sequences that generate wait for all prompts of a step. Two steps with a prompt each take
        about as long as one with both and one without, and generate as many tokens.
        """
        most = self.scheduler_config.max_num_batched_tokens
        if len(self.waiting) > _FEW_PROMPTS:
            return most
        generated, prompts = 0, []
        for request in (*self.running, *self.waiting):
            left = request.num_tokens_with_spec + request.num_output_placeholders
            left -= request.num_computed_tokens
            if request.num_computed_tokens < request.num_prompt_tokens:
                prompts.append(left)
            else:
                generated += left
        if not generated or not prompts or sum(prompts) > _FEW_TOKENS:
            return most
        return min(most, max(_SHARED_STEP, generated + prompts[0]))

    def _update_after_schedule(self, scheduler_output: SchedulerOutput) -> None:
        super()._update_after_schedule(scheduler_output)
        # No token follows a prompt to embed, and with drafts the number is unknown.
        nothing_follows = self._is_pooling or self._drafter is not None
        scheduler_output.requests = {}
        for name in scheduler_output.num_scheduled_tokens:
            request = scheduler_output.requests[name] = self.requests[name]
            if nothing_follows:
                request.num_output_placeholders = 0
            elif request.num_output_tokens + request.num_output_placeholders >= request.max_tokens:
                # No step follows the last token; with a placeholder, the next request would wait
                # for one.
                request.num_output_placeholders -= 1

    def _update_request_with_output(
        self, request: Request, new_token_ids: list[int]
    ) -> tuple[list[int], bool]:
        if self._drafter is None:
            # The last token has no placeholder.
            request.num_output_placeholders = max(request.num_output_placeholders, 1)
            return super()._update_request_with_output(request, new_token_ids)
        # AsyncScheduler's counts placeholders.
        return super(AsyncScheduler, self)._update_request_with_output(request, new_token_ids)

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """Pass the tokens of a step to the requests that the step was for.

        A request may have ended since then, and a new request may have its name.
        """
        for name, request in scheduler_output.requests.items():
            if self.requests.get(name) is not request:
                del scheduler_output.num_scheduled_tokens[name]
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        self._computed_now -= bool(scheduler_output.total_num_scheduled_tokens)
        if self._drafter is not None:
            for name, request in scheduler_output.requests.items():
                if self.requests.get(name) is request:
                    request.spec_token_ids = self._drafter.propose(request)
        return outputs


def _allocate_slots(
    allocate: Callable[..., KVCacheBlocks | None],
    no_pages: KVCacheBlocks,
    page_size: int,
    request: Request,
    num_new_tokens: int,
    *args: object,
    **options: object,
) -> KVCacheBlocks | None:
    """Replace KVCacheManager.allocate_slots, which is half of the scheduler's work for decodes.

    A single token within a page needs no new page. Pages before a sliding window are freed when the
    next page is allocated.
    """
    is_plain = num_new_tokens == 1 and not args and not any(options.values())
    if is_plain and request.num_computed_tokens % page_size:
        return no_pages
    return allocate(request, num_new_tokens, *args, **options)


def _begins_anew_too_early(request: Request) -> bool:
    """Return whether the host does not yet know all tokens of a preempted request."""
    return request.status == RequestStatus.PREEMPTED and request.num_output_placeholders > 0


def _needs_its_tokens(request: Request) -> bool:
    """Return whether the host needs each token to choose the next one (masks and penalties)."""
    params = request.sampling_params
    return request.use_structured_output or has_penalties(params) or bool(params.bad_words)


def _empty_step() -> SchedulerOutput:
    """Return a scheduler output that starts nothing."""
    return SchedulerOutput(
        scheduled_new_reqs=[],
        scheduled_cached_reqs=CachedRequestData.make_empty(),
        num_scheduled_tokens={},
        total_num_scheduled_tokens=0,
        scheduled_spec_decode_tokens={},
        scheduled_encoder_inputs={},
        num_common_prefix_blocks=[],
        finished_req_ids=set(),
        free_encoder_mm_hashes=[],
        structured_output_request_ids={},
        grammar_bitmask=None,
    )
