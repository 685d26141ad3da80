"""Support torch.Generator(device="xla"), which PyTorch refuses.

An operator with a CPU generator draws on the CPU, and copies the numbers to the device. A generator
of an XLA device does the same. `torch.Generator` becomes a class that returns PyTorch's own
generators for all other devices; all generators are instances of it.
"""

from __future__ import annotations

import torch


class XlaGenerator(torch._C.Generator):
    """A generator for an XLA device, which draws its numbers on the CPU."""

    _device: torch.device

    @property
    def device(self) -> torch.device:
        return self._device

    def clone_state(self) -> XlaGenerator:
        return _new(self._device, self.get_state())

    def __reduce__(self) -> tuple[object, tuple[torch.device, torch.Tensor]]:
        return _new, (self._device, self.get_state())


def _new(device: torch.device, state: torch.Tensor | None = None) -> XlaGenerator:
    generator = torch._C.Generator.__new__(XlaGenerator)
    generator._device = torch.device("xla", device.index or 0)
    if state is not None:
        generator.set_state(state)
    return generator


def generator(original: type[torch._C.Generator]) -> type[torch._C.Generator]:
    """Replace torch.Generator."""

    class OfAllGenerators(type(original)):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, original)

        def __subclasscheck__(cls, subclass: type) -> bool:
            return issubclass(subclass, original)

        def __call__(
            cls, device: torch.device | str | int = "cpu", **options: object
        ) -> torch._C.Generator:
            is_of_xla = (
                isinstance(device, torch.device | str) and torch.device(device).type == "xla"
            )
            return _new(torch.device(device)) if is_of_xla else original(device, **options)

    class Generator(original, metaclass=OfAllGenerators):
        __doc__ = original.__doc__

    Generator.__module__, Generator.__qualname__ = "torch", "Generator"
    return Generator
