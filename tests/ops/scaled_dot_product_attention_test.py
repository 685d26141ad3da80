"""F.scaled_dot_product_attention on XLA:GPU: which calls use cuDNN, and their numbers.

On the CPU, which has no cuDNN, torch's operators replace its calls.
"""

import re
from collections.abc import Callable

import pytest
import torch
import torch_xla
from testing import cudnn
from testing.xla import custom_call_lines
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from torch_xla_ext.attention import scaled_dot_product

TARGETS = [
    f"__cudnn$fmha{kind}Softmax{direction}"
    for kind in ("", "ScaleBias")
    for direction in ("", "Backward")
]
BATCH, HEADS, QUERIES, KEYS, HEAD_DIM = 2, 4, 16, 24, 32
INFINITY = float("inf")


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    scaled_dot_product.install()


@pytest.fixture(autouse=True)
def cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_xla.runtime, "device_type", lambda: "CUDA")


def inputs(
    queries: int = QUERIES,
    keys: int = KEYS,
    kv_heads: int = HEADS,
    dtype: torch.dtype = torch.bfloat16,
    head_dim: int = HEAD_DIM,
) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [
        (BATCH, HEADS, queries, head_dim),
        (BATCH, kv_heads, keys, head_dim),
        (BATCH, kv_heads, keys, head_dim),
    ]
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def mask(*shape: int) -> torch.Tensor:
    """A random mask that shows about half of the keys; the first query sees none."""
    seen = torch.rand(shape, generator=torch.Generator().manual_seed(1)) > 0.5
    if len(shape) > 1:
        seen[..., 0, :] = False
    return seen


def additive(seen: torch.Tensor) -> torch.Tensor:
    """An additive mask: random numbers, and -inf for keys that are not seen."""
    numbers = torch.randn(seen.shape, generator=torch.Generator().manual_seed(2))
    return numbers.masked_fill(~seen, -INFINITY)


FUSED: dict[str, tuple[dict, dict]] = {
    "plain": ({}, {}),
    "causal": ({}, {"is_causal": True}),
    "causal, more queries": ({"queries": 32, "keys": 16}, {"is_causal": True}),
    "scale": ({}, {"scale": 0.3}),
    "groups": ({"kv_heads": 2}, {"enable_gqa": True, "is_causal": True}),
    "one head of keys": ({"kv_heads": 1}, {"enable_gqa": True}),
    "float16": ({"dtype": torch.float16}, {"is_causal": True}),
    "mask of all": ({}, {"attn_mask": mask(BATCH, HEADS, QUERIES, KEYS)}),
    "mask of heads": ({}, {"attn_mask": mask(HEADS, QUERIES, KEYS)}),
    "mask of a batch": ({}, {"attn_mask": mask(BATCH, 1, QUERIES, KEYS)}),
    "mask of padding": ({}, {"attn_mask": mask(BATCH, 1, 1, KEYS)}),
    "mask of queries": ({}, {"attn_mask": mask(QUERIES, 1)}),
    "additive": ({}, {"attn_mask": additive(mask(QUERIES, KEYS)).bfloat16()}),
    "additive, groups": (
        {"kv_heads": 2},
        {"attn_mask": additive(mask(BATCH, 1, QUERIES, KEYS)).bfloat16(), "enable_gqa": True},
    ),
}
COMPOSED: dict[str, tuple[dict, dict]] = {
    "float32": ({"dtype": torch.float32}, {}),
    "one query": ({"queries": 1}, {}),
    "head_dim of 20": ({"head_dim": 20}, {}),
    "odd lengths with a mask": ({"queries": 15}, {"attn_mask": mask(15, KEYS)}),
}


def run(
    tensors: list[torch.Tensor], options: dict, device: str, way: Callable = lambda f: f
) -> list[torch.Tensor]:
    """Returns the result and the gradients of the three inputs."""
    leaves = [tensor.to(device).detach().requires_grad_() for tensor in tensors]
    options = {
        name: value.to(device) if isinstance(value, torch.Tensor) else value
        for name, value in options.items()
    }
    result = way(functional.scaled_dot_product_attention)(*leaves, **options)
    weights = torch.linspace(-1, 1, result.shape[-1]).to(device, result.dtype)
    grads = torch.autograd.grad((result * weights).sum(), leaves)
    return [tensor.detach().cpu() for tensor in (result, *grads)]


def compiled(function: Callable) -> Callable:
    torch._dynamo.reset()
    return torch.compile(lambda *args, **kwargs: function(*args, **kwargs), backend="openxla")


def expected(tensors: list[torch.Tensor], options: dict) -> list[torch.Tensor]:
    """PyTorch's results and gradients in float64."""
    options = dict(options)
    given = options.get("attn_mask")
    if given is not None and given.dtype != torch.bool:
        options["attn_mask"] = given.double()
    return run([tensor.double() for tensor in tensors], options, "cpu")


