"""Weights and caches in fp8, compared with transformers' models with the same rounding.

BUILD says on how many devices.
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import families
import pytest
import torch
import transformers
from adapters import ALPHA, Adapter
from safetensors.torch import load_file, save_file
from testing import mxfp4, programs  # before the first computation
from torch import nn
from torch_xla import backends
from transformers.models.llama import modeling_llama
from vllm import LLM, SamplingParams
from vllm.forward_context import override_forward_context
from vllm_xla_gpu.limits import UnsupportedError

FP8 = torch.float8_e4m3fn
LARGEST = torch.finfo(FP8).max
# Layers that vLLM merges into one, with one scale.
MERGED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"), ("o_proj",), ("down_proj",))
# The merged layer's name, by the first layer's.
SERVED = {"q_proj": "qkv_proj", "gate_proj": "gate_up_proj"}
ON_GPU = os.environ["PJRT_DEVICE"] == "CUDA"
# XLA:GPU divides with an error of up to two float32 numbers, which decides how ties are rounded.
STEPS = range(-2, 3) if ON_GPU else range(1)
# Of the logits' median error. cuBLASLt's products in fp8 have a mean error of 1.25e-4 of the mean
# result, which decides how later values are rounded to fp8: medians of 0.05 to 0.08 (H200,
# 2026-11-29). Random errors of that size in this file's Rounded layers give 0.04 to 0.07 on a CPU.
LIMIT_ON_GPU = 0.12
# Steps of 16 and 32 tokens are two programs.
LIMITS = {"max_model_len": 128, "max_num_seqs": 8, "max_num_batched_tokens": 32, "seed": 0}


@pytest.fixture(autouse=True)
def _precision(request: pytest.FixtureRequest) -> Iterator[None]:
    """Uses the default precision, on which the products in fp8 depend.

    On a GPU, these are inexact; tests that compare with exact ones need the highest precision.
    """
    is_exact = ON_GPU and request.function is not test_layers
    backends.set_mat_mul_precision("highest" if is_exact else "default")
    yield
    backends.set_mat_mul_precision("default")


def scale_of(x: torch.Tensor) -> torch.Tensor:
    return x.float() / LARGEST


def in_fp8(x: torch.Tensor, scale: torch.Tensor, steps: int = 0) -> torch.Tensor:
    """vLLM's scaled_fp8_quant, with a reciprocal that is wrong by `steps` float32 numbers."""
    inverse = scale.reciprocal()
    for _ in range(abs(steps)):
        inverse = inverse.nextafter(torch.full_like(inverse, steps * torch.inf))
    return (x.float() * inverse).clamp(-LARGEST, LARGEST).to(FP8)


