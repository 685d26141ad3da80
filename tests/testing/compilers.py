"""What the first torch.compile of a process imports, for a process that others are forked from."""

from __future__ import annotations

import torch._dynamo
import torch._inductor.compile_fx  # noqa: F401
from torch._dynamo import guards

# After each compilation, Dynamo empties the processor's caches to log how long its guards take: a
# third of the time of a small function.
guards.profile_guard_manager = lambda *_: 0.0
