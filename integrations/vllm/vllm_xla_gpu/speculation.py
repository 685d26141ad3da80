"""Speculative decoding with n-grams: propose the tokens that followed an earlier occurrence.

A step also computes the drafts after a request's last token, and its best tokens show how many of
them are right (Saxena, "Prompt Lookup Decoding", 2023).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vllm_xla_gpu.sampling import has_biases, has_penalties

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.request import Request


@dataclass(frozen=True)
class Drafter:
    """Proposes the next tokens of requests.

    Attributes:
        shortest, longest: the lengths of the n-grams that are looked up.
        count: the maximum number of proposed tokens.
    """

    shortest: int
    longest: int
    count: int

    @classmethod
    def of_config(cls, config: VllmConfig) -> Drafter | None:
        speculative = config.speculative_config
        if speculative is None:
            return None
        return cls(
            speculative.prompt_lookup_min,
            speculative.prompt_lookup_max,
            speculative.num_speculative_tokens,
        )

    def propose(self, request: Request) -> list[int]:
        """Propose a request's next tokens; none unless it wants the best tokens."""
        if asks_for_more(request):
            return []
        return self.lookup(np.array(request.all_token_ids))

    def lookup(self, tokens: np.ndarray) -> list[int]:
        """Return the tokens after the last occurrence of the longest possible n-gram."""
        for size in range(min(self.longest, len(tokens) - 1), self.shortest - 1, -1):
            before = np.lib.stride_tricks.sliding_window_view(tokens[:-1], size)
            found = np.flatnonzero((before == tokens[-size:]).all(axis=1))
            if len(found):
                begin = int(found[-1]) + size
                return tokens[begin : begin + self.count].tolist()
        return []


def asks_for_more(request: Request) -> bool:
    """Return whether the next token may not be the best one, or log-probabilities are requested."""
    params = request.sampling_params
    return bool(
        params.temperature != 0
        or params.logprobs is not None
        or has_penalties(params)
        or has_biases(params)
        or request.use_structured_output
    )


def accepted(drafts: Sequence[int], best: Sequence[int]) -> list[int]:
    """Return the new tokens: the drafts that are right, and the one after them.

    Args:
        drafts: a request's drafts.
        best: the best token after the request's last token, and after each draft.
    """
    count = next((i for i, draft in enumerate(drafts) if draft != best[i]), len(drafts))
    return list(best[: count + 1])
