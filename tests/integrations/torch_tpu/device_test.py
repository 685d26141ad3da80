"""The device: tensors, training, what differs from PyTorch's own on the CPU."""

import math
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
import torch_xla_gpu
import torch_xla_gpu_versions
from torch.nn import functional

TPU = torch_xla_gpu.device.TYPE
# On an H100, products of float32 matrices have the precision of TensorFloat-32.
PRODUCTS = 1e-4 if torch_xla_gpu.device.current().platform == "Host" else 5e-3


def _train(device: str, compiled: bool) -> list[float]:
    torch.manual_seed(0)
    embedding = torch.nn.Embedding(50, 32)
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    model = torch.nn.Sequential(embedding, layer, torch.nn.Linear(32, 50)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    tokens = torch.randint(50, (4, 17), generator=torch.Generator().manual_seed(1)).to(device)

    def loss(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())

    function = torch.compile(loss) if compiled else loss
    losses = []
    for _ in range(6):
        optimizer.zero_grad()
        value = function(tokens[:, :-1], tokens[:, 1:])
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses


@pytest.mark.parametrize("compiled", [False, True])
def test_a_transformer_trains_as_on_the_cpu(compiled: bool) -> None:
    expected = _train("cpu", False)
    assert expected[-1] < expected[0] - 0.5
    losses = _train(TPU, compiled)
    torch.testing.assert_close(losses, expected, rtol=PRODUCTS, atol=PRODUCTS)


VIEWS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: x[:, :-1],
    lambda x: x[:, 1:],
    lambda x: x.t(),
    lambda x: x[1:, ::2],
    lambda x: x[:1].expand(4, 6),
    lambda x: x,
]
_AN_EXPANDED_RESULT = pytest.param(
    VIEWS[4],
    marks=pytest.mark.skipif(
        torch.__version__.startswith("2.12."),
        reason="torch.compile of PyTorch 2.12 fails on it, with backend='aot_eager', too",
    ),
)


