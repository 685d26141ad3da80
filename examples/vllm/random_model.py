"""Write a small Llama with random weights to a folder, for `from_pretrained` and vLLM.

    python random_model.py FOLDER

Its tokens are w0, w1, ... The text is meaningless, but the model is served like any other.
"""

import argparse
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
)

WORDS = 512


def make_tokenizer(words: int) -> PreTrainedTokenizerFast:
    """Make a tokenizer with one token per word; the first ends a text, the second is unknown."""
    vocabulary = {f"w{i}": i for i in range(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="w1"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    unknown = AddedToken("w1", single_word=True)  # not the beginning of w10
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="w0", unk_token=unknown)


def write_model(config: PretrainedConfig, folder: Path) -> None:
    """Write a model of float32 weights and its tokenizer into `folder`."""
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    make_tokenizer(config.vocab_size).save_pretrained(folder)


def small_llama() -> LlamaConfig:
    return LlamaConfig(
        vocab_size=WORDS,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.1,
        bos_token_id=None,
        eos_token_id=0,
        tie_word_embeddings=False,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    write_model(small_llama(), folder)
    print(f"a random Llama of 2 layers is in {folder}")


if __name__ == "__main__":
    main()
