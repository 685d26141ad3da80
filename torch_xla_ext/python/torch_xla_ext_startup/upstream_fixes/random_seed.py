"""Make torch.manual_seed and torch.seed set the seeds of XLA devices, too.

Both call `_seed_custom_device` for devices outside of PyTorch. This does not create a client:
without one, the devices begin with the seed when a client is created.

torch.random.fork_rng accepts the device type "xla", and by default forks XLA's generators, too.
"""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator

import torch
import torch_xla
import torch_xla.core.xla_model as xm

_MIN, _NUM_SEEDS = -(1 << 63), 1 << 64


def seed_custom_device(original: Callable[[int], None]) -> Callable[[int], None]:
    """Replace _seed_custom_device of torch.random."""

    @functools.wraps(original)
    def _seed_custom_device(seed: int) -> None:
        original(seed)
        seed = int(seed)
        if _MIN <= seed < _NUM_SEEDS:  # PyTorch refuses others afterwards
            torch_xla._XLAC._xla_seed_all_devices(seed % _NUM_SEEDS)

    return _seed_custom_device


def fork_rng(original: Callable[..., object]) -> Callable[..., object]:
    """Replace torch.random.fork_rng."""

    @contextlib.contextmanager
    @functools.wraps(original)
    def fork_rng(
        devices: Iterable[object] | None = None,
        enabled: bool = True,
        _caller: str = "fork_rng",
        _devices_kw: str = "devices",
        device_type: str = "cuda",
    ) -> Iterator[None]:
        is_of_xla = torch.device(device_type).type == "xla"
        with contextlib.ExitStack() as stack:
            if enabled and (is_of_xla or devices is None):
                stack.enter_context(_xla_state_kept())
            if is_of_xla:
                devices, device_type = (), "cpu"
            stack.enter_context(original(devices, enabled, _caller, _devices_kw, device_type))
            yield

    return fork_rng


@contextlib.contextmanager
def _xla_state_kept() -> Iterator[None]:
    if not torch_xla._XLAC._xla_runtime_is_initialized():
        yield  # no numbers have been drawn
        return
    with xm.fork_rng():
        yield
