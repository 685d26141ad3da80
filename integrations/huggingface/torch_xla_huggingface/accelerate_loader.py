"""Make accelerate's data loader for XLA read no batches ahead.

accelerate asks the loader whether the current batch is the last one; if so, it steps the optimizer,
however many gradients are accumulated. A thread of torch_xla's MpDeviceLoader reads up to eight
batches ahead, so the answer would also be yes for several earlier batches.
"""

from collections.abc import Callable, Iterator

import torch_xla


def batches(_: Callable[..., Iterator[object]]) -> Callable[..., Iterator[object]]:
    """Replace MpDeviceLoaderWrapper.__iter__ of accelerate.data_loader, if it uses XLA."""
    from accelerate import data_loader as module

    def batches(self: object) -> Iterator[object]:
        if self._rng_types is not None:
            module.synchronize_rng_states(self._rng_types, self._loader.synchronized_generator)
        for batch in self._loader:
            yield module.send_to_device(batch, self.device)
            _end_step()

    return batches


def _end_step() -> None:
    from torch_xla.debug import profiler

    if profiler.get_tracer_marked_step():  # StepTrace has ended it
        profiler.set_tracer_marked_step(False)
    else:
        torch_xla.sync()
