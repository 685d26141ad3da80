"""A program whose first backward() is of CPU tensors."""

import pytest
from testing.scripts import run_script

PROGRAM = """
import torch
import torch_xla
x = torch.ones(3, requires_grad=True)
(x * 2).sum().backward()
y = torch.ones(3, requires_grad=True, device="xla")
for device in range(2):
    (y * 3).sum().backward()
print(x.grad.tolist(), y.grad.tolist(), torch.autograd.grad((x.to("xla") * y).sum(), [x, y]))
"""


@pytest.mark.parametrize("first", ["import torch_xla", "import torch_xla; torch_xla.device()"])
def test_on_the_cpu(first: str) -> None:
    result = run_script(PROGRAM.replace("import torch_xla", first))
    assert result.stdout.startswith("[2.0, 2.0, 2.0] [6.0, 6.0, 6.0] (tensor([1., 1., 1.])"), (
        result.stderr
    )
