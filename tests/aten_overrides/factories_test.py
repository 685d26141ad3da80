"""Tensors of other devices that are made like an XLA tensor."""

import io
import pickle

import pytest
import torch
from testing.scripts import run_script

FACTORIES = {
    "empty_like": lambda x, device: torch.empty_like(x, device=device).fill_(2),
    "full_like": lambda x, device: torch.full_like(x, 2.0, device=device),
    "ones_like": lambda x, device: torch.ones_like(x, device=device) * 2,
    "rand_like": lambda x, device: torch.rand_like(x, device=device) * 0 + 2,
    "randint_like": lambda x, device: torch.randint_like(x, 2, 3, device=device),
    "randn_like": lambda x, device: torch.randn_like(x, device=device) * 0 + 2,
    "zeros_like": lambda x, device: torch.zeros_like(x, device=device) + 2,
    "new_empty": lambda x, device: x.new_empty(4, device=device).fill_(2),
    "new_empty_strided": lambda x, device: x.new_empty_strided((4,), (1,), device=device).fill_(2),
    "new_full": lambda x, device: x.new_full((4,), 2.0, device=device),
    "new_ones": lambda x, device: x.new_ones(4, device=device) * 2,
    "new_zeros": lambda x, device: x.new_zeros(4, device=device) + 2,
    "new_tensor": lambda x, device: x.new_tensor([2.0] * 4, device=device),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_a_cpu_tensor(name: str) -> None:
    tensor = FACTORIES[name](torch.arange(4.0, device="xla"), "cpu")
    assert tensor.numpy().tolist() == [2] * 4
    assert tensor.data_ptr()
    assert torch.equal(pickle.loads(pickle.dumps(tensor)), tensor)
    torch.save(tensor, io.BytesIO())
    tensor[1:] += 1
    assert torch.equal(tensor + torch.ones(4), torch.tensor([3.0, 4.0, 4.0, 4.0]))
    assert torch.ones(4).copy_(tensor).tolist() == [2, 3, 3, 3]


@pytest.mark.parametrize("name", FACTORIES)
def test_an_xla_tensor(name: str) -> None:
    tensor = FACTORIES[name](torch.arange(4.0, device="xla"), None)
    assert tensor.device.type == "xla"
    tensor.view(2, 2)[0].add_(1)
    assert tensor.tolist() == [3, 3, 2, 2]


def test_a_meta_tensor() -> None:
    tensor = torch.zeros_like(torch.arange(4.0, device="xla"), device="meta")
    assert tensor.is_meta
    assert not torch._is_functional_tensor(tensor)


def test_shared_memory() -> None:
    """The test runs in a separate process, because upstream torch_xla crashes it."""
    program = "import torch, torch_xla; torch.zeros_like(torch.ones(4, device='xla'), device='cpu')"
    assert run_script(f"{program}.share_memory_()").returncode == 0


@pytest.mark.parametrize("source, target", [("xla", "cpu"), ("cpu", "xla"), ("xla", "xla")])
def test_copies_of_lists(source: str, target: str) -> None:
    copies = [torch.zeros(2, device=target), torch.zeros(3, dtype=torch.int32, device=target)]
    torch._foreach_copy_(
        copies, [torch.ones(2, device=source), torch.full((3,), 2.0, device=source)]
    )
    assert [copy.tolist() for copy in copies] == [[1, 1], [2, 2, 2]]


def test_cpu_tensors_are_functionalized_as_before() -> None:
    function = lambda x: (x.view(-1).add_(1), torch.zeros_like(x).add_(x))  # noqa: E731
    results = torch.func.functionalize(function)(torch.ones(3))
    assert [result.tolist() for result in results] == [[2, 2, 2], [2, 2, 2]]
