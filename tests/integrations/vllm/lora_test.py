"""Requests with several LoRA adapters in one batch: the tokens are those of merged weights.

BUILD says on how many devices.
"""

import collections
import itertools
from pathlib import Path

import families
import numpy as np
import pytest
import torch
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as metrics
import transformers
from adapters import ADAPTERS, Adapter, save
from testing import programs  # before the first computation
from vllm import LLM, RequestOutput, SamplingParams
from vllm.lora.request import LoRARequest
from vllm_xla_gpu.lora import _Writer

# Phi-3's adapters have one pair of matrices for queries, keys and values, and one for gate and up.
FAMILIES = ["llama"] if families.DEVICES == 1 else ["llama", "qwen2", "phi3"]
# Another rank for Qwen2, because XLA would find Llama's programs again.
RANKS = {"llama": 8, "qwen2": 16, "phi3": 8}
SLOTS = 2  # fewer than there are adapters
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    if request.param == "phi3":
        config = families.FAMILIES["llama"].to_dict() | {"pad_token_id": 1}
        families.FAMILIES["phi3"] = transformers.Phi3Config(**config)
    return request.param


@pytest.fixture(scope="module")
def model(family: str, models: Path) -> str:
    return families.write(family, models)


@pytest.fixture(scope="module")
def adapters(model: str, tmp_path_factory: pytest.TempPathFactory) -> list[Adapter]:
    folder = tmp_path_factory.mktemp("adapters")
    return [Adapter(name, i + 1, model, folder) for i, name in enumerate(ADAPTERS)]


@pytest.fixture(scope="module")
def compiled(family: str) -> programs.Programs:
    """The programs that the engine's start compiles."""
    return programs.Programs()


@pytest.fixture(scope="module")
def llm(model: str, family: str, compiled: programs.Programs) -> LLM:
    with pytest.MonkeyPatch.context() as patch, programs.compiled() as started:
        patch.setenv("TORCH_XLA_EXT_REFUSE_GATHERS", "1")
        llm = LLM(
            model,
            dtype="float32",
            tensor_parallel_size=families.DEVICES,
            max_model_len=128,
            max_num_seqs=8,
            max_num_batched_tokens=32,
            enable_lora=True,
            max_loras=SLOTS,
            max_lora_rank=RANKS[family],
            seed=0,
        )
    compiled[:] = started
    return llm


def generate(llm: LLM, adapters: list[Adapter | None]) -> list[RequestOutput]:
    """An answer to each of the families' prompts, with the adapters in turn."""
    prompts = [{"prompt_token_ids": prompt} for prompt in families.prompts()]
    requests = [adapters[i % len(adapters)] for i in range(len(prompts))]
    return llm.generate(
        prompts, GREEDY, use_tqdm=False, lora_request=[r and r.request for r in requests]
    )


def assert_right(answer: RequestOutput, weights: str) -> None:
    _, behind, distance = families.reference(
        weights, answer.prompt_token_ids, answer.outputs[0].token_ids
    )
    assert behind < distance / families.MARGIN


def test_tokens_are_those_of_merged_weights(llm: LLM, model: str, adapters: list[Adapter]) -> None:
    compiled = metrics.metric_data("CompileTime")[0]
    of_none = [answer.outputs[0].token_ids for answer in generate(llm, [None])]
    # Two adapters at once, then the third in the slot of one of them, and the first two again.
    for used in (adapters[:2], adapters[1:], adapters[:1], [adapters[2], None], adapters[:2]):
        with_others = [*used, None] if len(used) > 1 else used
        answers = generate(llm, with_others)
        for i, answer in enumerate(answers):
            adapter = with_others[i % len(with_others)]
            assert_right(answer, adapter.merged if adapter else model)
            same = answer.outputs[0].token_ids == of_none[i]
            assert same == (adapter is None)
    assert metrics.metric_data("CompileTime")[0] == compiled


def test_a_prefix_is_not_shared_by_adapters(llm: LLM, adapters: list[Adapter]) -> None:
    prompt = {"prompt_token_ids": families.prompts()[1]}
    for adapter in (*adapters, adapters[0]):
        (answer,) = llm.generate([prompt], GREEDY, use_tqdm=False, lora_request=adapter.request)
        assert_right(answer, adapter.merged)


