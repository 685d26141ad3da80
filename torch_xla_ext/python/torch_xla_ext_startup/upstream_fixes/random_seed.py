"""torch.manual_seed and torch.seed set the seeds of XLA's devices, too.

Both call this function of PyTorch for the devices that are not its own. A process that has no
client yet gets none for it: the devices begin with the seed when there is one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch_xla

_MIN, _NUM_SEEDS = -(1 << 63), 1 << 64


def seed_custom_device(original: Callable[[int], None]) -> Callable[[int], None]:
    """_seed_custom_device of torch.random."""

    @functools.wraps(original)
    def _seed_custom_device(seed: int) -> None:
        original(seed)
        seed = int(seed)
        if _MIN <= seed < _NUM_SEEDS:  # PyTorch refuses others afterwards
            torch_xla._XLAC._xla_seed_all_devices(seed % _NUM_SEEDS)

    return _seed_custom_device
