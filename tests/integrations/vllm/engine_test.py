"""All options of requests, on one engine with a small Llama and too few pages in its cache."""

import functools
import gc
import itertools
import logging
import weakref
from collections.abc import Iterator
from pathlib import Path

import aborts
import families
import pytest
import torch
import torch_xla.debug.metrics as metrics
import transformers
from vllm import LLM, RequestOutput, SamplingParams
from vllm.model_executor.layers.utils import apply_penalties
from vllm.sampling_params import GuidedDecodingParams
from vllm.v1.sample.ops.bad_words import apply_bad_words
from vllm_xla_gpu import memory

PAGES = 24  # of 16 tokens, for 8 sequences of up to 128
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


def _tokens(count: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, families.VOCABULARY, (count,), generator=generator).tolist()


@pytest.fixture(scope="module")
def model(models: Path) -> str:
    return families.write("llama", models)


@pytest.fixture(scope="module")
def llm(model: str) -> LLM:
    return LLM(
        model,
        dtype="float32",
        tensor_parallel_size=families.DEVICES,
        max_model_len=128,
        max_num_seqs=8,
        max_num_batched_tokens=32,
        num_gpu_blocks_override=PAGES,
        seed=0,
    )


@pytest.fixture(autouse=True)
def compiles_nothing(request: pytest.FixtureRequest) -> Iterator[None]:
    if "llm" in request.fixturenames:
        request.getfixturevalue("llm")
        compiled = metrics.metric_data("CompileTime")[0]
        yield
        assert metrics.metric_data("CompileTime")[0] == compiled
    else:
        yield


def _generate(llm: LLM, prompts: list[list[int]], params: SamplingParams) -> list[RequestOutput]:
    return llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)


def _assert_right(model: str, answers: list[RequestOutput]) -> None:
    for answer in answers:
        _, behind, distance = families.reference(
            model, answer.prompt_token_ids, answer.outputs[0].token_ids
        )
        assert behind < distance / families.MARGIN


def test_more_sequences_than_there_are_pages(
    llm: LLM, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = llm.llm_engine.engine_core.engine_core.scheduler.waiting
    preempted, prepend = [], waiting.prepend_request
    monkeypatch.setattr(waiting, "prepend_request", lambda r: (preempted.append(r), prepend(r)))
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    answers = _generate(llm, [_tokens(20 + 3 * i, i) for i in range(10)], params)
    assert [len(answer.outputs[0].token_ids) for answer in answers] == [40] * 10
    assert preempted
    _assert_right(model, answers)


def test_prompt_in_chunks(llm: LLM, model: str) -> None:
    _assert_right(model, _generate(llm, [_tokens(110, 50)], GREEDY))


def test_answer_up_to_the_longest_text(llm: LLM, model: str) -> None:
    """Other requests end before it and after it."""
    params = [
        SamplingParams(temperature=0, max_tokens=count, ignore_eos=True) for count in (3, 50, 20)
    ]
    prompts = [{"prompt_token_ids": _tokens(length, 55 + length)} for length in (9, 118, 30)]
    answers = llm.generate(prompts, params, use_tqdm=False)
    assert [len(answer.outputs[0].token_ids) for answer in answers] == [3, 10, 20]
    assert answers[1].outputs[0].finish_reason == "length"
    _assert_right(model, answers)


def test_no_step_has_a_last_token_for_input(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []
    runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
    execute = runner.execute_model
    monkeypatch.setattr(
        runner,
        "execute_model",
        lambda step: (steps.append(dict(step.num_scheduled_tokens)), execute(step))[1],
    )
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (1, 4)]
    llm.generate([{"prompt_token_ids": _tokens(10, n)} for n in range(2)], params, use_tqdm=False)
    assert [sorted(tokens.values()) for tokens in steps] == [[10, 10], [1], [1], [1]]


def test_prefix_is_cached(llm: LLM, model: str) -> None:
    prefix = _tokens(70, 60)
    (first,) = _generate(llm, [[*prefix, 5, 6]], GREEDY)
    (second,) = _generate(llm, [[*prefix, 7, 8, 9]], GREEDY)
    assert first.num_cached_tokens == 0
    assert second.num_cached_tokens == 64
    _assert_right(model, [first, second])


def test_aborted_requests_and_others_of_their_names(llm: LLM, model: str) -> None:
    engine = llm.llm_engine
    params = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)

    def add(first_seed: int) -> None:
        for i in range(4):
            prompt = {"prompt_token_ids": _tokens(6 + i, first_seed + i)}
            engine.add_request(f"request {i}", prompt, params)

    add(130)
    for _ in range(5):
        engine.step()
    engine.abort_request([f"request {i}" for i in range(4)])  # a step of theirs still runs
    assert not engine.has_unfinished_requests()
    add(140)
    answers = []
    while engine.has_unfinished_requests():
        answers += [answer for answer in engine.step() if answer.finished]
    assert [len(answer.outputs[0].token_ids) for answer in answers] == [9] * 4
    assert {len(answer.prompt_token_ids) for answer in answers} == {6, 7, 8, 9}
    _assert_right(model, answers)
    runner = engine.model_executor.driver_worker.worker.model_runner
    _generate(llm, [[5, 6]], GREEDY)
    assert len(runner.requests) <= 1  # the others are forgotten