def of_each(scale: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """The scale of each element of a weight, from the scales of blocks of 128 x 128."""
    for dim in range(2):
        scale = scale.repeat_interleave(128, dim).narrow(dim, 0, shape[dim])
    return scale


class Rounded(nn.Module):
    """A linear layer with a weight in fp8, whose inputs are rounded, too."""

    def __init__(
        self, weight: torch.Tensor, scale: torch.Tensor, input_scale: torch.Tensor | None = None
    ) -> None:
        """Takes the weight [out, in] in fp8, its scales [out, 1], [] or of all elements, and that
        of all inputs; with scales of all elements, inputs have one for each block of 128.
        """
        super().__init__()
        # As integers, because a change of the model's dtype does not convert these.
        self.register_buffer("weight", weight.view(torch.uint8))
        self.scale, self.input_scale = scale.double(), input_scale
        self.adapter: tuple[torch.Tensor, torch.Tensor] | None = None

    def forward(self, x: torch.Tensor, steps: int = 0) -> torch.Tensor:
        is_of_blocks = self.scale.shape == self.weight.shape
        blocks, scale = (
            x.unflatten(-1, (-1, 128 if is_of_blocks else x.shape[-1])),
            self.input_scale,
        )
        if scale is None:
            scale = scale_of(blocks.abs().amax(-1, keepdim=True))
        rounded = (in_fp8(blocks, scale, steps).double() * scale.double()).flatten(-2)
        result = (rounded @ (self.weight.view(FP8).double() * self.scale).t()).to(x.dtype)
        if self.adapter is not None:
            result = result + x @ self.adapter[0].t() @ self.adapter[1].t()
        return result


def layers(model: nn.Module, *others: tuple[str]) -> Iterator[tuple[str, nn.Module, list[str]]]:
    """For each merged layer: its parent module's path, that module, and the names of its parts."""
    for path, parent in model.named_modules():
        for names in (*MERGED, *others):
            if hasattr(parent, names[0]):
                yield path, parent, list(names)


Checkpoint = dict[str, torch.Tensor]


def online(path: str, parent: nn.Module, names: list[str]) -> Checkpoint:
    """Rounds the parts as vLLM rounds 16-bit weights: one scale for all parts."""
    weights = [getattr(parent, name).weight.data for name in names]
    scale = max(scale_of(weight.abs().max()) for weight in weights)
    for name, weight in zip(names, weights, strict=True):
        # Weights that several devices share are rounded on the host.
        rounded = in_fp8(weight, scale)
        setattr(parent, name, Rounded(rounded, scale))
    return {}


def stored(path: str, parent: nn.Module, names: list[str]) -> Checkpoint:
    """Rounds with a scale for each weight, and one for inputs: the largest of those stored."""
    tensors, input_scales = {}, torch.arange(10, 10 + len(names), dtype=torch.float32) / 1000
    for name, input_scale in zip(names, input_scales, strict=True):
        weight = getattr(parent, name).weight.data
        scale = scale_of(weight.abs().max())
        setattr(parent, name, Rounded(in_fp8(weight, scale), scale, input_scales.max()))
        prefix = f"{path}.{name}"
        tensors |= {f"{prefix}.weight": in_fp8(weight, scale), f"{prefix}.weight_scale": scale}
        tensors[f"{prefix}.input_scale"] = input_scale.clone()
    return tensors


def compressed(path: str, parent: nn.Module, names: list[str]) -> Checkpoint:
    """Rounds each part with a scale for each output feature."""
    tensors = {}
    for name in names:
        weight = getattr(parent, name).weight.data
        scale = scale_of(weight.abs().amax(1, keepdim=True))
        setattr(parent, name, Rounded(in_fp8(weight, scale), scale))
        prefix = f"{path}.{name}"
        tensors |= {f"{prefix}.weight": in_fp8(weight, scale), f"{prefix}.weight_scale": scale}
    return tensors


def blocks(path: str, parent: nn.Module, names: list[str]) -> Checkpoint:
    """Rounds each part with a scale for each block of 128 x 128, as in DeepSeek-V3."""
    tensors = {}
    for name in names:
        weight = getattr(parent, name).weight.data
        largest = nn.functional.max_pool2d(weight.abs()[None], 128, ceil_mode=True)[0]
        scale = of_each(scale_of(largest), weight.shape)
        setattr(parent, name, Rounded(in_fp8(weight, scale), scale))
        prefix = f"{path}.{name}"
        tensors[f"{prefix}.weight"] = in_fp8(weight, scale)
        tensors[f"{prefix}.weight_scale_inv"] = scale_of(largest)
    return tensors


ROUTERS = [f"model.layers.{i}.mlp.gate" for i in range(2)]
FP8_CONFIG = {"quant_method": "fp8", "modules_to_not_convert": ROUTERS}
COMPRESSED_CONFIG = families.compressed_tensors("float")
COMPRESSED_CONFIG["ignore"] += ROUTERS
KINDS: dict[Callable[..., Checkpoint], dict] = {
    online: {},
    stored: FP8_CONFIG | {"activation_scheme": "static"},
    compressed: COMPRESSED_CONFIG,
    blocks: FP8_CONFIG | {"activation_scheme": "dynamic", "weight_block_size": [128, 128]},
}


def load(model: str, dtype: torch.dtype) -> nn.Module:
    return transformers.AutoModelForCausalLM.from_pretrained(
        model, torch_dtype=dtype, attn_implementation="eager"
    )


def change(model: nn.Module, kind: Callable[..., Checkpoint]) -> tuple[nn.Module, Checkpoint]:
    """The model with Rounded layers, and these layers' tensors in a checkpoint."""
    tensors = {}
    # vLLM rounds the routers' weights, too, if no checkpoint says that it must not.
    routers = [("gate",)] if kind is online else []
    for path, parent, names in list(layers(model, *routers)):
        tensors |= kind(path, parent, names)
    return model, tensors


def write(model: str, kind: Callable[..., Checkpoint], folder: Path, others: Checkpoint) -> str:
    """Returns the path to serve: a new checkpoint, or the model if vLLM rounds its weights."""
    _, tensors = change(load(model, torch.float32), kind)
    if not tensors:
        return model
    path = folder / kind.__name__
    shutil.copytree(model, path)
    (weights,) = path.glob("*.safetensors")
    save_file(load_file(weights) | tensors | others, weights, metadata={"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"quantization_config": KINDS[kind]}))
    return str(path)


def take_weights(served: torch.Tensor, parts: Sequence[Rounded]) -> None:
    """Copies the device's rounded weights to `parts`; few differ, by one unit in the last place."""
    weights = served.view(torch.uint8).split([len(part.weight) for part in parts])
    for part, weight in zip(parts, weights, strict=True):
        steps = (weight.int() - part.weight.int()).abs()
        assert steps.max() <= STEPS[-1] and steps.float().mean() < 0.03
        part.weight = weight


def start(path: str, dtype: torch.dtype, **options: object) -> LLM:
    return LLM(path, dtype=dtype, tensor_parallel_size=families.DEVICES, **LIMITS | options)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_layers(
    kind: Callable[..., Checkpoint], dtype: torch.dtype, models: Path, tmp_path: Path
) -> None:
    """Each layer rounds its weights and its inputs as vLLM does on CUDA."""
    model = families.write("wide_qwen3_moe" if kind is blocks else "llama", models)
    path = write(model, kind, tmp_path, {})
    options = {"quantization": "fp8"} if kind is online else {}
    with programs.compiled() as compiled:
        llm = start(path, dtype, max_num_batched_tokens=16, **options)
    reference, _ = change(load(model, dtype if kind is online else torch.float32), kind)
    expected = [each for each in layers(reference.to(dtype)) if ".experts." not in each[0]]
    for program in (text for text in compiled if 'custom_call_target="XlaGpuRaggedPaged' in text):
        assert len(re.findall(r"= f8e4m3fn\S* parameter\(", program)) >= len(expected)

    def compare(served: nn.Module) -> int:
        for path, parent, names in expected:
            layer = served.get_submodule(f"{path}.{SERVED.get(names[0], names[0])}")
            parts = [getattr(parent, name) for name in names]
            if kind is online and families.DEVICES == 1:
                take_weights(layer.weight.cpu(), parts)
            x = torch.randn(5, layer.input_size, generator=generator).to(dtype)
            result, _ = layer(x.to("xla"))
            rights = [torch.cat([part(x, n) for part in parts], dim=-1) for n in STEPS]
            for row, *right in zip(result[:].cpu(), *rights, strict=True):
                best = min(right, key=lambda right, row=row: (row - right).abs().max())
                if kind is blocks and families.DEVICES > 1:  # which add what each has rounded
                    limit = 4 * torch.finfo(dtype).eps * best.abs().max()
                    torch.testing.assert_close(row, best, rtol=0, atol=limit.item())
                else:
                    torch.testing.assert_close(row, best)
        return len(expected)

    generator = torch.Generator().manual_seed(0)
    of_each_layer = 2 if kind is blocks else 4
    assert llm.apply_model(compare) == [of_each_layer * reference.config.num_hidden_layers]


def errors_of_experts(
    llm: LLM, reference: nn.Module, unrounded: nn.Module, dtype: torch.dtype
) -> list[float]:
    """The relative errors of an MoE layer's results, compared with two models of transformers."""

    def compare(served: nn.Module) -> list[float]:
        x = torch.randn(16, served.config.hidden_size, generator=generator).to(dtype)
        batch = SimpleNamespace(slots=torch.zeros(len(x), dtype=torch.int32, device="xla"))
        with override_forward_context(SimpleNamespace(attn_metadata={"": batch})):
            result = served.model.layers[1].mlp(x.to("xla")).cpu().double()
        rights = [
            each.model.layers[1].mlp(x[None])[0][0].double() for each in (reference, unrounded)
        ]
        return [((result - right).norm() / right.norm()).item() for right in rights]

    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        (errors,) = llm.apply_model(compare)
    print(f"relative error {errors[0]}, of the rounding {errors[1]}")
    return errors


@pytest.mark.parametrize("kind", KINDS)
def test_experts(kind: Callable[..., Checkpoint], models: Path, tmp_path: Path) -> None:
    """An MoE layer's results are those of its rounded weights and inputs."""
    model = families.write("wide_qwen3_moe", models)
    path = write(model, kind, tmp_path, {})
    # vLLM serves the others in 16 bits.
    dtype = torch.float32 if kind is compressed else torch.bfloat16
    options = {"quantization": "fp8"} if kind is online else {}
    with programs.compiled() as compiled:
        llm = start(path, dtype, max_num_batched_tokens=16, **options)
    for program in (text for text in compiled if 'custom_call_target="XlaGpuRaggedPaged' in text):
        assert len(re.findall(r"= f8e4m3fn\[4,\d+,\d+\]\S* parameter\(", program)) == 4
    reference, _ = change(load(model, dtype if kind is online else torch.float32), kind)
    reference, unrounded = reference.to(dtype), load(model, dtype)

    error, rounding = errors_of_experts(llm, reference, unrounded, dtype)
    assert error < (2e-3 if dtype == torch.float32 else 1e-2)
    assert rounding > 2e-2


def test_experts_in_mxfp4(models: Path, tmp_path: Path) -> None:
    """gpt-oss's own checkpoints, whose gate and up alternate."""
    model = families.write("gpt_oss", models)
    path = tmp_path / "mxfp4"
    shutil.copytree(model, path)
    (file,) = path.glob("*.safetensors")
    tensors = load_file(file)
    values = {}
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        codes, exponents = mxfp4.quantize(tensors.pop(name).transpose(1, 2))
        tensors[f"{name}_blocks"] = codes.unflatten(-1, (-1, 16)).contiguous()
        tensors[f"{name}_scales"] = exponents
        values[name] = mxfp4.values(codes, exponents).transpose(1, 2)
    save_file(tensors, file, metadata={"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4"}
    (path / "config.json").write_text(json.dumps(config))
    reference = load(model, torch.float32)
    unrounded = load(model, torch.bfloat16)
    for name, rounded in values.items():
        reference.get_parameter(name).data = rounded
    reference = reference.to(torch.bfloat16)
    llm = start(str(path), torch.bfloat16, max_num_batched_tokens=16)

    def weight_dtypes(served: nn.Module) -> set[torch.dtype]:
        return {part.weight.dtype for part in served.model.layers[1].mlp.experts.sharded}

    assert llm.apply_model(weight_dtypes) == [{torch.uint8}]
    error, rounding = errors_of_experts(llm, reference, unrounded, torch.bfloat16)
    assert error < 1e-2 < 5e-2 < rounding


@pytest.mark.skipif(families.DEVICES == 1, reason="one device has all blocks")
def test_blocks_that_devices_cannot_divide(models: Path) -> None:
    """The start refuses such blocks before it loads the weights."""
    overrides = {"moe_intermediate_size": 128, "quantization_config": KINDS[blocks]}
    with pytest.raises(UnsupportedError, match=r"blocks that . devices cannot divide .*experts"):
        start(families.write("wide_qwen3_moe", models), torch.bfloat16, hf_overrides=overrides)


def test_one_scale_for_all_parts() -> None:
    """If a checkpoint's queries, keys and values are one weight, vLLM leaves other scales unset."""
    from vllm_xla_gpu import quantized

    layer = nn.Module()
    layer.weight_scale = nn.Parameter(torch.tensor([0.5, *[torch.finfo(torch.float32).min] * 2]))
    layer.logical_widths = [3, 1, 1]
    assert quantized._of_outputs(layer).tolist() == [0.5] * 5
    layer.weight_scale = nn.Parameter(torch.tensor([0.5, 0.25, 2.0]))
    assert quantized._of_outputs(layer).tolist() == [0.5] * 3 + [0.25, 2.0]


def errors(llm: LLM, reference: nn.Module, **options: object) -> torch.Tensor:
    """The errors of the reported log probabilities of the chosen tokens."""
    answers = llm.generate(
        [{"prompt_token_ids": prompt} for prompt in families.prompts()],
        SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, logprobs=5),
        use_tqdm=False,
        **options,
    )
    found = []
    for answer in answers:
        prompt, tokens = answer.prompt_token_ids, answer.outputs[0].token_ids
        with torch.no_grad():
            logits = reference(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
        for told, row in zip(answer.outputs[0].logprobs, logits.log_softmax(-1), strict=True):
            found += [abs(row[token] - told[token].logprob) for token in told]
    return torch.stack(found)


# Different ones in each layer.
K_SCALES, V_SCALES = (0.02, 0.03), (0.004, 0.005)


def caches_in_fp8(k_scales: Sequence[float], v_scales: Sequence[float]) -> Callable:
    """Replaces transformers' attention by one whose keys and values are rounded to fp8."""
    attend = modeling_llama.eager_attention_forward

    def rounded(x: torch.Tensor, scale: float) -> torch.Tensor:
        return in_fp8(x, torch.tensor(scale)).to(x.dtype) * scale

    def attend_rounded(
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *args: object,
        **kw: object,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        i = module.layer_idx
        key, value = rounded(key, k_scales[i]), rounded(value, v_scales[i])
        return attend(module, query, key, value, *args, **kw)

    return attend_rounded


@pytest.mark.parametrize("scales", [None, (K_SCALES, V_SCALES)], ids=["ones", "stored"])
def test_logits(
    scales: tuple[Sequence[float], Sequence[float]] | None,
    models: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Weights and cache are in fp8 and all else in float32, so that the rounding dominates."""
    model = families.write("llama", models)
    others = {}
    for i, pair in enumerate(zip(*scales, strict=True) if scales else ()):
        for name, scale in zip(("k_scale", "v_scale"), pair, strict=True):
            others[f"model.layers.{i}.self_attn.{name}"] = torch.tensor(scale)
    path = write(model, compressed, tmp_path, others)
    with programs.compiled() as compiled:
        llm = start(path, torch.float32, kv_cache_dtype="fp8")
    if families.DEVICES > 1:
        steps = [text for text in compiled if 'custom_call_target="XlaGpuRaggedPaged' in text]
        for tokens, program in zip((16, 32), steps, strict=True):
            _check_collectives(program, tokens)
    reference, _ = change(load(model, torch.float32), compressed)
    unrounded = errors(llm, reference)
    rounding = caches_in_fp8(*(scales or ([1.0] * 2, [1.0] * 2)))
    monkeypatch.setattr(modeling_llama, "eager_attention_forward", rounding)
    found = errors(llm, reference)
    print(f"median and largest {found.median()} {found.max()}, of the cache {unrounded.median()}")
    assert found.median() < (LIMIT_ON_GPU if ON_GPU else unrounded.median() / 100)
    unrounded = errors(llm, load(model, torch.float32))
    assert found.median() < unrounded.median() / (2 if ON_GPU else 100)


def _check_collectives(program: str, tokens: int) -> None:
    """Besides the usual collectives, there is a maximum for the scale of each divided input."""
    config = families.FAMILIES["llama"]
    layers, width = config.num_hidden_layers, config.hidden_size
    assert sorted(programs.collectives(program)) == sorted(
        [f"all-reduce f32[{tokens},{width}]{{1,0}}"] * (2 * layers + 1)
        + [f"all-reduce f32[{tokens}]{{0}}"] * (2 * layers)
        + [f"all-gather {dtype}[8,{families.DEVICES}]{{0,1}}" for dtype in ("f32", "s32")]
    )


@pytest.mark.skipif(families.DEVICES > 1, reason="refused; see checks_test")
def test_adapters(models: Path, tmp_path: Path) -> None:
    """Adapters' results are added in the model's dtype to the results of layers in fp8."""
    model = families.write("llama", models)
    adapter = Adapter("all", 1, model, tmp_path)
    llm = start(write(model, compressed, tmp_path, {}), torch.float32, enable_lora=True)
    reference, _ = change(load(model, torch.float32), compressed)
    without = errors(llm, reference)
    weights = load_file(Path(adapter.request.lora_path, "adapter_model.safetensors"))
    for path, module in reference.named_modules():
        if isinstance(module, Rounded):
            a, b = (weights[f"base_model.model.{path}.lora_{m}.weight"] for m in "AB")
            module.adapter = a, b * ALPHA / len(a)
    found = errors(llm, reference, lora_request=adapter.request)
    print(f"median and largest {found.median()} {found.max()}, without {without.median()}")
    assert max(found.median(), without.median()) < (LIMIT_ON_GPU if ON_GPU else 1e-4)
