"""``model.generate`` on XLA gives the CPU's tokens, and does not compile for each token."""

import copy
import gc
import io
import logging
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import pytest
import torch
import transformers

from integrations.huggingface import models
from torch_xla_huggingface import ahead, results


class Pair:
    """The same model on the CPU and on the XLA device."""

    def __init__(self, name: str, **options: Any) -> None:
        self.cpu = models.model(name, **options)
        self.xla = copy.deepcopy(self.cpu).to("xla")

    def check(self, inputs: dict[str, torch.Tensor], **options: Any) -> torch.Tensor:
        torch.manual_seed(3)
        expected = self.cpu.generate(**inputs, **options)
        torch.manual_seed(3)
        got = self.xla.generate(**models.on_device(inputs), **options)
        assert got.device.type == "xla"
        assert got.tolist() == expected.tolist()
        return expected


@pytest.fixture(scope="module")
def llama() -> Pair:
    return Pair("llama")


@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma2", "gpt2", "bloom"])
def test_tokens_of_the_cpu_from_two_programs(name: str) -> None:
    pair = Pair(name)
    before = models.compilations()
    # A token that repeats could hide a fault.
    options = {"eos_token_id": None, "no_repeat_ngram_size": 1}
    pair.check(models.prompts(4, 11), max_new_tokens=24, **options)
    compiled = models.compilations()
    assert compiled - before <= 3  # one more for weights that two modules share, after to("xla")
    pair.check(models.prompts(9, 14, seed=1), max_new_tokens=20, **options)
    assert models.compilations() == compiled


def test_a_token_is_one_program_and_two_reads(llama: Pair) -> None:
    """The host reads the token and the started step's inputs."""
    options = {"max_new_tokens": 20, "eos_token_id": None}
    llama.check(models.prompts(4, 11), **options)
    inputs = models.on_device(models.prompts(9, 11, seed=1))
    before = models.counts("ExecuteTime", "TransferFromDeviceTime")
    llama.xla.generate(**inputs, **options)
    after = models.counts("ExecuteTime", "TransferFromDeviceTime")
    programs, reads = (b - a for a, b in zip(before, after, strict=True))
    assert programs == 20
    assert reads <= 2 * 20


def test_layers_that_use_the_keys_of_others() -> None:
    pair = Pair("gemma3n")
    before = models.compilations()
    pair.check(models.prompts(4, 11), max_new_tokens=12, eos_token_id=None)
    assert models.compilations() - before <= 4


def test_layers_with_other_states_run_as_before(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "torch_xla_ext.generate"):
        Pair("lfm2").check(models.prompts(4, 11), max_new_tokens=4, eos_token_id=None)
    assert "Lfm2ForCausalLM compiles a program for each token" in caplog.text


def test_all_positions_of_a_model() -> None:
    """The text fills all positions of the model's causal mask, which is a buffer."""
    pair = Pair("gpt2", attn_implementation="eager")
    assert pair.check(models.prompts(70), max_new_tokens=30, eos_token_id=None).shape == (1, 100)


def test_model_that_reads_a_value(caplog: pytest.LogCaptureFixture) -> None:
    """The model reads the text's length on the host, because its frequencies depend on it."""
    scaling = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    config = copy.deepcopy(models.CONFIGS["llama"])
    config.update({"max_position_embeddings": 16, "rope_scaling": scaling})
    with mock.patch.dict(models.CONFIGS, llama=config):
        pair = Pair("llama")
    with caplog.at_level(logging.WARNING, "torch_xla_ext.generate"):
        pair.check(models.prompts(12), max_new_tokens=8, eos_token_id=None, no_repeat_ngram_size=1)
    assert "runs lazily: step: the function reads the value of a tensor" in caplog.text


