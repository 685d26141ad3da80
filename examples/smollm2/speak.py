"""Answer questions in four ways on the XLA device, all with the tokens of PyTorch on the CPU."""

import time
from collections.abc import Callable

import model as smollm2
import torch
import torch_xla
from transformers import PreTrainedModel, StaticCache

import torch_xla_ext

Inputs = dict[str, torch.Tensor]  # the result of smollm2.chat
Step = Callable[..., torch.Tensor]


def with_generate(model: PreTrainedModel, inputs: Inputs, count: int) -> torch.Tensor:
    """Run transformers' generate on the model's device.

    Returns:
        The new tokens, [sequences, count], ignoring the end of a text.
    """
    inputs = {name: tensor.to(model.device) for name, tensor in inputs.items()}
    tokens = model.generate(**inputs, max_new_tokens=count, do_sample=False, eos_token_id=None)
    return tokens[:, -count:].cpu()


def lazily(step: Step) -> Step:
    """Trace each step; its program is compiled once."""

    def run(*arguments: object) -> torch.Tensor:
        token = step(*arguments)
        torch_xla.sync()
        return token

    return run


def captured(step: Step) -> Step:
    """Trace the step once and replay it."""
    return torch_xla_ext.capture(step)


def under_openxla(step: Step) -> Step:
    """Compile the step with torch.compile."""
    return torch.compile(step, backend="openxla")


WAYS = {"lazily": lazily, "captured": captured, "under openxla": under_openxla}


@torch.no_grad()
def with_loop(
    model: PreTrainedModel, inputs: Inputs, count: int, way: Callable[[Step], Step]
) -> torch.Tensor:
    """Return a generation loop with a static cache, whose step runs in a given `way`.

    Returns:
        The new tokens, [sequences, count].
    """
    device = model.device
    sequences, length = inputs["input_ids"].shape
    room = length + count
    cache = StaticCache(
        config=model.config,
        max_batch_size=sequences,
        max_cache_len=room,
        device=device,
        dtype=model.dtype,
    )
    # The causal mask includes the tokens after the prompt as soon as they are in the cache.
    mask = torch.nn.functional.pad(inputs["attention_mask"], (0, count), value=1).to(device)
    padding = (1 - inputs["attention_mask"]).sum(1, keepdim=True).to(device)

    def step(tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the most likely token after `tokens`, [sequences, 1]."""
        logits = model(
            tokens,
            attention_mask=mask,
            position_ids=(positions - padding).clamp(min=0),
            cache_position=positions,
            past_key_values=cache,
            logits_to_keep=1,
        ).logits
        return logits[:, -1].argmax(-1, keepdim=True)

    tokens = [step(inputs["input_ids"].to(device), torch.arange(length, device=device))]
    torch_xla.sync()
    step = way(step)
    for position in range(length, room - 1):
        tokens.append(step(tokens[-1], torch.tensor([position], device=device)))
    return torch.cat(tokens, dim=1).cpu()


def main() -> None:
    parser = smollm2.parser(__doc__)
    smollm2.add_dtype(parser)
    options = parser.parse_args()
    questions = smollm2.QUESTIONS[: options.questions]
    tokenizer, model = smollm2.read_tokenizer(), smollm2.read_model(options.dtype)
    inputs, count = smollm2.chat(tokenizer, questions), options.tokens
    expected = with_generate(model, inputs, count) if options.compare else None
    model.to("xla")
    ways = {
        name: lambda way=way: with_loop(model, inputs, count, way) for name, way in WAYS.items()
    }
    for name, way in {"generate": lambda: with_generate(model, inputs, count), **ways}.items():
        start = time.perf_counter()
        tokens = way()
        print(f"{name}: {tokens.numel()} tokens in {time.perf_counter() - start:.1f} s, compiled")
        if expected is not None:
            smollm2.compare(name, tokens, expected)
        if name == "generate":
            smollm2.show(questions, smollm2.answers(tokenizer, tokens))


if __name__ == "__main__":
    main()
