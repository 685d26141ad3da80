"""Compares the errors of float16 and bfloat16 logits with those of transformers."""

import math

import families
import torch
import transformers
from vllm import LLM, RequestOutput, SamplingParams

LOGPROBS = 5
MANTISSA_BITS = {torch.float16: 10, torch.bfloat16: 7}
# Limits of vLLM's errors, relative to the errors of transformers in the same dtype. Rounding
# depends on how vLLM divides the prompts into steps.
MEDIAN, LARGEST = 1.25, 2.5


@torch.no_grad()
def errors(
    answer: RequestOutput, exact: torch.nn.Module, peer: torch.nn.Module, dtype: torch.dtype
) -> list[tuple[float, float]]:
    """The errors of vLLM's and the peer's reported logits, relative to each step's best logit.

    The unit is the last place of the step's largest logit. Both models compute the logits of the
    answer's tokens, not of their own choices.
    """
    prompt, tokens = answer.prompt_token_ids, answer.outputs[0].token_ids
    forced = torch.tensor([[*prompt, *tokens]])
    expected, others = (m(forced).logits[0, len(prompt) - 1 : -1].float() for m in (exact, peer))
    found = []
    for told, row, other in zip(answer.outputs[0].logprobs, expected, others, strict=True):
        best = max(told, key=lambda token: told[token].logprob)
        unit = 2.0 ** (math.floor(math.log2(row.abs().max())) - MANTISSA_BITS[dtype])
        for token, logprob in told.items():
            right = row[token] - row[best]
            vllms = logprob.logprob - told[best].logprob - right
            peers = other[token] - other[best] - right
            found.append((abs(vllms.item()) / unit, abs(peers.item()) / unit))
    return found


def check_logits(llm: LLM, path: str, dtype: torch.dtype) -> None:
    """Checks the logits of the chosen tokens and of the next best ones."""
    answers = llm.generate(
        [{"prompt_token_ids": prompt} for prompt in families.prompts()],
        SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, logprobs=LOGPROBS),
        use_tqdm=False,
    )
    peer, exact = (
        transformers.AutoModelForCausalLM.from_pretrained(
            path, torch_dtype=dtype, attn_implementation="eager"
        )
        for _ in range(2)
    )
    exact.float()  # the same weights, without rounding in between
    pairs = [pair for answer in answers for pair in errors(answer, exact, peer, dtype)]
    vllms, peers = (torch.tensor(column) for column in zip(*pairs, strict=True))
    print(
        f"{path}, {dtype}: {len(pairs)} logits, units in the last place, median and largest: "
        f"vLLM {vllms.median():.2f} {vllms.max():.2f}, "
        f"transformers {peers.median():.2f} {peers.max():.2f}"
    )
    assert vllms.median() <= MEDIAN * peers.median()
    assert vllms.max() <= LARGEST * peers.max()