def test_random_lengths_and_aborts(llm: LLM) -> None:
    found = aborts.run_aborts(llm, 40, families.VOCABULARY, longest=120)
    assert found["aborted"] > 5
    assert found["equal"] > 15
    assert found["different"] == found["different_at_a_tie"]
    assert found["lost"] == found["unfinished"] == 0


def test_stop_string(llm: LLM) -> None:
    (free,) = _generate(llm, [_tokens(9, 70)], GREEDY)
    words = free.outputs[0].text.split()
    stop = next(word for word in words[2:] if word not in words[:2])
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, stop=[f"{stop} "])
    (stopped,) = _generate(llm, [_tokens(9, 70)], params)
    assert stopped.outputs[0].text.split() == words[: words.index(stop)]
    assert stopped.outputs[0].finish_reason == "stop"


def test_end_of_text(llm: LLM) -> None:
    (free,) = _generate(llm, [_tokens(9, 71)], GREEDY)
    tokens = free.outputs[0].token_ids
    params = SamplingParams(temperature=0, max_tokens=12, stop_token_ids=[tokens[4]])
    (stopped,) = _generate(llm, [_tokens(9, 71)], params)
    assert stopped.outputs[0].token_ids == tokens[: tokens.index(tokens[4]) + 1]


@pytest.mark.parametrize("count", [0, 3])
@torch.no_grad()
def test_logprobs(count: int, llm: LLM, model: str) -> None:
    prompt = _tokens(14, 80)
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, logprobs=count)
    (answer,) = _generate(llm, [prompt], params)
    reference = transformers.AutoModelForCausalLM.from_pretrained(model)
    tokens = torch.tensor([prompt + answer.outputs[0].token_ids])
    expected = reference(tokens).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    for given, row in zip(answer.outputs[0].logprobs, expected, strict=True):
        assert len(given) == max(count, 1)
        for token, logprob in given.items():
            assert logprob.logprob == pytest.approx(row[token].item(), abs=1e-4)


@torch.no_grad()
def test_sampling_keeps_to_the_best(llm: LLM, model: str) -> None:
    prompts = [_tokens(10, 90 + i) for i in range(8)]
    params = [
        SamplingParams(temperature=1.5, top_k=1, max_tokens=1),
        SamplingParams(temperature=1.0, top_k=4, max_tokens=1),
        SamplingParams(temperature=2.0, max_tokens=1),
    ]
    logits = transformers.AutoModelForCausalLM.from_pretrained(model)(torch.tensor(prompts)).logits
    ranking = logits[:, -1].argsort(descending=True)
    ranks = []
    for param in params:
        answers = _generate(llm, prompts, param)
        tokens = torch.tensor([answer.outputs[0].token_ids for answer in answers])
        ranks.append((ranking == tokens).int().argmax(1))
    assert not ranks[0].any()
    assert ranks[1].any()
    assert ranks[1].max() < 4
    assert ranks[2].max() > 4


def _sampled(llm: LLM, *params: SamplingParams) -> list[list[int]]:
    """The answers to one prompt, one for each of `params`; the requests are served together."""
    prompts = [{"prompt_token_ids": _tokens(10, 110)}] * len(params)
    answers = llm.generate(prompts, list(params), use_tqdm=False)
    return [answer.outputs[0].token_ids for answer in answers]


def test_each_request_is_sampled_as_it_asks(llm: LLM) -> None:
    ask = functools.partial(SamplingParams, max_tokens=6, ignore_eos=True)
    (best,) = _sampled(llm, ask(temperature=0))
    greedy, little_p, min_p, *free = _sampled(
        llm,
        ask(temperature=0),
        ask(temperature=1, top_p=0.01),
        ask(temperature=1, min_p=0.99),
        *[ask(temperature=2)] * 4,
    )
    assert greedy == little_p == min_p == best
    assert len({tuple(tokens) for tokens in free}) == 4


