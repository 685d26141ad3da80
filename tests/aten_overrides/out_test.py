"""`out=` gets the values that PyTorch writes, and refuses the dtypes that PyTorch refuses."""

import warnings
from collections.abc import Callable

import pytest
import torch
import torch_xla  # noqa: F401

from aten_overrides import optimized  # noqa: F401

Call = Callable[..., object]

SQUARE = torch.tensor([[4.0, 1.0, float("nan")], [1.0, 3.0, 0.5], [0.0, 0.5, 2.0]])
EVEN = SQUARE.nan_to_num(1.0)
WRITES: dict[str, tuple[Call, torch.Tensor]] = {
    "amax": (lambda x, out: torch.amax(x, 0, out=out), EVEN),
    "argmax": (lambda x, out: torch.argmax(x, 0, out=out), EVEN),
    "any": (lambda x, out: torch.any(x, out=out), EVEN),
    "complex": (lambda x, out: torch.complex(x, x, out=out), EVEN),
    "cummax": (lambda x, out: torch.cummax(x, 0, out=out), EVEN),
    "diag": (lambda x, out: torch.diag(x, out=out), EVEN),
    "expand_copy": (lambda x, out: torch.expand_copy(x, (2, 3, 3), out=out), EVEN),
    "isin": (lambda x, out: torch.isin(x, x[0], out=out), EVEN),
    "kthvalue": (lambda x, out: torch.kthvalue(x, 2, out=out), EVEN),
    "linalg.eigvals": (lambda x, out: torch.linalg.eigvals(x, out=out), torch.eye(3)),
    "linalg.lu_factor": (lambda x, out: torch.linalg.lu_factor(x, out=out), EVEN),
    "linalg.matrix_rank": (lambda x, out: torch.linalg.matrix_rank(x, out=out), EVEN),
    "linalg.pinv": (lambda x, out: torch.linalg.pinv(x, out=out), EVEN),
    "linalg.solve": (lambda x, out: torch.linalg.solve(x, x[0], out=out), EVEN),
    "logcumsumexp": (lambda x, out: torch.logcumsumexp(x, 0, out=out), EVEN),
    "masked_select": (lambda x, out: torch.masked_select(x, x > 1, out=out), EVEN),
    "mode": (lambda x, out: torch.mode(x, out=out), EVEN),
    "nanmean": (lambda x, out: torch.nanmean(x, 1, out=out), SQUARE),
    "nonzero": (lambda x, out: torch.nonzero(x, out=out), EVEN),
    "scatter_reduce": (
        lambda x, out: torch.scatter_reduce(x, 0, x.long() % 2, x, "sum", out=out),
        EVEN,
    ),
    "sigmoid": (lambda x, out: torch.sigmoid(x, out=out), EVEN.long()),
    "softmax": (lambda x, out: torch.softmax(x, 0, out=out), EVEN),
    "sort": (lambda x, out: torch.sort(x, stable=True, out=out), SQUARE),
    "tril": (lambda x, out: torch.tril(x, out=out), EVEN),
    "where": (lambda x, out: torch.where(x > 1, x, x + 1, out=out), EVEN),
}


def _results(call: Call, x: torch.Tensor, outs: list[torch.Tensor]) -> list[torch.Tensor]:
    result = call(x, outs[0] if len(outs) == 1 else tuple(outs))
    results = [result] if isinstance(result, torch.Tensor) else list(result)
    assert all(result is out for result, out in zip(results, outs, strict=True))
    return [out.cpu() for out in outs]


def _outs(name: str) -> list[torch.Tensor]:
    call, x = WRITES[name]
    for dtypes in (
        [torch.float32],
        [torch.int64],
        [torch.bool],
        [torch.complex64],
        [torch.float32, torch.int64],
        [torch.float32, torch.int32],
    ):
        outs = [torch.empty(0, dtype=dtype) for dtype in dtypes]
        try:
            _results(call, x, outs)
        except (RuntimeError, TypeError):
            continue
        return outs
    raise AssertionError(name)


@pytest.mark.parametrize("name", WRITES)
def test_out(name: str) -> None:
    call, x = WRITES[name]
    wanted = _outs(name)
    for outs in ([out.new_empty(0) for out in wanted], wanted):
        got = _results(call, x.to("xla"), [torch.zeros_like(out, device="xla") for out in outs])
        torch.testing.assert_close(got, wanted, equal_nan=True)
    for i in range(len(wanted)):
        for dtype in (torch.float32, torch.float64, torch.int64, torch.bool):
            outs = [out.to(dtype) if i == j else out.clone() for j, out in enumerate(wanted)]
            try:
                _results(call, x, outs)
            except (RuntimeError, NotImplementedError):
                with pytest.raises(RuntimeError, match=r"dtype|cast|type"):
                    _results(call, x.to("xla"), [out.to("xla") for out in outs])


@pytest.mark.parametrize("name", ["add", "mm", "amax"])
def test_a_resized_tensor_is_warned_of(name: str) -> None:
    calls: dict[str, Call] = {
        "add": lambda x, out: torch.add(x, x, out=out),
        "mm": lambda x, out: torch.mm(x, x, out=out),
        "amax": lambda x, out: torch.amax(x, 0, out=out),
    }
    for device in ("cpu", "xla"):
        x = EVEN.to(device)
        with pytest.warns(UserWarning, match="with one or more elements was resized since it had"):
            out = calls[name](x, torch.ones(2, 3, 2, device=device))
        assert torch.equal(out.cpu(), calls[name](EVEN, torch.empty(0)))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            calls[name](x, torch.empty(0, device=device))
            calls[name](x, torch.empty_like(out))


def test_out_of_an_operator_that_also_writes_to_operands() -> None:
    """PyTorch's functionalization exchanges `out` and the written operands."""
    found = []
    for device in ("cpu", "xla"):
        x = torch.arange(12.0, device=device).view(2, 3, 2)
        stats = [torch.ones(3, device=device), torch.full((3,), 2.0, device=device)]
        outs = [torch.empty_like(x), torch.empty(3, device=device), torch.empty(3, device=device)]
        torch.ops.aten._native_batch_norm_legit.out(
            x, None, None, *stats, True, 0.1, 1e-5, out=outs[0], save_mean=outs[1],
            save_invstd=outs[2],
        )  # fmt: skip
        found.append([tensor.cpu() for tensor in (*outs, *stats)])
    torch.testing.assert_close(*found)


COMPILED: dict[str, Call] = {
    "add": lambda x, out: torch.add(x, 1, out=out),
    "to a view": lambda x, out: torch.mul(x[:2], 2, out=out[1:]),
    "amax": lambda x, out: torch.amax(x, 0, keepdim=True, out=out[:1]),
    "where": lambda x, out: torch.where(x > 1, x, x + 1, out=out),
    "sum": lambda x, out: torch.sum(x.long(), 0, keepdim=True, out=out[:1]),
}


@pytest.mark.parametrize("device, backend", [("cpu", "aot_eager"), ("xla", "openxla")])
@pytest.mark.parametrize("name", COMPILED)
def test_compiled(name: str, device: str, backend: str) -> None:
    def step(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        COMPILED[name](x, out)
        return out * 2

    torch._dynamo.reset()
    wanted = torch.zeros(3, 3)
    result = step(EVEN, wanted)
    out = torch.zeros(3, 3).to(device)
    compiled = torch.compile(step, backend=backend)(EVEN.to(device), out)
    torch.testing.assert_close([compiled.cpu(), out.cpu()], [result, wanted])
