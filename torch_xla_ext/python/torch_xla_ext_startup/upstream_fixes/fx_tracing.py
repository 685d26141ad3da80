"""Let a thread call a compiled function while another thread compiles one.

torch.fx notes in one flag for the process that a function is traced. A compiled function that
another thread called meanwhile raised "using FX to symbolically trace a dynamo-optimized function".
"""

import functools
import threading
from collections.abc import Callable

from torch import fx


class _Depth(threading.local):
    """Counts the traces that this thread is in."""

    value = 0


_depth = _Depth()


def trace(original: Callable[..., fx.Graph]) -> Callable[..., fx.Graph]:
    """Replace torch.fx.Tracer.trace."""

    @functools.wraps(original)
    def trace(self: fx.Tracer, *args: object, **kwargs: object) -> fx.Graph:
        _depth.value += 1
        try:
            return original(self, *args, **kwargs)
        finally:
            _depth.value -= 1

    return trace


def is_fx_tracing(original: Callable[[], bool]) -> Callable[[], bool]:
    """Replace torch.fx._symbolic_trace.is_fx_tracing."""

    @functools.wraps(original)
    def is_fx_tracing() -> bool:
        return _depth.value > 0

    return is_fx_tracing