def test_seeds(llm: LLM) -> None:
    ask = functools.partial(SamplingParams, temperature=2, max_tokens=8, ignore_eos=True)
    (alone,) = _sampled(llm, ask(seed=3))
    free, *with_seed, other, greedy = _sampled(
        llm, ask(), ask(seed=3), ask(seed=3), ask(seed=4), ask(temperature=0)
    )
    assert with_seed == [alone, alone]
    assert len({tuple(tokens) for tokens in (alone, free, other, greedy)}) == 4


def test_several_answers(llm: LLM) -> None:
    params = SamplingParams(temperature=2, n=3, max_tokens=6, ignore_eos=True)
    (answer,) = _generate(llm, [_tokens(10, 120)], params)
    assert len({tuple(output.token_ids) for output in answer.outputs}) == 3


@torch.no_grad()
def test_penalties(llm: LLM, model: str) -> None:
    all_options = [
        {},
        {"repetition_penalty": 1.5},
        {"presence_penalty": 1.5, "frequency_penalty": 0.7},
        {"frequency_penalty": -0.5, "repetition_penalty": 0.9},
    ]
    params = [
        SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, **options)
        for options in all_options
    ]
    prompts = [{"prompt_token_ids": _tokens(40, 150 + i)} for i in range(len(all_options))]
    answers = llm.generate(prompts, params, use_tqdm=False)
    reference = transformers.AutoModelForCausalLM.from_pretrained(model)
    changed = []
    for answer, param in zip(answers, params, strict=True):
        prompt, tokens = answer.prompt_token_ids, answer.outputs[0].token_ids
        logits = reference(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
        changed.append(tokens != logits.argmax(-1).tolist())
        for place, row in enumerate(logits):
            expected = apply_penalties(
                row[None].clone(),
                torch.tensor([prompt]),
                torch.tensor([tokens[:place]], dtype=torch.int64),
                torch.tensor([param.presence_penalty]),
                torch.tensor([param.frequency_penalty]),
                torch.tensor([param.repetition_penalty]),
            )[0]
            assert expected.max() - expected[tokens[place]] < 1e-4
    assert changed == [False, True, True, True]


def test_structured_output(llm: LLM) -> None:
    ask = functools.partial(SamplingParams, temperature=0, max_tokens=4)
    one, other = (
        ask(guided_decoding=GuidedDecodingParams(choice=words)) for words in (["w7", "w9"], ["w11"])
    )
    free = ask(ignore_eos=True)
    (alone,) = _sampled(llm, free)
    # Requests without a mask are before and between those with one, so that a mask's row is not its
    # request's row.
    first, chosen, second, also_chosen = _sampled(llm, free, one, free, other)
    assert first == second == alone
    assert chosen in ([7, 0], [9, 0])  # and the end
    assert also_chosen == [11, 0]


@torch.no_grad()
def test_forbidden_and_favoured_tokens(llm: LLM, model: str) -> None:
    prompts = [_tokens(30, 170 + i) for i in range(7)]
    free = [answer.outputs[0].token_ids for answer in _generate(llm, prompts, GREEDY)]
    allowed, favoured = [3, 4, 5], {7: 100.0, 8: 99.5, free[2][0]: -100.0}
    bad = [free[1][0]], free[3][3:5]
    bad_words = [" ".join(f"w{token}" for token in word) for word in bad]
    # The last but one has no options; for the last one the end of the text is the best token.
    all_options = [
        {"allowed_token_ids": allowed},
        {"bad_words": bad_words},
        {"logit_bias": favoured, "repetition_penalty": 3.0},
        {"bad_words": bad_words[1:]},
        {"min_tokens": 5, "stop_token_ids": free[4][:5]},
        {},
        {"min_tokens": 3, "logit_bias": {0: 100.0}, "ignore_eos": False},
    ]
    params = [
        SamplingParams(**{"temperature": 0, "max_tokens": 12, "ignore_eos": True} | options)
        for options in all_options
    ]
    answers = llm.generate(
        [{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False
    )
    reference = transformers.AutoModelForCausalLM.from_pretrained(model)
    for answer, options in zip(answers, params, strict=True):
        prompt, tokens = answer.prompt_token_ids, answer.outputs[0].token_ids
        logits = reference(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
        for place, row in enumerate(logits):
            before = tokens[:place]
            if options.allowed_token_ids:
                row[[i for i in range(len(row)) if i not in allowed]] = -torch.inf
            apply_bad_words(
                row[None], {0: bad[len(bad) - len(options.bad_words or ()) :]}, [before]
            )
            for token, bias in (options.logit_bias or {}).items():
                row[token] += bias
            if place < options.min_tokens:
                row[[0, *options.stop_token_ids]] = -torch.inf
            if options.repetition_penalty != 1:
                seen = sorted({*prompt, *before})
                row[seen] = torch.where(row[seen] > 0, row[seen] / 3.0, row[seen] * 3.0)
            assert row.max() - row[tokens[place]] < 1e-4
    found = [answer.outputs[0].token_ids for answer in answers]
    assert set(found[0]) <= set(allowed)
    assert [tokens == others for tokens, others in zip(found, free, strict=True)] == [
        i == 5 for i in range(len(found))
    ]
    assert found[3][:4] == free[3][:4]
    assert found[3][4] != free[3][4]
    assert len(found[4]) > 5
    assert found[6][3] == 0
    assert len(found[6]) == 4


def test_sampling_of_allowed_tokens(llm: LLM) -> None:
    ask = functools.partial(SamplingParams, temperature=2, max_tokens=12, ignore_eos=True)
    one, other = _sampled(llm, ask(allowed_token_ids=[3, 4, 5]), ask())
    assert len(set(one)) > 1
    assert set(one) <= {3, 4, 5}
    assert not set(other) <= {3, 4, 5}


def test_settings_without_effect_are_refused(llm: LLM) -> None:
    with pytest.raises(ValueError, match="does not support prompt_logprobs; leave it out"):
        _generate(llm, [[5, 6]], SamplingParams(prompt_logprobs=1))
    with pytest.raises(ValueError, match=r"does not support sleep\(\); shut down the engine"):
        llm.sleep()


def test_prompt_that_is_too_long(llm: LLM, model: str) -> None:
    with pytest.raises(ValueError, match="longer than the maximum model length of 128"):
        _generate(llm, [_tokens(129, 100)], GREEDY)
    with pytest.raises(ValueError, match="max_model_len=128 there is no room for an answer"):
        _generate(llm, [_tokens(128, 100)], GREEDY)
    answers = _generate(llm, [_tokens(5, 101), _tokens(127, 102)], GREEDY)
    assert [len(answer.outputs[0].token_ids) for answer in answers] == [12, 1]
    _assert_right(model, answers)


def test_measured_memory_and_fp8_cache(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache takes the memory that a GPU's allocator, by its limit and peak, has left."""
    info = {"bytes_limit": 40 << 20, "bytes_used": 3 << 20}
    peaks = itertools.chain([0], itertools.repeat(8 << 20))
    monkeypatch.setattr(
        memory, "allocator_info", lambda device: info | {"peak_bytes_used": next(peaks)}
    )
    llm = LLM(
        model,
        dtype="bfloat16",
        kv_cache_dtype="fp8",
        tensor_parallel_size=families.DEVICES,
        max_model_len=64,
        max_num_seqs=8,
        max_num_batched_tokens=16,
        seed=0,
    )
    # Heads of 32 are padded to 64; of fp8, keys and values of 2 heads in 2 layers.
    per_page = 16 * 64 * 2 * 2 * 2 // families.DEVICES
    pages = llm.llm_engine.vllm_config.cache_config.num_gpu_blocks
    assert pages == (int(0.97 * (40 << 20)) - (8 << 20)) // per_page
    answers = _generate(llm, [_tokens(20, i) for i in range(4)], GREEDY)
    for answer in answers:
        # Keys and values have 8 bits, so only the first token is compared; later ones may differ.
        equal, behind, distance = families.reference(
            model, answer.prompt_token_ids, answer.outputs[0].token_ids[:1]
        )
        assert equal or behind < 2 * distance


def test_an_earlier_engine_leaves_no_caches(model: str) -> None:
    def cache() -> weakref.ref:
        llm = LLM(
            model,
            tensor_parallel_size=families.DEVICES,
            max_model_len=64,
            max_num_seqs=8,
            max_num_batched_tokens=16,
            num_gpu_blocks_override=PAGES,
        )
        layers = llm.llm_engine.vllm_config.compilation_config.static_forward_context
        return weakref.ref(next(iter(layers.values())).kv_cache[0])

    gc.disable()
    logging.disable()  # pytest keeps log records, which refer to the engine's settings
    try:
        earlier = cache()
        later = cache()
        assert earlier() is None
        assert later() is not None
    finally:
        logging.disable(logging.NOTSET)
        gc.enable()


def test_model_that_does_not_fit(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    info = {"bytes_limit": 1 << 19, "bytes_used": 0, "peak_bytes_used": 0}
    monkeypatch.setattr(memory, "allocator_info", lambda device: info)
    with pytest.raises(ValueError, match=r"weights are [\d.]+ MiB, but vLLM may use 0\.5 MiB of"):
        LLM(
            model,
            tensor_parallel_size=families.DEVICES,
            max_model_len=64,
            max_num_seqs=8,
            max_num_batched_tokens=16,
        )
