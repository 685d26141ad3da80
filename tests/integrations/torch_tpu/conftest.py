"""Fixtures of these tests."""

import dataclasses
import re
from collections.abc import Iterator

import pytest
import torch
import torch_xla_gpu
from torch_xla_gpu.custom_call import compiled_kernel, stablehlo

from xla_kernels.cuda_source import kernel_calls
from xla_kernels.launch import TARGET

TPU = torch_xla_gpu.device.TYPE


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    """torch.compile gives up on a function that it has compiled for many kinds of arguments."""
    torch._dynamo.reset()
    yield


@dataclasses.dataclass
class Traced:
    """A call that a GPU would get."""

    text: str  # of the module
    operands: list[torch.Tensor]
    donated: list[int]

    @property
    def words(self) -> list[str]:
        return re.search(r'parameters = "([^"]*)"', self.text)[1].split()


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[Traced]:
    """Calls are made as for an H200, and written down instead of run."""
    found: list[Traced] = []
    texts: dict[str, str] = {}

    register, run = stablehlo._registered, stablehlo.Prepared.__call__

    def registered(target: str, text: str) -> str:
        if target != TARGET:
            return register(target, text)
        texts[str(len(texts))] = text
        return str(len(texts) - 1)

    def call(self: stablehlo.Prepared, operands: list[torch.Tensor]) -> list[torch.Tensor]:
        if self.target != TARGET:
            return run(self, operands)
        found.append(Traced(texts[self.key], operands, self.donated))
        return [torch.zeros(meta.shape, dtype=meta.dtype, device=TPU) for meta in self.results]

    gpu = torch_xla_gpu.device.current()._replace(platform="CUDA")
    monkeypatch.setattr(torch_xla_gpu.device, "current", lambda: gpu)
    monkeypatch.setattr(compiled_kernel, "register", lambda: None)
    monkeypatch.setattr(kernel_calls, "compute_capability", lambda: 90)
    monkeypatch.setattr(stablehlo, "_registered", registered)
    monkeypatch.setattr(stablehlo.Prepared, "__call__", call)
    return found
