"""F.embedding_bag: its results, its gradients, and that it runs on the device."""

import pytest
import torch
import torch_xla
from torch_xla.debug import metrics

import torch_xla_ext

functional = torch.nn.functional
GENERATOR = torch.Generator().manual_seed(0)
ROWS = 7
INDICES = torch.randint(0, ROWS, (11,), generator=GENERATOR)
OFFSETS = {"bags": torch.tensor([0, 3, 4, 9]), "empty bags": torch.tensor([0, 0, 5, 5, 9, 11])}


def _weight() -> torch.Tensor:
    # Some rows have negative numbers only, and some are equal.
    weight = torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(1))
    weight[2] = -weight[2].abs()
    weight[4] = weight[5]
    return weight


def _results(device: str, weight: torch.Tensor, offsets: torch.Tensor, **options: object) -> list:
    leaf = weight.to(device).requires_grad_()
    leaves = [leaf]
    if (samples := options.pop("per_sample_weights", None)) is not None:
        samples = samples.to(device).requires_grad_()
        leaves.append(samples)
    result = functional.embedding_bag(
        INDICES.to(device), leaf, offsets.to(device), per_sample_weights=samples, **options
    )
    weights = torch.linspace(0.5, 1.5, result.numel()).view(result.shape).to(result)
    gradients = torch.autograd.grad(result, leaves, weights)
    torch_xla.sync()  # one program
    return [x.detach().cpu() for x in (result, *gradients)]


@pytest.mark.parametrize("bags", OFFSETS)
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding_idx", [None, 2, -1])
@pytest.mark.parametrize("include_last_offset", [False, True])
def test_results_and_gradients(
    bags: str, mode: str, padding_idx: int | None, include_last_offset: bool
) -> None:
    offsets = OFFSETS[bags]
    if include_last_offset and offsets[-1] != len(INDICES):
        offsets = torch.cat([offsets, torch.tensor([len(INDICES)])])
    if not include_last_offset and bags == "empty bags":
        offsets = offsets[:-1]
    options = {"mode": mode, "padding_idx": padding_idx, "include_last_offset": include_last_offset}
    metrics.clear_all()
    found = _results("xla", _weight(), offsets, **options)
    assert not [name for name in metrics.counter_names() if name.startswith("aten::_embedding")]
    torch.testing.assert_close(found, _results("cpu", _weight(), offsets, **options))


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_gradients_scaled_by_frequency(mode: str) -> None:
    """PyTorch on the CPU divides the gradients by the frequencies of the wrong rows."""
    offsets = OFFSETS["bags"]
    _, gradient = _results("cpu", _weight(), offsets, mode=mode)
    frequency = INDICES.bincount(minlength=ROWS).clamp(min=1)
    _, found = _results("xla", _weight(), offsets, mode=mode, scale_grad_by_freq=True)
    torch.testing.assert_close(found, gradient / frequency.unsqueeze(1))


@pytest.mark.parametrize("padding_idx", [None, 3])
def test_weights_of_samples(padding_idx: int | None) -> None:
    options = {
        "mode": "sum",
        "per_sample_weights": torch.randn(11, generator=torch.Generator().manual_seed(2)),
        "padding_idx": padding_idx,
    }
    expected = _results("cpu", _weight(), OFFSETS["bags"], **dict(options))
    torch.testing.assert_close(
        _results("xla", _weight(), OFFSETS["bags"], **dict(options)), expected
    )


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_without_indices(mode: str) -> None:
    weight = _weight().to("xla").requires_grad_()
    empty = torch.zeros(0, dtype=torch.long, device="xla")
    offsets = torch.zeros(2, dtype=torch.long, device="xla")
    result = functional.embedding_bag(empty, weight, offsets, mode=mode)
    result.sum().backward()
    assert result.shape == (2, 3) and not result.any()
    assert not weight.grad.any()


def test_long_bag_of_16_bits() -> None:
    """A sum of 5,000 ones is 5,000 in float32, and 256 in bfloat16."""
    weight = torch.ones(2, 1, dtype=torch.bfloat16, device="xla", requires_grad=True)
    indices = torch.zeros(5000, dtype=torch.long, device="xla")
    offsets = torch.zeros(1, dtype=torch.long, device="xla")
    result = functional.embedding_bag(indices, weight, offsets, mode="sum")
    result.sum().backward()
    assert result.item() == 4992  # the nearest bfloat16
    assert weight.grad.flatten().tolist() == [4992, 0]


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_captured_and_compiled_training(mode: str) -> None:
    def trained(way: str) -> torch.Tensor:
        device = "cpu" if way == "cpu" else "xla"
        bag = torch.nn.EmbeddingBag(ROWS, 3, mode=mode)
        with torch.no_grad():
            bag.weight.copy_(_weight())
        bag = bag.to(device)
        optimizer = torch.optim.SGD(bag.parameters(), lr=0.25)
        indices, offsets = INDICES.to(device), OFFSETS["bags"].to(device)

        def step(indices: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = forward(indices, offsets).square().sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        torch._dynamo.reset()
        forward = torch.compile(bag, backend="openxla") if way == "openxla" else bag
        run = torch_xla_ext.capture(step) if way == "captured" else step
        for _ in range(3):
            run(indices, offsets)
            if device == "xla":
                torch_xla.sync()
        return bag.weight.detach().cpu()

    expected = trained("cpu")
    torch.testing.assert_close(trained("captured"), expected)
    torch.testing.assert_close(trained("openxla"), expected)


@pytest.mark.parametrize("way", ["lazy", "openxla"])
def test_an_embedding_with_sparse_gradients(way: str) -> None:
    """The gradient is dense; torch_xla has no sparse tensors."""

    def trained(device: str) -> torch.Tensor:
        layer = torch.nn.Embedding(ROWS, 3, padding_idx=1, sparse=True)
        with torch.no_grad():
            layer.weight.copy_(_weight())
        layer = layer.to(device)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.25)
        is_compiled = device == "xla" and way == "openxla"
        forward = torch.compile(layer, backend="openxla") if is_compiled else layer
        for _ in range(2):
            optimizer.zero_grad()
            forward(INDICES.to(device)).square().sum().backward()
            optimizer.step()
        return layer.weight.detach().cpu()

    torch.testing.assert_close(trained("xla"), trained("cpu"))
