"""Serves requests of random lengths, some of which are aborted after a random number of tokens.

The requests are served once completely, and once with aborts. Where an answer differs, the engine
computes log probabilities. The answer is correct if both tokens are the best ones within rounding.
"""

import random

from vllm import LLM, SamplingParams

# Log probabilities with this or a smaller difference are equal except for rounding.
TIE = 0.5


def prompt(vocabulary: int, length: int, seed: int) -> list[int]:
    """Random tokens, the same for the same seed."""
    numbers = random.Random(seed)
    return [numbers.randrange(2, vocabulary) for _ in range(length)]


def serve(
    llm: LLM, prompts: list[dict], params: list[SamplingParams], aborted_at: list[int | None]
) -> list[list[int] | None]:
    """The answers; None for requests that were aborted after `aborted_at` tokens."""
    engine = llm.llm_engine
    answers: list[list[int] | None] = [None] * len(prompts)
    for i, (text, options) in enumerate(zip(prompts, params, strict=True)):
        engine.add_request(str(i), text, options)
    while engine.has_unfinished_requests():
        for output in engine.step():
            i, tokens = int(output.request_id), output.outputs[0].token_ids
            if aborted_at[i] is not None and len(tokens) >= aborted_at[i]:
                engine.abort_request([output.request_id])
            elif output.finished:
                answers[i] = list(tokens)
    return answers


def is_tie(llm: LLM, text: dict[str, list[int]], one: list[int], other: list[int]) -> bool:
    """Whether two answers first differ in tokens whose logits are equal except for rounding."""
    at = next(i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=5, detokenize=False)
    asked = {"prompt_token_ids": text["prompt_token_ids"] + one[:at]}
    (answer,) = llm.generate([asked], params, use_tqdm=False)
    (found,) = answer.outputs[0].logprobs
    best = max(token.logprob for token in found.values())
    return all(
        token in found and found[token].logprob > best - TIE for token in (one[at], other[at])
    )


def run_aborts(llm: LLM, count: int, vocabulary: int, longest: int) -> dict[str, int]:
    """The numbers of requests, by outcome."""
    numbers = random.Random(1)
    prompts = [
        {"prompt_token_ids": prompt(vocabulary, numbers.randrange(1, longest // 2), 1000 + i)}
        for i in range(count)
    ]
    wanted = [numbers.randrange(1, longest // 2) for _ in range(count)]
    params = [
        SamplingParams(temperature=0, max_tokens=n, ignore_eos=True, detokenize=False)
        for n in wanted
    ]
    aborted_at = [numbers.randrange(1, n + 1) if numbers.random() < 1 / 3 else None for n in wanted]
    whole = serve(llm, prompts, params, [None] * count)
    answers = serve(llm, prompts, params, aborted_at)
    kept = [i for i in range(count) if aborted_at[i] is None]
    lost = [i for i in kept if answers[i] is None or len(answers[i]) != wanted[i]]
    different = [i for i in kept if i not in lost and answers[i] != whole[i]]
    return {
        "requests": count,
        "aborted": count - len(kept),
        "lost": len(lost),
        "equal": len(kept) - len(lost) - len(different),
        "different_at_a_tie": sum(is_tie(llm, prompts[i], whole[i], answers[i]) for i in different),
        "different": len(different),
        "unfinished": llm.llm_engine.get_num_unfinished_requests(),
    }
