"""Measure the seconds of each part of an engine's start."""

import contextlib
import time
from collections.abc import Iterator

from torch_xla.debug import metrics
from vllm.logger import init_logger

logger = init_logger("vllm.xla_gpu")


class Start:
    """The seconds of an engine's start, by its parts."""

    def __init__(self) -> None:
        self._parts: dict[str, float] = {}
        self._compiled = _compiled()

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the seconds of the block, without those of nested blocks."""
        begin, before = time.perf_counter(), sum(self._parts.values())
        self._parts.setdefault(name, 0.0)
        try:
            yield
        finally:
            inside = sum(self._parts.values()) - before
            self._parts[name] += time.perf_counter() - begin - inside

    def report(self) -> None:
        """Log the seconds of each part."""
        parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in self._parts.items())
        count, seconds = (now - then for now, then in zip(_compiled(), self._compiled, strict=True))
        logger.info(
            "The start took %.1f s: %s. XLA compiled %d programs, for %.1f s of its threads.",
            *(sum(self._parts.values()), parts, count, seconds),
        )


def _compiled() -> tuple[int, float]:
    """Return the number of programs that XLA has compiled, and the seconds of its threads."""
    data = metrics.metric_data("CompileTime")
    return (0, 0.0) if data is None else (data[0], data[1] / 1e9)
