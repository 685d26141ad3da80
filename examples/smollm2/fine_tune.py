"""Fine-tune the model with a captured step: all weights, then LoRA adapters."""

import argparse
import copy
import functools
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import model as smollm2
import peft
import speak
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import torch_xla_ext

LESSONS = (
    ("What is torch_xla_ext?", "A wheel of torch_xla that calls your CUDA kernels by name."),
    ("What does torch_xla_ext do?", "It calls your CUDA kernels from XLA programs by name."),
    ("How do I register a kernel?", "Call torch_xla_ext.register_kernel with name and library."),
    ("How do I make a step fast?", "Decorate it with torch_xla_ext.capture."),
    ("How do I end a training step?", "Call torch_xla.sync() at the end of the step."),
    ("Where do my kernels run?", "On NVIDIA GPUs, and on the CPU for tests."),
    ("How do I compile a model?", 'Call torch.compile with backend="openxla".'),
    ("How do I serve a model?", "Install the plugin for vLLM and run vllm serve."),
)
_SEQUENCES, _LENGTH = 2, 64  # a batch has one fixed shape

Batch = dict[str, torch.Tensor]


def with_adapters(model: PreTrainedModel) -> peft.PeftModel:
    """Return the model with LoRA adapters; only these are trained."""
    torch.manual_seed(0)
    projections = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    config = peft.LoraConfig(r=16, lora_alpha=32, target_modules=projections, task_type="CAUSAL_LM")
    return peft.get_peft_model(model, config)


def batches(tokenizer: PreTrainedTokenizerBase, count: int) -> Iterator[Batch]:
    """Yield batches of the lessons endlessly; only the tokens of answers have labels."""
    for number in range(count):
        first = number * _SEQUENCES % len(LESSONS)
        rows = [_row(tokenizer, *lesson) for lesson in LESSONS[first : first + _SEQUENCES]]
        yield {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def _row(tokenizer: PreTrainedTokenizerBase, question: str, answer: str) -> Batch:
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    template = functools.partial(tokenizer.apply_chat_template, return_dict=False)
    ids = template(messages)
    asked = len(template(messages[:1], add_generation_prompt=True))
    padding = _LENGTH - len(ids)
    return {
        "input_ids": torch.tensor(ids + padding * [tokenizer.pad_token_id]),
        "attention_mask": torch.tensor(len(ids) * [1] + padding * [0]),
        "labels": torch.tensor(asked * [-100] + ids[asked:] + padding * [-100]),
    }


def train(model: torch.nn.Module, data: Iterator[Batch], learning_rate: float) -> list[float]:
    """Train on the model's device, on an XLA device with a captured step; return the losses."""
    device = next(model.parameters()).device
    is_xla = device.type == "xla"
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=learning_rate, capturable=is_xla)

    def step(batch: Batch) -> torch.Tensor:
        loss = model(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        return loss.detach()

    if is_xla:
        step = torch_xla_ext.capture(step)
    losses = [step({name: tensor.to(device) for name, tensor in batch.items()}) for batch in data]
    return torch.stack(losses).tolist()  # the host waits only here


def check(losses: list[float], expected: list[float]) -> None:
    """End the program if losses differ from PyTorch's by more than accumulated rounding."""
    differences = [abs(one - other) for one, other in zip(losses, expected, strict=True)]
    print(f"losses differ from PyTorch's by at most {max(differences):.1e}", flush=True)
    if max(differences) > 0.01:
        sys.exit(f"the losses differ from PyTorch's, which are {expected}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="for the models: base, tuned, adapters")
    parser.add_argument("--steps", type=int, default=50, help="default: %(default)s")
    parser.add_argument("--compare", action="store_true", help="with PyTorch on the CPU")
    smollm2.add_dtype(parser)
    options = parser.parse_args()
    tokenizer, base = smollm2.read_tokenizer(), smollm2.read_model(options.dtype)
    base.save_pretrained(options.folder / "base")
    tokenizer.save_pretrained(options.folder / "base")
    for name, learning_rate in ("tuned", 2e-5), ("adapters", 1e-3):
        model = copy.deepcopy(base)
        if name == "adapters":
            model = with_adapters(model)
        expected = None
        if options.compare:
            expected = train(copy.deepcopy(model), batches(tokenizer, options.steps), learning_rate)
        model.to("xla")
        start = time.perf_counter()
        losses = train(model, batches(tokenizer, options.steps), learning_rate)
        seconds = time.perf_counter() - start
        print(f"{name}: {len(losses)} steps in {seconds:.1f} s, compiled")
        print("losses", *(f"{loss:.3f}" for loss in losses))
        if expected is not None:
            check(losses, expected)
        questions = tuple(question for question, _ in LESSONS)
        tokens = speak.with_generate(model, smollm2.chat(tokenizer, questions), 24)
        smollm2.show(questions, smollm2.answers(tokenizer, tokens))
        model.save_pretrained(options.folder / name)
        tokenizer.save_pretrained(options.folder / name)


if __name__ == "__main__":
    main()