def assert_close(actual: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    for got, want in zip(actual, wanted, strict=True):
        assert got.shape == want.shape
        error = (got.double() - want).abs().max()
        assert error <= 2e-2 * want.abs().max(), error


@pytest.mark.parametrize("name", FUSED)
def test_fused(name: str) -> None:
    shape, options = FUSED[name]
    tensors = inputs(**shape)
    with cudnn.computing(TARGETS):
        assert_close(run(tensors, options, "xla"), expected(tensors, options))


@pytest.mark.parametrize("name", FUSED)
def test_one_call_forward(name: str) -> None:
    shape, options = FUSED[name]
    options = {k: v.to("xla") if isinstance(v, torch.Tensor) else v for k, v in options.items()}
    tensors = [tensor.to("xla") for tensor in inputs(**shape)]
    (line,) = custom_call_lines(functional.scaled_dot_product_attention(*tensors, **options))
    assert TARGETS[2 if "attn_mask" in options else 0] in line


@pytest.mark.parametrize("name", COMPOSED)
def test_composed(name: str) -> None:
    shape, options = COMPOSED[name]
    tensors = inputs(**shape)
    assert_close(run(tensors, options, "xla"), expected(tensors, options))


ONE_QUERY: dict[str, tuple[dict, dict]] = {
    "plain": ({}, {}),
    "scale": ({}, {"scale": 0.3}),
    "groups": ({"kv_heads": 2}, {"enable_gqa": True}),
    "one head of keys": ({"kv_heads": 1}, {"enable_gqa": True}),
    "float16": ({"dtype": torch.float16, "kv_heads": 2}, {"enable_gqa": True}),
    "head_dim of 20": ({"head_dim": 20}, {}),
    "mask of padding": (
        {"kv_heads": 2},
        {"enable_gqa": True, "attn_mask": mask(BATCH, 1, 1, KEYS)},
    ),
    "mask of heads": ({"kv_heads": 2}, {"enable_gqa": True, "attn_mask": mask(1, HEADS, 1, KEYS)}),
    "no key": ({}, {"attn_mask": torch.zeros(1, 1, 1, KEYS, dtype=torch.bool)}),
    "additive": (
        {"kv_heads": 2},
        {"enable_gqa": True, "attn_mask": additive(mask(BATCH, HEADS, 1, KEYS))},
    ),
    "causal": ({}, {"is_causal": True}),
}


@pytest.mark.parametrize("name", ONE_QUERY)
@pytest.mark.parametrize("way", [lambda f: f, compiled], ids=["lazy", "compiled"])
def test_one_query_has_no_copies_of_the_keys(name: str, way: Callable) -> None:
    shape, options = ONE_QUERY[name]
    tensors = inputs(queries=1, **shape)
    with torch.no_grad():
        wanted = functional.scaled_dot_product_attention(
            *(tensor.double() for tensor in tensors),
            **{
                k: v.double() if k == "attn_mask" and v.dtype != torch.bool else v
                for k, v in options.items()
            },
        )
        moved = {k: v.to("xla") if isinstance(v, torch.Tensor) else v for k, v in options.items()}
        result = way(functional.scaled_dot_product_attention)(
            *(tensor.to("xla") for tensor in tensors), **moved
        )
        text = torch_xla._XLAC._get_xla_tensors_hlo([result])
    assert_close([result.cpu()], [wanted])
    if way is not compiled and not options.get("is_causal"):
        assert len(re.findall(r" f32\[[\d,]*\]\{[\d,]*\} dot\(", text)) == 2
        head_dim = tensors[0].shape[3]
        assert not re.search(rf" f32\[[\d,]*{KEYS},{head_dim}\]", text)


def test_backends_are_obeyed() -> None:
    tensors = [tensor.to("xla") for tensor in inputs()]
    with sdpa_kernel(SDPBackend.MATH):
        assert custom_call_lines(functional.scaled_dot_product_attention(*tensors)) == []


def test_dropout_is_composed() -> None:
    ones = torch.ones(1, 1, 64, 64, dtype=torch.bfloat16, device="xla")
    result = functional.scaled_dot_product_attention(ones, ones, ones, dropout_p=0.25)
    assert custom_call_lines(result) == []
    assert abs(result.float().mean().item() - 1) < 0.05


def test_a_mask_with_a_gradient_is_composed() -> None:
    tensors = [tensor.to("xla") for tensor in inputs()]
    bias = torch.zeros(QUERIES, KEYS, dtype=torch.bfloat16, device="xla", requires_grad=True)
    functional.scaled_dot_product_attention(*tensors, attn_mask=bias).sum().backward()
    assert bias.grad.shape == bias.shape


def test_without_a_batch() -> None:
    tensors = [tensor[0] for tensor in inputs()]
    options = {"attn_mask": mask(HEADS, QUERIES, KEYS)}
    with cudnn.computing(TARGETS):
        assert_close(run(tensors, options, "xla"), expected(tensors, options))


def test_wrong_calls_raise_pytorchs_errors() -> None:
    q, k, v = (tensor.to("xla") for tensor in inputs(kv_heads=2))
    with pytest.raises(RuntimeError):
        functional.scaled_dot_product_attention(q, k, v)
    seen = torch.ones(QUERIES, KEYS, dtype=torch.bool, device="xla")
    with pytest.raises(RuntimeError, match="is_causal"):
        functional.scaled_dot_product_attention(q, k, v, seen, is_causal=True, enable_gqa=True)


@pytest.mark.parametrize("name", FUSED)
def test_compiled(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shape, options = FUSED[name]
    tensors = inputs(**shape)
    fused, upstream = [], scaled_dot_product._fused

    def _fused(*args: object) -> torch.Tensor:
        fused.append(args)
        return upstream(*args)

    monkeypatch.setattr(scaled_dot_product, "_fused", _fused)

    with cudnn.computing(TARGETS):
        assert_close(run(tensors, options, "xla", compiled), expected(tensors, options))
    assert fused


def test_checkpointed() -> None:
    from torch.utils.checkpoint import checkpoint

    tensors = inputs()

    def way(function: Callable) -> Callable:
        return lambda *args, **kwargs: checkpoint(function, *args, use_reentrant=False, **kwargs)

    with cudnn.computing(TARGETS):
        assert_close(
            run(tensors, {"is_causal": True}, "xla", way), expected(tensors, {"is_causal": True})
        )
