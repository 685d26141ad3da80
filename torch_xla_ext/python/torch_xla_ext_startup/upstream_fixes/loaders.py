"""Raise exceptions of torch_xla's loader threads in the loop over their batches.

ParallelLoader, which MpDeviceLoader makes, reads and copies batches in its own threads. Upstream,
if a thread raises an exception, the loop ends as if there were no more batches, or hangs. A second
loop over the same MpDeviceLoader, such as an evaluation in the middle of an epoch, ends the first
loop in the same way.
"""

import weakref
from collections.abc import Callable

import torch
import torch_xla.debug.profiler as xp
from torch_xla.distributed import parallel_loader
from torch_xla.distributed.parallel_loader import MpDeviceLoader, ParallelLoader, PerDeviceLoader

from torch_xla_ext_startup.upstream_fixes.batches import check_shardings


def _report(loader: ParallelLoader, error: BaseException) -> None:
    """Make each device's loop raise the exception, after the batches that precede it."""
    for _ in loader._devices:
        loader._exception_queue.put(error)


def loader_worker(_: Callable[[ParallelLoader], None]) -> Callable[[ParallelLoader], None]:
    """Replace ParallelLoader._loader_worker, the thread that reads batches."""

    def _loader_worker(self: ParallelLoader) -> None:
        queues = list(self._queues.values())
        batches: list[object] = []
        try:
            data = iter(self._cpu_loader)
            while not self._done:
                try:
                    with xp.Trace("cpu_loader.next"):
                        batches.append(next(data))
                except StopIteration:
                    break
                if len(batches) == len(queues):
                    for queue, batch in zip(queues, batches, strict=True):
                        queue.cpu_loader_queue.put(batch)
                    batches = []
        except BaseException as error:
            _report(self, error)
        finally:
            for queue in queues:
                queue.cpu_loader_queue.close_write()

    return _loader_worker


def worker(_: Callable[..., None]) -> Callable[..., None]:
    """Replace ParallelLoader._worker, the thread that copies batches to a device."""

    def _worker(
        self: ParallelLoader,
        dqueue: parallel_loader.PerDeviceQueue,
        host_to_device_transfer_threads: int,
    ) -> None:
        device = torch.device(dqueue.device)
        try:
            check_shardings(self._input_sharding)
            while True:
                with xp.Trace("get_batch_from_cpu_queue"):
                    batches = self._get_batch(dqueue)
                if not batches:
                    break
                with torch.no_grad(), xp.Trace("cpu_data_to_xla_device"):
                    on_device = self.send_cpu_data_to_device(batches, device)
                for batch in on_device:
                    dqueue.queue.put(batch)
        except BaseException as error:
            _report(self, error)
            # Otherwise the reading thread would wait for room in this queue forever.
            self._done = True
            for queue in self._queues.values():
                queue.cpu_loader_queue.close()
        finally:
            if next(dqueue.close_queue_count) == host_to_device_transfer_threads - 1:
                dqueue.queue.close_write()

    return _worker


def iterate(
    _: Callable[[MpDeviceLoader], PerDeviceLoader],
) -> Callable[[MpDeviceLoader], PerDeviceLoader]:
    """Replace MpDeviceLoader.__iter__: close the loaders that no loop reads any more.

    A DataLoader with persistent workers has only one iterator, so its previous loop is closed, too.
    """

    def iter_(self: MpDeviceLoader) -> PerDeviceLoader:
        is_shared = getattr(self._loader, "persistent_workers", False)
        still_read = []
        for iterator, loader in getattr(self, "_opened", []):
            if is_shared or iterator() is None:
                loader.close()
            else:
                still_read.append((iterator, loader))
        loader = ParallelLoader(self._loader, [self._device], **self._parallel_loader_kwargs)
        iterator = loader.per_device_loader(self._device)
        self._parallel_loader = loader
        self._opened = [*still_read, (weakref.ref(iterator), loader)]
        return iterator

    return iter_
