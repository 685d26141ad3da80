"""Schedule the next step shortly before the device can start it.

The engine schedules a step while the previous one runs. If it did so early, a request that arrives
while a step with prompts runs would wait for both steps before its own first step.
"""

import collections
import time
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")
# Upper bounds of the seconds to schedule, prepare and start a step, and of those per sequence.
_EARLY, _EARLY_BY_SEQUENCE = 0.004, 25e-6


class StepClock:
    """Measures the time of steps, by their approximate number of tokens.

    Args:
        now: returns seconds.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._shortest: dict[int, float] = {}
        self._running: collections.deque[tuple[int, float]] = collections.deque()
        self._end = 0.0  # of the last step that has ended

    def start(self, num_tokens: int) -> None:
        """Record that a step has been started."""
        self._running.append((num_tokens // 64, self._now()))

    def wait(self, result: Callable[[], _T]) -> _T:
        """Return `result()`, which waits for the oldest running step, and record the time."""
        found = result()
        size, begin = self._running.popleft()
        begin, self._end = max(begin, self._end), self._now()
        seconds = self._end - begin
        self._shortest[size] = min(seconds, self._shortest.get(size, seconds))
        return found

    def seconds_until_needed(self, num_seqs: int) -> float:
        """Return how long scheduling the next step, with this many sequences, can wait.

        0 if this is unknown.
        """
        if not self._running:
            return 0.0
        size, begin = self._running[0]
        end = max(begin, self._end) + self._shortest.get(size, 0.0)
        return max(end - self._now() - _EARLY - _EARLY_BY_SEQUENCE * num_seqs, 0.0)