@pytest.mark.parametrize("view", VIEWS)
def test_gradients_of_a_compiled_function_of_a_view(
    view: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (torch.sin(x) * torch.exp(x) * x.flip(0)).sum()

    gradients = []
    for device in ("cpu", TPU):
        x = torch.linspace(-1, 1, 24).view(4, 6).to(device).requires_grad_()
        called = function if device == "cpu" else torch.compile(function)
        called(view(x)).backward()
        gradients.append(x.grad.cpu())
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("view", [*VIEWS[:4], _AN_EXPANDED_RESULT, VIEWS[5]])
def test_results_and_incoming_gradients_that_are_views(
    view: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.sin(x) * 2
        return view(y), y.t() * torch.exp(y.t())

    outcomes = []
    for device in ("cpu", TPU):
        x = torch.linspace(-1, 1, 24).view(4, 6).to(device).requires_grad_()
        results = (function if device == "cpu" else torch.compile(function))(x)
        weights = [torch.arange(r.numel(), device=device).view(r.t().shape).t() for r in results]
        loss = sum((r * w).sum() for r, w in zip(results, weights, strict=True))
        outcomes.append([*(r.detach().cpu() for r in results), *torch.autograd.grad(loss, x)])
    torch.testing.assert_close([x.cpu() for x in outcomes[1]], outcomes[0], rtol=1e-5, atol=1e-5)


def test_a_linear_layer_with_transposed_operands() -> None:
    outcomes = []
    for device in ("cpu", TPU):
        torch.manual_seed(0)
        x = torch.randn(3, 5, 7).to(device).requires_grad_()
        w = torch.randn(3, 4).to(device).requires_grad_()

        def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            y = torch.tanh(functional.linear(x.transpose(0, 2), w.t()))
            return (y.permute(1, 2, 0) * torch.exp(y.permute(1, 2, 0))).sum()

        called = function if device == "cpu" else torch.compile(function)
        called(x, w).backward()
        outcomes.append([x.grad.cpu(), w.grad.cpu()])
    torch.testing.assert_close(outcomes[1], outcomes[0], rtol=PRODUCTS, atol=PRODUCTS)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("mask", ["none", "causal", "bool", "float", "grouped"])
def test_attention(mask: str, compiled: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 4, 8, 16, generator=generator) for _ in range(3))
    options = {}
    if mask == "causal":
        options["is_causal"] = True
    if mask == "grouped":
        k, v, options["enable_gqa"] = k[:, :2], v[:, :2], True
    seen = torch.rand(2, 1, 8, 8, generator=generator) > 0.3
    seen[0, 0, 3] = False  # a query that sees nothing
    if mask == "bool":
        options["attn_mask"] = seen
    if mask == "float":
        options["attn_mask"] = torch.rand(2, 1, 8, 8, generator=generator)
    results = []
    for device in ("cpu", TPU):
        operands = [x.clone().to(device).requires_grad_() for x in (q, k, v)]
        given = {n: x.to(device) if torch.is_tensor(x) else x for n, x in options.items()}

        def attention(*operands: torch.Tensor, given: dict = given) -> torch.Tensor:
            return functional.scaled_dot_product_attention(*operands, **given)

        called = torch.compile(attention) if compiled and device == TPU else attention
        result = called(*operands)
        gradients = torch.autograd.grad(result.square().sum(), operands)
        results.append([x.detach().cpu() for x in (result, *gradients)])
    torch.testing.assert_close(results[1], results[0], rtol=PRODUCTS, atol=PRODUCTS)


@pytest.mark.parametrize(
    "function",
    [
        torch.linalg.cholesky,
        torch.linalg.det,
        torch.linalg.inv,
        lambda x: torch.linalg.lu_factor(x)[0],
        torch.linalg.pinv,
        lambda x: torch.linalg.slogdet(x)[1],
        lambda x: torch.linalg.solve(x, x[:, :2] + 1),
    ],
)
def test_factorizations(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.randn(5, 5, generator=torch.Generator().manual_seed(0))
    x = x @ x.T + torch.eye(5)
    results = []
    for device in ("cpu", TPU):
        leaf = x.to(device).requires_grad_()
        result = function(leaf)
        (gradient,) = torch.autograd.grad(result.sum(), leaf)
        results.append([result.detach().cpu(), gradient.cpu()])
    torch.testing.assert_close(results[1], results[0])


def test_the_pseudoinverse_of_a_singular_matrix() -> None:
    """Rounding leaves singular values of 1e-7, which count as zeros; 4e-5 would not."""
    a, b = torch.randn(2, 2, 50, 1, generator=torch.Generator().manual_seed(0))
    x = a @ b.mT
    torch.testing.assert_close(torch.linalg.pinv(x.to(TPU)).cpu(), torch.linalg.pinv(x))


@pytest.mark.parametrize(
    ("function", "operator"),
    [(torch.linalg.cholesky, "linalg_cholesky_ex"), (torch.linalg.svdvals, "_linalg_svd")],
)
def test_a_factorization_in_a_compiled_function_says_what_to_do(
    function: Callable[[torch.Tensor], torch.Tensor], operator: str
) -> None:
    with pytest.raises(Exception, match=rf"{operator} is computed on the CPU.*outside"):
        torch.compile(function)(torch.eye(3, device=TPU))


@pytest.mark.parametrize("function", [torch.cumsum, torch.cumprod, torch.logcumsumexp])
def test_scans(function: Callable[[torch.Tensor, int], torch.Tensor]) -> None:
    x = torch.linspace(-1, 2, 12).view(3, 4)
    torch.testing.assert_close(function(x.to(TPU), 1).cpu(), function(x, 1))
    if function is torch.cumsum:
        torch.testing.assert_close(x.to(TPU).cumsum_(0).cpu(), x.cumsum(0))


@pytest.mark.parametrize("function", [torch.amax, torch.amin, torch.argmax, torch.argmin])
def test_nan_in_minima_and_maxima(function: Callable[[torch.Tensor, int], torch.Tensor]) -> None:
    x = torch.tensor([[math.nan, 1, 2], [1, math.nan, 3], [4, 5, 6]])
    torch.testing.assert_close(function(x.to(TPU), 1).cpu(), function(x, 1), equal_nan=True)


def test_index_reduce() -> None:
    x, index, source = torch.zeros(3, 4), torch.tensor([2, 0]), torch.arange(8.0).view(2, 4)
    result = x.to(TPU).index_reduce(0, index.to(TPU), source.to(TPU), "amax")
    torch.testing.assert_close(result.cpu(), x.index_reduce(0, index, source, "amax"))


def test_an_operator_that_torch_tpu_lacks_is_computed_on_the_cpu() -> None:
    x = torch.linspace(-2, 2, 12).view(3, 4)
    leaves = [x.clone().requires_grad_(), x.to(TPU).requires_grad_()]
    for leaf in leaves:
        torch.erfc(leaf).sum().backward()
    torch.testing.assert_close(leaves[1].grad.cpu(), leaves[0].grad)
    out = torch.empty(0, device=TPU)
    assert torch.hypot(x.to(TPU), x.to(TPU), out=out) is out
    torch.testing.assert_close(out.cpu(), torch.hypot(x, x))
    values, indices = torch.kthvalue(x.to(TPU), 2)
    torch.testing.assert_close((values.cpu(), indices.cpu()), tuple(torch.kthvalue(x, 2)))
    assert torch.ones(1000, device=TPU).geometric_(0.5).max().item() > 1
    with pytest.raises(Exception, match=r"aten::erfc.* is computed on the CPU"):
        torch.compile(torch.erfc)(x.to(TPU))


def test_a_product_of_vectors_of_two_sizes() -> None:
    a = torch.arange(3.0, device=TPU)
    assert torch.dot(a, a).item() == 5
    with pytest.raises(RuntimeError, match=r"expected tensor \[3\] and src \[4\]"):
        torch.dot(a, torch.ones(4, device=TPU))


def test_too_large_a_tensor_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="out of memory"):
        torch.ones(10**13, device=TPU).sum().item()
    assert torch.ones(3, device=TPU).sum().item() == 3


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_xla_gpu_versions, "TORCH_TPU", "0.1.9")
    with pytest.raises(ImportError, match=r"needs torch-tpu 0\.1\.9, but .* has 0\.2\.0: pip inst"):
        torch_xla_gpu_versions.check()