@pytest.mark.parametrize(
    "options",
    [
        {"do_sample": True, "top_k": 20, "temperature": 0.8},
        {"do_sample": True, "top_p": 0.9, "num_return_sequences": 2},
        {"num_beams": 3},
        {"num_beams": 3, "num_return_sequences": 2, "length_penalty": 0.5, "early_stopping": True},
        {"num_beams": 2, "do_sample": True},
        {"cache_implementation": "static"},
        {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
        {"max_length": 17, "max_new_tokens": None},
        {"min_new_tokens": 10, "eos_token_id": list(range(40))},
        {"bad_words_ids": [[5], [6, 7]], "renormalize_logits": True},
    ],
    ids=str,
)
def test_options(llama: Pair, options: dict[str, Any]) -> None:
    llama.check(models.prompts(4, 11), **{"max_new_tokens": 12} | options)


class TestAhead:
    """Steps that are started before the host has chosen their token (ahead.py)."""

    @pytest.fixture
    def calls(self, monkeypatch: pytest.MonkeyPatch) -> list[ahead.Ahead]:
        """A list of the Ahead objects, one for each greedy call of generate."""
        made: list[ahead.Ahead] = []
        init = ahead.Ahead.__init__

        def kept(self: ahead.Ahead, last: int, *, keeps_logits: bool) -> None:
            init(self, last, keeps_logits=keeps_logits)
            made.append(self)

        monkeypatch.setattr(ahead.Ahead, "__init__", kept)
        return made

    def test_each_later_step_is_started_ahead(self, llama: Pair, calls: list[ahead.Ahead]) -> None:
        llama.check(models.prompts(4, 11), max_new_tokens=24, eos_token_id=None)
        (call,) = calls
        # The prompt's step gives the first token, the second token's step starts the first one
        # ahead, and the last one's result is not read.
        assert (call.hits, call.misses, call.started) == (22, 0, None)

    def test_results_keep_their_memory(self, llama: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
        """That of the token being chosen, of the one before, and of the next."""
        made: list[results.Results] = []
        init = results.Results.__init__

        def kept(self: results.Results, *tensors: torch.Tensor) -> None:
            init(self, *tensors)
            made.append(tensors[0])

        monkeypatch.setattr(results.Results, "__init__", kept)
        llama.check(models.prompts(4, 11), max_new_tokens=24, eos_token_id=None)
        assert len(made) == 24
        assert len(set(map(id, made))) <= 4

    def test_processors_choose_other_tokens(self, llama: Pair, calls: list[ahead.Ahead]) -> None:
        prompts = models.prompts(4, 11)
        llama.check(prompts, max_new_tokens=24, eos_token_id=None, repetition_penalty=1.5)
        (call,) = calls
        assert 0 < call.misses <= 3 + call.hits // 4

    def test_a_sequence_that_has_ended(self, llama: Pair, calls: list[ahead.Ahead]) -> None:
        """The ended sequence repeats its token; the other one goes on and is still ahead."""
        prompts = models.prompts(4, 11)
        free = llama.check(prompts, max_new_tokens=24, eos_token_id=None)
        first, second = free[:, 11:].tolist()
        end = next(token for token in first if token not in second)
        llama.check(prompts, max_new_tokens=24, eos_token_id=end)
        call = calls[-1]
        assert call.misses == 1
        assert call.hits > 15

    def test_a_mask_that_changes_on_the_way(self, llama: Pair) -> None:
        """The model masks a token of its prompt after six more tokens."""

        kind = type(llama.cpu)
        prepare = kind.prepare_inputs_for_generation

        def forgetful(self: Any, *args: Any, **kwargs: Any) -> Any:
            inputs = prepare(self, *args, **kwargs)
            if inputs["attention_mask"].shape[1] > 17:
                inputs["attention_mask"] = inputs["attention_mask"].clone()
                inputs["attention_mask"][:, 5] = 0
            return inputs

        prompts, options = models.prompts(4, 11), {"max_new_tokens": 24, "eos_token_id": None}
        with mock.patch.object(kind, "prepare_inputs_for_generation", forgetful):
            changed = llama.check(prompts, **options)
        assert changed.tolist() != llama.check(prompts, **options).tolist()

    def test_streamers_of_the_library(self, llama: Pair, calls: list[ahead.Ahead]) -> None:
        class Words:
            def decode(self, tokens: list[int], **_: Any) -> str:
                return "".join(f"{token} " for token in tokens)

        inputs = models.on_device({k: v[:1] for k, v in models.prompts(11).items()})
        streamer = transformers.TextIteratorStreamer(Words(), skip_prompt=True)
        found = llama.xla.generate(
            **inputs, max_new_tokens=24, eos_token_id=None, streamer=streamer
        )
        assert "".join(streamer).split() == [str(token) for token in found[0, 11:].tolist()]
        assert calls[-1].hits == 22

    @pytest.mark.parametrize("kept", ["output_scores", "output_logits"])
    def test_kept_logits(self, llama: Pair, kept: str) -> None:
        prompts = models.prompts(4, 11)
        options = {"max_new_tokens": 8, "return_dict_in_generate": True, kept: True}
        expected = llama.cpu.generate(**prompts, **options)
        got = llama.xla.generate(**models.on_device(prompts), **options)
        name = kept.removeprefix("output_")
        for one, other in zip(got[name], expected[name], strict=True):
            assert type(one) is torch.Tensor
            torch.testing.assert_close(one.cpu(), other, rtol=1e-4, atol=1e-5)

    def test_code_that_changes_the_model_on_the_way(self, llama: Pair) -> None:
        def changed_after_six(model: Any) -> Any:
            class Changing:
                count = 0

                def put(self, _: torch.Tensor) -> None:
                    self.count += 1
                    if self.count == 6:
                        model.model.layers[0].mlp.act_fn = torch.nn.Tanh()

                def end(self) -> None:
                    model.model.layers[0].mlp.act_fn = torch.nn.SiLU()

            return Changing()

        options = {"max_new_tokens": 24, "eos_token_id": None, "no_repeat_ngram_size": 1}
        one = {k: v[:1] for k, v in models.prompts(11).items()}
        usual = llama.check(one, **options)
        expected = llama.cpu.generate(**one, **options, streamer=changed_after_six(llama.cpu))
        got = llama.xla.generate(
            **models.on_device(one), **options, streamer=changed_after_six(llama.xla)
        )
        assert got.tolist() == expected.tolist() != usual.tolist()

    @pytest.mark.parametrize(
        "option",
        [
            {"prefix_allowed_tokens_fn": lambda *_: list(range(3, 90))},
            {"stopping_criteria": [lambda tokens, _: torch.zeros(len(tokens)).bool()]},
            {"logits_processor": [lambda _, scores: scores]},
        ],
        ids=lambda option: next(iter(option)),
    )
    def test_functions_of_the_caller_may_change_the_model(
        self, llama: Pair, calls: list[ahead.Ahead], option: dict[str, Any]
    ) -> None:
        llama.check(models.prompts(4, 11), max_new_tokens=8, **option)
        assert not calls

    def test_hooks_may_change_the_model(self, llama: Pair, calls: list[ahead.Ahead]) -> None:
        hook = llama.xla.register_forward_pre_hook(lambda *_: None)
        try:
            llama.check(models.prompts(4, 11), max_new_tokens=8)
        finally:
            hook.remove()
        assert not calls

    @pytest.mark.parametrize("option", [{"do_sample": True}, {"num_beams": 2}], ids=str)
    def test_other_searches_wait(
        self, llama: Pair, calls: list[ahead.Ahead], option: dict[str, Any]
    ) -> None:
        llama.check(models.prompts(4, 11), max_new_tokens=8, **option)
        assert not calls


def test_end_of_a_sequence(llama: Pair) -> None:
    """A sequence that ends is padded while another goes on; the loop ends with the last one."""
    inputs = models.prompts(4, 11)
    tokens = llama.check(inputs, max_new_tokens=12, eos_token_id=None)[:, 11:]
    ends = sorted({tokens[0, 3].item(), tokens[1, 6].item()})
    assert llama.check(inputs, max_new_tokens=12, eos_token_id=ends).shape[1] < 23


def test_arguments_of_the_users() -> None:
    pair = Pair("llama")
    seen: dict[str, list[Any]] = {"cpu": [], "xla": []}

    class Streamer(transformers.generation.BaseStreamer):
        def __init__(self, tokens: list[Any]) -> None:
            self.tokens = tokens

        def put(self, value: torch.Tensor) -> None:
            self.tokens += value.flatten().tolist()

        def end(self) -> None:
            self.tokens.append("end")

    class OnlyEven(transformers.LogitsProcessor):
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            odd = torch.arange(scores.shape[-1], device=scores.device) % 2 == 1
            return scores.masked_fill(odd, -float("inf"))

    class AtLength(transformers.StoppingCriteria):
        def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
            stop = input_ids.shape[1] >= 15
            return torch.full((input_ids.shape[0],), stop, device=input_ids.device)

    inputs, results = models.prompts(9), {}
    for device in ("cpu", "xla"):
        results[device] = getattr(pair, device).generate(
            **{name: tensor.to(device) for name, tensor in inputs.items()},
            max_new_tokens=12,
            eos_token_id=None,
            streamer=Streamer(seen[device]),
            logits_processor=transformers.LogitsProcessorList([OnlyEven()]),
            stopping_criteria=transformers.StoppingCriteriaList([AtLength()]),
            return_dict_in_generate=True,
            output_scores=True,
            output_logits=True,
        )
    want, got = results["cpu"], results["xla"]
    assert got.sequences.tolist() == want.sequences.tolist()
    assert want.sequences.shape == (1, 15)
    assert seen["xla"] == seen["cpu"]
    for name in ("scores", "logits"):
        assert len(got[name]) == 6
        for one, other in zip(got[name], want[name], strict=True):
            assert one.device.type == "xla"
            torch.testing.assert_close(one.cpu(), other, rtol=1e-4, atol=1e-4)


def test_conversation_with_one_cache(llama: Pair) -> None:
    """The second text continues the first, beyond the cache's first size."""
    results: dict[str, list[Any]] = {"cpu": [], "xla": []}
    more = models.prompts(30, seed=5)["input_ids"]
    options = {"eos_token_id": None, "return_dict_in_generate": True}
    for device in ("cpu", "xla"):
        model, cache = getattr(llama, device), None
        ids = models.prompts(7)["input_ids"].to(device)
        for count in (6, 40):
            result = model.generate(ids, max_new_tokens=count, past_key_values=cache, **options)
            cache = result.past_key_values
            results[device].append(result.sequences.tolist())
            ids = torch.cat([result.sequences, more.to(device)], dim=1)
        assert cache.get_seq_length() == 7 + 6 + 30 + 40 - 1
        assert cache.layers[0].keys.shape == (1, 2, 82, 8)
    assert results["xla"] == results["cpu"]


def test_errors_of_a_cache_that_is_passed_on(llama: Pair) -> None:
    options = {"max_new_tokens": 3, "eos_token_id": None, "return_dict_in_generate": True}
    first = llama.xla.generate(**models.on_device(models.prompts(7)), **options)
    longer = torch.cat([first.sequences, first.sequences], dim=1)
    options["past_key_values"] = first.past_key_values
    with pytest.raises(
        ValueError, match=r"10 columns, but past_key_values has 9 tokens, and there are 11 more"
    ):
        llama.xla.generate(longer, attention_mask=torch.ones(1, 10).to("xla"), **options)
    with pytest.raises(ValueError, match=r"past_key_values .* output_attentions=True"):
        llama.xla.generate(longer, output_attentions=True, **options)


def test_replaced_and_loaded_parameters_are_used() -> None:
    pair, inputs = Pair("llama"), models.prompts(4, 11)
    first = pair.check(inputs, max_new_tokens=8)
    torch.manual_seed(7)
    head = torch.nn.Linear(32, 97, bias=False)
    for model in (pair.cpu, pair.xla):
        model.lm_head = copy.deepcopy(head).to(model.device)
    second = pair.check(inputs, max_new_tokens=8)
    for model in (pair.cpu, pair.xla):
        model.load_state_dict({k: v.flip(0) for k, v in model.state_dict().items()})
    third = pair.check(inputs, max_new_tokens=8)
    assert len({str(tokens.tolist()) for tokens in (first, second, third)}) == 3


@pytest.mark.parametrize("context", [torch.inference_mode, torch.enable_grad])
def test_gradient_modes(llama: Pair, context: Any) -> None:
    with context():
        llama.check(models.prompts(6), max_new_tokens=6)


def test_inputs_on_the_host(llama: Pair) -> None:
    inputs = models.prompts(6)
    got = llama.xla.generate(**inputs, max_new_tokens=6)
    assert got.device.type == "cpu"
    assert got.tolist() == llama.cpu.generate(**inputs, max_new_tokens=6).tolist()


def test_two_threads(llama: Pair) -> None:
    prompts = [models.prompts(6, seed=seed) for seed in range(4)]
    expected = [llama.cpu.generate(**p, max_new_tokens=8).tolist() for p in prompts]

    def generate(prompt: Any) -> Any:
        return llama.xla.generate(**models.on_device(prompt), max_new_tokens=8).tolist()

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(generate, prompts)) == expected


def test_model_is_as_it_was_and_can_go() -> None:
    pair = Pair("llama")
    attributes = set(vars(pair.xla))
    pair.check(models.prompts(6), max_new_tokens=4)
    assert set(vars(pair.xla)) == attributes
    inputs = models.prompts(6)
    want = pair.cpu(**inputs).logits
    torch.testing.assert_close(
        pair.xla(**models.on_device(inputs)).logits.cpu(), want, rtol=1e-4, atol=1e-4
    )
    copied = copy.deepcopy(pair.xla)
    torch.save(copied, io.BytesIO())
    assert copied.generate(**models.on_device(inputs), max_new_tokens=4).shape == (1, 10)
    gone = weakref.ref(pair.xla)
    del pair, copied
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"output_hidden_states": True, "return_dict_in_generate": True}, "output_hidden_states"),
        ({"use_cache": False}, "use_cache=False"),
        ({"prompt_lookup_num_tokens": 2}, "prompt_lookup_num_tokens=2"),
    ],
)
def test_calls_that_run_transformers_own_code(
    llama: Pair, options: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    inputs = models.prompts(5)
    with caplog.at_level(logging.WARNING, "torch_xla_ext.generate"):
        got = llama.xla.generate(**models.on_device(inputs), max_new_tokens=2, **options)
    want = llama.cpu.generate(**inputs, max_new_tokens=2, **options)
    if not isinstance(want, torch.Tensor):
        got, want = got.sequences, want.sequences
    assert got.tolist() == want.tolist()
    assert reason in caplog.text


def test_assisted_generation(llama: Pair) -> None:
    """The loop removes tokens from the assistant's cache."""
    inputs = models.prompts(5)
    want = llama.cpu.generate(**inputs, max_new_tokens=3, assistant_model=copy.deepcopy(llama.cpu))
    got = llama.xla.generate(
        **models.on_device(inputs), max_new_tokens=3, assistant_model=copy.deepcopy(llama.xla)
    )
    assert got.tolist() == want.tolist()


def test_sampled_frequencies(llama: Pair) -> None:
    """The first sampled token has the probabilities of the model's logits."""
    inputs, count = models.prompts(6), 800
    with torch.no_grad():
        logits = llama.cpu(**inputs).logits[0, -1]
    probabilities = (logits / 8).softmax(-1)
    torch.manual_seed(0)
    got = llama.xla.generate(
        **models.on_device(inputs),
        **{"max_new_tokens": 1, "do_sample": True, "temperature": 8.0, "top_k": 0},
        num_return_sequences=count,
    )
    frequencies = torch.bincount(got[:, -1].cpu(), minlength=97) / count
    deviation = (probabilities * (1 - probabilities) / count).sqrt()
    assert ((frequencies - probabilities).abs() < 5 * deviation + 1e-9).all()
