"""Find the positions of Python iterators and random generators."""

import contextlib
import random
import types
from typing import Any

import torch

from torch_xla_ext.graph.guards import is_plain


def position_of(value: Any) -> Any:
    """Return the position of an iterator or a random generator; None for anything else."""
    if isinstance(value, types.GeneratorType):
        frame = value.gi_frame
        if frame is None:
            return "ended"
        values = list(frame.f_locals.values())
        return frame.f_lasti, [item if is_plain(item) else position_of(item) for item in values]
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, torch.Generator):
        return value.get_state().numpy().tobytes() if value.device.type == "cpu" else None
    kind = type(value)
    if kind.__module__.startswith("numpy.random") and hasattr(value, "bit_generator"):
        return repr(value.bit_generator.state)
    if kind.__module__ == "numpy.random.mtrand" and hasattr(value, "get_state"):
        return repr(value.get_state())
    if kind.__module__ in ("builtins", "itertools") and hasattr(kind, "__next__"):
        with contextlib.suppress(TypeError, AttributeError):
            return [_part_of_position(part) for part in value.__reduce__()[1:]]
    return None


def _part_of_position(part: Any) -> Any:
    if isinstance(part, tuple):
        return [_part_of_position(item) for item in part]
    if is_plain(part):
        return part
    return position_of(part) or (len(part) if isinstance(part, (list, dict)) else None)