@pytest.mark.parametrize("version", ["2.10.1", "2.15.1", "2.16.0", "2.12.0a0"])
def test_versions_of_pytorch(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"torch-tpu": torch_xla_gpu_versions.TORCH_TPU}
    monkeypatch.setattr(torch_xla_gpu_versions, "installed", lambda name: versions.get(name))
    for accepted in ("2.11.0", "2.13.1", "2.15.0"):
        versions["torch"] = accepted
        torch_xla_gpu_versions.check()
    versions["torch"] = version
    with pytest.raises(ImportError, match=rf"needs torch 2\.11\.0 to 2\.15\.0, but .* {version}: "):
        torch_xla_gpu_versions.check()


def _import(**environment: str) -> str:
    """The last line of what an import prints, in a process that ends by itself."""
    code = f"import os; os.environ.update({environment!r}); import torch; import torch_xla_gpu"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120
    )
    assert result.returncode in (0, 1), result.stderr
    return (result.stderr.splitlines() or [""])[-1]


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"PJRT_DEVICE": "TPU"}, "PJRT_DEVICE must be CPU or CUDA, but is 'TPU'"),
        (
            {"PJRT_DEVICE": "CPU", "TORCH_XLA_EXT_PJRT_PLUGIN": "/nowhere.so"},
            "the PJRT plugin /nowhere.so cannot be loaded",
        ),
        (
            {"PJRT_DEVICE": "CPU", "TORCH_XLA_EXT_PJRT_PLUGIN": torch_xla_gpu.__file__},
            "cannot be loaded",
        ),
    ],
)
def test_a_device_that_is_not_there_is_an_exception(
    environment: dict[str, str], message: str
) -> None:
    assert message in _import(**environment)


def test_doctor() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "torch_xla_gpu_doctor"], capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stdout
    assert result.stdout.splitlines()[-1] == "all works"
