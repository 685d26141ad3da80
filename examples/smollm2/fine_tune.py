"""Teaches the model what torch_xla_ext is, with a captured step: all weights, or LoRA adapters."""

from __future__ import annotations

from collections.abc import Iterator

import peft
import torch
import torch_xla_ext
from transformers import PreTrainedModel, PreTrainedTokenizerBase

LESSONS = (
    ("What is torch_xla_ext?", "A wheel of torch_xla that calls your CUDA kernels by name."),
    ("What does torch_xla_ext do?", "It calls your CUDA kernels from XLA programs by name."),
    ("How do I register a kernel?", "Call torch_xla_ext.register_kernel with a name and a library."),
    ("How do I make a step fast?", "Decorate it with torch_xla_ext.capture."),
    ("How do I end a training step?", "Call torch_xla.sync() at the end of the step."),
    ("Where do my kernels run?", "On NVIDIA GPUs, and on the CPU for tests."),
    ("How do I compile a model?", 'Call torch.compile with backend="openxla".'),
    ("How do I serve a model?", "Install the plugin for vLLM and run vllm serve."),
)
_SEQUENCES, _LENGTH = 4, 64  # of a batch: shapes that do not change

Batch = dict[str, torch.Tensor]


def with_adapters(model: PreTrainedModel) -> peft.PeftModel:
    """The model with LoRA adapters, which alone are trained."""
    torch.manual_seed(0)
    projections = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    config = peft.LoraConfig(r=16, lora_alpha=32, target_modules=projections, task_type="CAUSAL_LM")
    return peft.get_peft_model(model, config)


def batches(tokenizer: PreTrainedTokenizerBase, count: int) -> Iterator[Batch]:
    """The lessons again and again; only the tokens of answers have labels."""
    for number in range(count):
        first = number * _SEQUENCES % len(LESSONS)
        rows = [_row(tokenizer, *lesson) for lesson in LESSONS[first : first + _SEQUENCES]]
        yield {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def _row(tokenizer: PreTrainedTokenizerBase, question: str, answer: str) -> Batch:
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    ids = tokenizer.apply_chat_template(messages)
    asked = len(tokenizer.apply_chat_template(messages[:1], add_generation_prompt=True))
    padding = _LENGTH - len(ids)
    return {
        "input_ids": torch.tensor(ids + padding * [tokenizer.pad_token_id]),
        "attention_mask": torch.tensor(len(ids) * [1] + padding * [0]),
        "labels": torch.tensor(asked * [-100] + ids[asked:] + padding * [-100]),
    }


def train(model: torch.nn.Module, data: Iterator[Batch], learning_rate: float) -> list[float]:
    """Trains on the model's device, on an XLA device with a captured step; returns the losses."""
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
    return torch.stack(losses).tolist()  # the host waits only now
