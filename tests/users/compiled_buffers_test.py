"""torch.compile(backend="openxla"): a function writes into the buffers of its arguments.

It must not write to memory that something else still reads. And it must not confuse arguments that
share memory in a later call, but not in the call that compiled it.
"""

import gc
from collections.abc import Callable

import pytest
import torch
import torch_xla
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor


def address(tensor: torch.Tensor) -> int:
    torch_xla.sync(wait=True)
    return torch_xla._XLAC._unsafe_buffer_pointer(tensor)


def add_(state: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    state.add_(x)
    return state * 2


@pytest.fixture
def compiled() -> Callable[..., torch.Tensor]:
    """`add_`, compiled for two tensors that share nothing, and run once."""
    torch._dynamo.reset()
    function = torch.compile(add_, backend="openxla")
    function(torch.ones(2, 2, device="xla"), torch.ones(2, 2, device="xla"))
    return function


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def test_the_buffer_is_the_same(compiled: Callable[..., torch.Tensor]) -> None:
    state, x = numbers(2, 2).to("xla"), torch.ones(2, 2, device="xla")
    before = address(state)
    for i in range(1, 4):
        result = compiled(state, x)
        assert address(state) == before
        torch.testing.assert_close(state.cpu(), numbers(2, 2) + i)
        torch.testing.assert_close(result.cpu(), 2 * (numbers(2, 2) + i))


def test_a_parameter_s_buffer_is_the_same() -> None:
    """A parameter is a view of the tensor that it was made from."""
    parameter = nn.Parameter(numbers(4).to("xla"))

    def update(scale: torch.Tensor) -> None:
        with torch.no_grad():
            parameter.mul_(scale)

    compiled = torch.compile(update, backend="openxla")
    scale = torch.full((), 2.0, device="xla")
    compiled(scale)
    before = address(parameter)
    compiled(scale)
    assert address(parameter) == before
    torch.testing.assert_close(parameter.detach().cpu(), 4 * numbers(4))


@pytest.mark.parametrize(
    "read",
    [
        lambda state: state * 2,
        lambda state: state.clone(),
        lambda state: state[0],
        lambda state: state.t().clone(),
    ],
    ids=["product", "clone", "view", "transposed"],
)
def test_pending_tensors_keep_their_values(
    compiled: Callable[..., torch.Tensor], read: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    state, expected = numbers(2, 2).to("xla"), numbers(2, 2)
    torch_xla.sync()
    pending, expected_pending = read(state), read(expected)
    compiled(state, torch.ones(2, 2, device="xla"))
    expected += 1  # of which a view sees the new value
    torch.testing.assert_close(pending.cpu(), expected_pending)
    torch.testing.assert_close(state.cpu(), expected)


@pytest.mark.parametrize(
    "share",
    [
        lambda state: state.detach(),
        lambda state: state.view(-1).view(2, 2),
        lambda state: state.t(),
    ],
    ids=["detached", "viewed", "transposed"],
)
def test_a_later_call_with_shared_memory(
    compiled: Callable[..., torch.Tensor], share: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    state, expected = numbers(2, 2).to("xla"), numbers(2, 2)
    result = compiled(state, share(state))
    expected += share(expected.clone())
    torch.testing.assert_close(state.cpu(), expected)
    torch.testing.assert_close(result.cpu(), 2 * expected)


def test_a_later_call_that_writes_to_a_part(compiled: Callable[..., torch.Tensor]) -> None:
    whole, expected = numbers(3, 2, 2).to("xla"), numbers(3, 2, 2)
    x = torch.ones(2, 2, device="xla")
    for part in (1, 2, 1):
        compiled(whole[part], x)
        expected[part] += 1
        torch.testing.assert_close(whole.cpu(), expected)
    view = whole[0]
    for _ in range(2):
        compiled(view, x)
    expected[0] += 2
    torch.testing.assert_close(whole.cpu(), expected)


def test_an_optimizer_s_step_copies_nothing() -> None:
    def make_model() -> nn.Module:
        torch.manual_seed(0)
        # A bias before the norm has a gradient of 0, of which AdamW makes steps of rounding errors.
        return nn.Sequential(nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.Linear(8, 2))

    upstream, module = make_model(), make_model()
    module.to("xla")

    def training(model: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, capturable=model is module)

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    compiled, eager = torch.compile(training(module), backend="openxla"), training(upstream)
    kept: set[int] = set()
    for i in range(5):
        x = torch.randn(16, 4)
        torch.testing.assert_close(compiled(x.to("xla")).cpu(), eager(x), rtol=1e-4, atol=1e-5)
        addresses = {address(tensor) for tensor in module.state_dict().values()}
        if i > 1:
            assert addresses == kept
        kept = addresses
    for own, expected in zip(module.parameters(), upstream.parameters(), strict=True):
        torch.testing.assert_close(own.detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-5)


def test_saved_activations_are_freed() -> None:
    """Upstream keeps each graph's first arguments, which for a backward pass are activations."""

    def live_bytes() -> int:
        gc.collect()
        return sum(
            tensor.numel() * tensor.element_size()
            for tensor in gc.get_objects()
            if isinstance(tensor, torch.Tensor)
            and not isinstance(tensor, FakeTensor)
            and tensor.device.type == "xla"
        )

    torch._dynamo.reset()
    weight = nn.Parameter(numbers(64, 64).to("xla"))
    compiled = torch.compile(lambda x: (x @ weight).tanh().sum(), backend="openxla")
    for _ in range(2):
        compiled(torch.ones(4096, 64, device="xla")).backward()
    torch_xla.sync()
    assert live_bytes() < 4096 * 64 * 4
