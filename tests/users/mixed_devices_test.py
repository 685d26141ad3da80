"""An operator receives a CPU tensor besides XLA tensors: the error names it and the remedy.

Elementwise operators compute the result, as upstream does, and warn.
"""

import os
import subprocess
import sys
import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as functional
import torch_xla  # noqa: F401

X, Y = torch.ones(2, 3, device="xla"), torch.ones(2, 3)
INDEX = torch.tensor([[0, 0, 1]])
CALLS: dict[str, tuple[Callable[[], object], str]] = {
    "matmul": (lambda: X @ Y.T, r"torch\.FloatTensor of shape \[3, 2\], is on cpu"),
    "the first": (lambda: Y @ X.T, r"torch\.FloatTensor of shape \[2, 3\], is on cpu"),
    "cat": (lambda: torch.cat([X, Y]), r"torch\.FloatTensor of shape \[2, 3\], is on cpu"),
    "linear": (lambda: functional.linear(X, Y), r"torch\.FloatTensor of shape \[3, 2\], is on cpu"),
    "gather": (lambda: X.gather(0, INDEX), r"torch\.LongTensor of shape \[1, 3\], is on cpu"),
    "embedding": (
        lambda: functional.embedding(INDEX, X),
        r"torch\.LongTensor of shape \[1, 3\], is on cpu",
    ),
}


@pytest.mark.parametrize(("call", "text"), CALLS.values(), ids=CALLS)
def test_one_sentence(call: Callable[[], object], text: str) -> None:
    expected = f"^expected all tensors to be on an XLA device but one, {text}: move it with .to"
    with pytest.raises(RuntimeError, match=expected) as error:
        call()
    assert "\n" not in str(error.value)


def test_tensors_on_two_xla_devices() -> None:
    code = """
import torch, torch_xla
model, x = torch.nn.Linear(3, 3).to("xla:1"), torch.ones(2, 3).to("xla:2")
for function in (lambda: model(x).sum().item(), lambda: model(x * 2).cpu()):
    try:
        function()
    except RuntimeError as error:
        print(str(error).replace("xla:2 and xla:1", "xla:1 and xla:2"))
print(model(x.to("xla:1")).shape)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "3"},
        capture_output=True,
        text=True,
    )
    *errors, last = done.stdout.splitlines()
    assert last == "torch.Size([2, 3])", done.stderr
    assert errors == 2 * [
        "Expected all tensors to be on the same device, but found at least two devices, xla:1 and "
        "xla:2! Please move one of them with .to()."
    ]


def test_the_sums_go_on() -> None:
    with pytest.raises(RuntimeError, match="is on cpu"):
        torch.mm(X, Y.T)
    assert torch.equal(torch.mm(X, Y.T.to("xla")).cpu(), torch.mm(Y, Y.T))


ELEMENTWISE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": torch.add,
    "subtract": torch.sub,
    "multiply": torch.mul,
    "divide": torch.div,
    "floor_divide": torch.floor_divide,
    "power": torch.pow,
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "less": torch.lt,
    "equal": torch.eq,
    "atan2": torch.atan2,
    "maximum": torch.maximum,
    "where": lambda x, y: torch.where(x > 1, x, y),
    "and": lambda x, y: (x > 1) & (y > 2),
    "shift": lambda x, y: x.int() << y.int(),
    "l1_loss": functional.l1_loss,
    "outer": lambda x, y: torch.outer(x[0], y[0]),
}


@pytest.mark.filterwarnings("ignore:.*an operator received tensors on")
@pytest.mark.parametrize("function", ELEMENTWISE.values(), ids=ELEMENTWISE)
def test_elementwise_operators_compute(
    function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> None:
    x, y = torch.tensor([[1.0, 5.0, 2.5]]), torch.tensor([[2.0, 3.0, 1.0]])
    for a, b in ((x.to("xla"), y), (x, y.to("xla"))):
        result = function(a, b)
        assert result.device.type == "xla"
        torch.testing.assert_close(result.cpu(), function(x, y))


def test_one_warning_names_the_line() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            line = sys._getframe().f_lineno + 1
            functional.l1_loss(X, Y)
    texts = [str(one.message) for one in caught if "an operator received" in str(one.message)]
    assert len(texts) == 1
    assert texts[0].startswith(
        f"{__file__}:{line}: an operator received tensors on xla:0 and one on"
    )
    assert "torch.FloatTensor of shape [2, 3]" in texts[0]


def test_gradients_and_in_place_operators() -> None:
    x = torch.ones(3, device="xla", requires_grad=True)
    (x * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert x.grad.tolist() == [1, 2, 3]
    assert x.grad.add_(torch.ones(3)).tolist() == [2, 3, 4]


def test_an_error_by_an_option() -> None:
    program = (
        "import os; os.environ['TORCH_XLA_EXT_MIXED_DEVICES'] = 'error'\n"
        "import torch, torch_xla\nx = torch.ones(3, device='xla')\n"
        "print((x + torch.tensor(1.0)).tolist())\nx + torch.ones(3)"
    )
    result = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, check=False
    )
    assert result.stdout == "[2.0, 2.0, 2.0]\n"
    assert "at least two devices, xla:0 and cpu!" in result.stderr
