"""Steps that the model runner has started."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, LogprobsTensors, ModelRunnerOutput

from vllm_xla_gpu.speculation import accepted

if TYPE_CHECKING:
    from vllm.v1.worker.gpu_input_batch import CachedRequestState
    from vllm.v1.worker.tpu_input_batch import InputBatch

    from vllm_xla_gpu.batch import BatchShape
    from vllm_xla_gpu.processes import Peers

    # The hidden states; or the best tokens, and those after the tokens that are checked.
    StepResult = torch.Tensor | tuple[torch.Tensor, torch.Tensor | None]


@dataclasses.dataclass(frozen=True)
class ModelStep:
    """The model's results for a step that has been started.

    Attributes:
        shape: the shape of the padded batch.
        requests: the requests, in the order of their rows.
        new_tokens: how many tokens of each request the step computes.
        ends: how many tokens of each request have been computed after the step.
        drafts: the drafts of each request, which are the last of its new tokens.
        result: the result of `_run_model`.
    """

    shape: BatchShape
    requests: list[CachedRequestState]
    new_tokens: np.ndarray
    ends: np.ndarray
    drafts: list[list[int]]
    result: StepResult


@dataclasses.dataclass
class StartedStep:
    """A step that may still run, with the interface of concurrent.futures.Future.

    Attributes:
        batch: the runner's batch, to which the tokens are written.
        states: the runner's requests, by name.
        peers: the processes to compare the tokens with, if there are any.
        requests: the requests, in the order of their rows.
        ends: how many tokens of each request have been computed after the step.
        has_token: for each request, whether the step computes a new token.
        tokens: int64 [at least as many as requests, 1] on the device.
        logprobs: the tokens' log-probabilities, if a request asks for them.
        drafts: each request's drafts.
        checked: the best tokens after the checked tokens, for all requests with drafts.
    """

    batch: InputBatch
    states: Mapping[str, CachedRequestState]
    peers: Peers | None
    requests: list[CachedRequestState]
    ends: list[int]
    has_token: list[bool]
    tokens: torch.Tensor
    logprobs: LogprobsTensors | None
    drafts: list[list[int]]
    checked: torch.Tensor | None

    def done(self) -> bool:
        """Return False: the engine starts the next step before it waits for this one."""
        return False

    def result(self) -> ModelRunnerOutput:
        """Wait for the tokens, and record them for later steps."""
        received = self.tokens.cpu()[: len(self.requests)]
        if self.peers is not None:
            self.peers.note(received.numpy().tobytes())
        tokens = received.tolist()
        checked = iter(self.checked.tolist() if any(self.drafts) else [])
        batch, rows, ends, new = self.batch, [], [], []
        row_of = batch.req_id_to_index
        for state, found, end, has_token, drafts in zip(
            self.requests, tokens, self.ends, self.has_token, self.drafts, strict=True
        ):
            if not has_token:
                found.clear()
                continue
            if drafts:
                found[:] = accepted(drafts, [next(checked) for _ in range(len(drafts) + 1)])
            state.output_token_ids += found
            row = row_of.get(state.req_id)
            if row is not None and self.states[state.req_id] is state:
                begin = end - len(drafts)
                rows += [row] * len(found)
                ends += range(begin + 1, begin + len(found) + 1)
                new += found
        batch.token_ids_cpu[rows, np.array(ends, dtype=np.int64) - 1] = new
        batch.num_tokens[rows] = ends  # of several in a row, the last one counts
        req_ids = [state.req_id for state in self.requests]
        return dataclasses.replace(
            EMPTY_MODEL_RUNNER_OUTPUT,
            req_ids=req_ids,
            req_id_to_index={req_id: row for row, req_id in enumerate(req_ids)},
            sampled_token_ids=tokens,
            logprobs=None if self.logprobs is None else self.logprobs.tolists(),
            prompt_logprobs_dict=dict.fromkeys(req_ids),
        )
