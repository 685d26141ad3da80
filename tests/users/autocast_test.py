"""torch.autocast: operators compute in the dtypes that they have on CUDA."""

from collections.abc import Callable

import pytest
import torch
import torch_xla
from testing.xla import PLATFORM
from torch.nn import functional
from torch_xla.amp import autocast

BF16, F32 = torch.bfloat16, torch.float32
XLA = torch.device("xla")
IMAGES = torch.linspace(-1, 1, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8)
WEIGHTS = torch.linspace(-1, 1, 4 * 3 * 3 * 3).reshape(4, 3, 3, 3)

# An operator, and the dtypes of its result for float32 and for bfloat16, from PyTorch's list of
# operators that autocast to 16 bits and to float32 on CUDA.
OPERATORS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], torch.dtype, torch.dtype]] = {
    "matmul": (lambda x: x @ x, BF16, BF16),
    "linear": (lambda x: functional.linear(x, x[0, 0]), BF16, BF16),
    "conv2d": (lambda x: functional.conv2d(x, WEIGHTS.to(x.device)), BF16, BF16),
    "attention": (lambda x: functional.scaled_dot_product_attention(x, x, x), BF16, BF16),
    "softmax": (lambda x: x.softmax(-1), F32, F32),
    "layer_norm": (lambda x: functional.layer_norm(x, (8,)), F32, F32),
    "sum": (lambda x: x.sum(), F32, F32),
    "exp": (torch.exp, F32, F32),
    "mse_loss": (lambda x: functional.mse_loss(x, x * 2), F32, F32),
    "add": (lambda x: x + 1, F32, BF16),
    "relu": (functional.relu, F32, BF16),
    "max_pool2d": (lambda x: functional.max_pool2d(x, 2), F32, BF16),
}


def compiled(function: Callable) -> Callable:
    return torch.compile(function, backend="openxla")


@pytest.mark.parametrize(
    "transform", [lambda function: function, compiled], ids=["lazy", "compiled"]
)
@pytest.mark.parametrize("name", OPERATORS)
def test_operators_have_cudas_dtypes(name: str, transform: Callable) -> None:
    operator, *expected = OPERATORS[name]

    def step(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("xla", dtype=BF16):
            return operator(x)

    for dtype, result_dtype in zip((F32, BF16), expected, strict=True):
        result = transform(step)(IMAGES.to(XLA, dtype))
        assert result.dtype == result_dtype
        reference = operator(IMAGES.to(dtype).float())
        assert torch.allclose(result.cpu().float(), reference, rtol=0.03, atol=0.03)


def test_training_keeps_weights_in_float32() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 1))
    inputs = torch.randn(32, 8)

    def losses(model: torch.nn.Module, x: torch.Tensor, device: str) -> list[float]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        found = []
        for _ in range(5):
            with torch.autocast(device, dtype=BF16):
                loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            torch_xla.sync()
            found.append(loss.item())
        assert {p.dtype for p in model.parameters()} == {F32}
        return found

    before = {name: value.clone() for name, value in model.state_dict().items()}
    reference = losses(model, inputs, "cpu")
    model.load_state_dict(before)
    assert losses(model.to("xla"), inputs.to("xla"), "xla") == pytest.approx(reference, rel=0.03)


class TestOnAGpu:
    """On a GPU, tensors read one of PyTorch's two switches, and torch.compile reads the other."""

    @pytest.fixture(autouse=True)
    def gpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        torch_xla.sync()  # with the client of the CPU
        monkeypatch.setenv("PJRT_DEVICE", "CUDA")

    @staticmethod
    def switches() -> list[object]:
        return [
            (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
            for device in ("cuda", "xla")
        ]

    @pytest.mark.parametrize("device", ["cuda", "xla"])
    @pytest.mark.parametrize("dtype", [BF16, torch.float16])
    def test_both_switches(self, device: str, dtype: torch.dtype) -> None:
        before = self.switches()
        with torch.autocast(device, dtype=dtype):
            assert self.switches() == [(True, dtype)] * 2
            with torch.autocast(device, enabled=False):
                assert [enabled for enabled, _ in self.switches()] == [False, False]
            assert self.switches() == [(True, dtype)] * 2
        assert self.switches() == before

    def test_compiled(self) -> None:
        def step(x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cuda", dtype=BF16):
                return x @ x

        assert compiled(step)(torch.ones(3, 3, device="xla")).dtype == BF16

    def test_torch_xlas_class(self) -> None:
        with autocast(XLA):
            assert self.switches() == [(True, torch.float16)] * 2


# https://github.com/pytorch/xla/issues/6511
@pytest.mark.parametrize("device", ["xla", XLA])
@pytest.mark.parametrize("dtype", [None, BF16])
def test_torch_xlas_class_in_compiled_functions(
    device: torch.device | str, dtype: torch.dtype | None
) -> None:
    @torch.compile(backend="openxla", fullgraph=True)
    def step(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with autocast(device, dtype=dtype):
            return x @ x, x * 5

    product, scaled = step(torch.ones(3, 3, device="xla"))
    is_half = dtype is None and PLATFORM == "CUDA"
    assert product.dtype == (torch.float16 if is_half else BF16) and scaled.dtype == F32


def test_torch_xlas_class() -> None:
    x = torch.ones(3, 3, device="xla")
    with autocast(torch_xla.device()):  # torch_xla's defaults
        assert (x @ x).dtype == (torch.float16 if PLATFORM == "CUDA" else BF16)
    with autocast("xla", enabled=False):
        assert (x @ x).dtype == F32
    with pytest.raises(ValueError, match="expected an XLA device but got cpu"):
        autocast("cpu")