def test_a_step_writes_no_adapter_again(
    llm: LLM, adapters: list[Adapter], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = [answer.outputs[0].token_ids for answer in generate(llm, adapters[:2])]
    monkeypatch.setattr(_Writer, "_on_host", None)
    assert [a.outputs[0].token_ids for a in generate(llm, adapters[:2])] == first


def test_more_adapters_than_slots_at_once(llm: LLM, adapters: list[Adapter]) -> None:
    """The scheduler postpones requests whose adapters have no slot."""
    for i, answer in enumerate(generate(llm, adapters)):
        assert_right(answer, adapters[i % len(adapters)].merged)


def test_adapters_come_and_go_while_requests_run(
    llm: LLM, model: str, adapters: list[Adapter]
) -> None:
    engine = llm.llm_engine
    slots = adapter_slots(llm)
    used = [adapters[0], adapters[1], None]
    prompts = families.prompts()
    for i, prompt in enumerate(prompts):
        adapter = used[i % len(used)]
        request = adapter and adapter.request
        engine.add_request(str(i), {"prompt_token_ids": prompt}, GREEDY, lora_request=request)
    compiled = metrics.metric_data("CompileTime")[0]
    answers = []
    for step in itertools.count():
        if not engine.has_unfinished_requests():
            break
        answers += [answer for answer in engine.step() if answer.finished]
        if step == 4:
            assert sorted(slots) == [1, 2]
            engine.add_lora(adapters[2].request)  # takes the place of one that is in use
            assert 3 in slots
        elif step == 8:
            assert sorted(slots) == [1, 2]
            engine.remove_lora(1)  # which the next step loads again
            assert 1 not in slots
    assert step > 12
    assert len(answers) == len(prompts)
    assert metrics.metric_data("CompileTime")[0] == compiled
    for answer in answers:
        adapter = used[int(answer.request_id) % len(used)]
        assert_right(answer, adapter.merged if adapter else model)


def adapter_slots(llm: LLM) -> list[int | None]:
    """The numbers of the adapters that are on the device."""
    runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
    return runner._adapter_manager.lora_index_to_id


def counts() -> list[int]:
    """Programs compiled and executed so far."""
    xm.wait_device_ops()
    executed = "ExecuteTime" if families.DEVICES == 1 else "ExecuteReplicatedTime"
    return [metrics.metric_data(name)[0] for name in ("CompileTime", executed)]


def test_an_adapter_is_written_by_one_program(llm: LLM, adapters: list[Adapter]) -> None:
    """One program serves every slot, and adapters of all ranks and layers."""
    runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
    runner.lora_manager.remove_all_adapters()
    slots = set()
    for adapter in (*adapters, *adapters):
        before = counts()
        llm.llm_engine.add_lora(adapter.request)  # takes the place of another one
        assert np.subtract(counts(), before).tolist() == [0, 1]
        slots.add(adapter_slots(llm).index(adapter.request.lora_int_id))
        llm.llm_engine.add_lora(adapter.request)  # it is there
        assert np.subtract(counts(), before).tolist() == [0, 1]
    assert slots == set(range(SLOTS))


def test_adapters_are_divided_as_their_layers(
    llm: LLM, family: str, compiled: programs.Programs
) -> None:
    config, count, rank = families.FAMILIES[family], families.DEVICES, RANKS[family]
    width, inner = config.hidden_size, config.intermediate_size
    queries = width
    keys = queries * config.num_key_value_heads // config.num_attention_heads
    matrices = {
        # Matrices A of layers whose results are summed over the devices.
        *((rank, size // count) for size in (queries, inner)),
        *((size // count, rank) for size in (queries, keys, inner)),
        *((rank, width), (width, rank)),
    }
    steps = [text for text in compiled if 'custom_call_target="XlaGpuRaggedPaged' in text]
    assert len(steps) == 2  # of 16 and 32 tokens
    for program in steps:
        assert {s[2:] for s in programs.shapes(program) if s[:2] == (SLOTS, 1)} == matrices
        # The collectives of a model without adapters (tensor_parallel_test.py).
        kinds = collections.Counter(text.split()[0] for text in programs.collectives(program))
        sums = 2 * config.num_hidden_layers + 1
        assert kinds == ({"all-reduce": sums, "all-gather": 2} if count > 1 else {})
    (write,) = (t for t in compiled if t not in steps and (1, 1, rank, width) in programs.shapes(t))
    # The update of a scatter, which is padded to the number of devices, has five dimensions.
    shapes = {s for s in programs.shapes(write) if s[:2] == (SLOTS, 1) and len(s) == 4}
    assert {s[2:] for s in shapes} == matrices
    assert not programs.collectives(write)


def test_adapters_that_are_refused(llm: LLM, model: str, tmp_path: Path) -> None:
    config = transformers.AutoConfig.from_pretrained(model)
    key = "base_model.model.lm_head"
    weights = {
        f"{key}.lora_A.weight": torch.ones(4, config.hidden_size),
        f"{key}.lora_B.weight": torch.ones(config.vocab_size, 4),
    }
    save(tmp_path / "head", weights, rank=4, modules=["lm_head"])
    request = LoRARequest("head", 10, str(tmp_path / "head"))
    with pytest.raises(ValueError, match=r"target modules in .* but received .'lm_head'"):
        llm.llm_engine.add_lora(request)
    with pytest.raises(ValueError, match="enable_lora_bias; leave it out, or merge the adapter"):
        LLM(model, enable_lora=True, enable_lora_bias=True, max_num_seqs=8)
