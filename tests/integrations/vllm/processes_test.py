"""Several processes with one engine: their comparison of values, and engines in two processes.

On CPUs torch_xla's clients are not connected, so each process computes everything itself.
"""

import datetime
import json
import os
import re
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import families
import numpy as np
import pytest
import torch
import vllm_command
from testing.scripts import run_program, start_script
from torch.distributed import PrefixStore, TCPStore
from vllm import SamplingParams
from vllm_xla_gpu.processes import Peers, ProcessesError, fingerprint

TIMEOUT = 1.0


class _Processes:
    """Threads that stand for processes, each with its own connection to one store."""

    def __init__(self, count: int) -> None:
        def connect(is_first: bool, port: int = 0) -> TCPStore:
            return TCPStore("localhost", port, is_master=is_first, wait_for_workers=False)

        self.stores = [connect(True)]
        self.stores += [connect(False, self.stores[0].port) for _ in range(1, count)]
        self.peers = [
            Peers(rank, count, PrefixStore("engine", store), TIMEOUT)
            for rank, store in enumerate(self.stores)
        ]

    def run(self, function: Callable[[Peers, int], object], ranks: list[int]) -> list[object]:
        """The result or the error of the function in each rank."""

        def call(rank: int) -> object:
            try:
                return function(self.peers[rank], rank)
            except ProcessesError as error:
                return str(error)

        with ThreadPoolExecutor(len(ranks)) as threads:
            return list(threads.map(call, ranks))


@pytest.fixture
def three() -> Iterator[_Processes]:
    result = _Processes(3)
    yield result
    for peers in result.peers:
        peers._leave()


ALL = [0, 1, 2]


def test_values_of_all(three: _Processes) -> None:
    turns = range(200)  # processes wait for the values only
    expected = [[f"{turn} of {rank}" for rank in ALL] for turn in turns]
    told = three.run(lambda p, rank: [p.gather(f"{turn} of {rank}") for turn in turns], ALL)
    assert told == [expected] * 3
    assert three.run(lambda p, rank: p.least(700 - rank), ALL) == [698] * 3


def test_the_store_does_not_grow(three: _Processes) -> None:
    def turns(count: int) -> int:
        for _ in range(count):
            three.run(lambda p, _: p.gather("x"), ALL)
        return three.stores[0].num_keys()

    assert turns(30) == turns(3)


def test_settings_that_differ(three: _Processes) -> None:
    def check(peers: Peers, rank: int) -> None:
        peers.check_same({"max_num_seqs": 8 + rank // 2, "dtype": "float32"}, "Be equal")

    text = (
        "the 3 processes of this engine differ: max_num_seqs: 8 for rank 0, but 9 for rank 2. "
        "Be equal"
    )
    assert three.run(check, ALL) == [text] * 3


def test_a_process_that_does_not_come(three: _Processes) -> None:
    begin = time.monotonic()
    texts = three.run(lambda p, _: p.gather(""), [0, 2])
    assert TIMEOUT <= time.monotonic() - begin < TIMEOUT + 5
    for text in texts:
        assert text.startswith("rank 1 did not reach step 1 of this engine within 1 s (VLLM_XLA_")


@pytest.mark.parametrize("gone", [0, 2])
def test_a_process_that_has_ended(three: _Processes, gone: int) -> None:
    for peers in three.peers:
        peers._timeout = 300
    three.peers[gone]._leave()
    texts = three.run(lambda p, _: p.gather(""), [rank for rank in ALL if rank != gone])
    assert all(text.startswith(f"rank {gone} has exited, but the engine needs") for text in texts)


def test_a_store_that_is_gone() -> None:
    """This happens when rank 0 is killed."""
    code = "import sys, time; from torch.distributed import TCPStore\n"
    code += "store = TCPStore('localhost', 0, is_master=True, wait_for_workers=False)\n"
    code += "print(store.port, flush=True); time.sleep(600)"
    reading, writing = os.pipe()
    with open(reading) as told, open(writing, "w") as out:
        server = start_script(code, out, out)
        port = int(told.readline())
    store = TCPStore("localhost", port, timeout=datetime.timedelta(seconds=60))
    peers = Peers(1, 2, store, 300)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(peers.gather, "")
        time.sleep(0.3)
        assert not waiting.done()
        server.kill()
        with pytest.raises(ProcessesError, match="store is gone, and with it rank 0, or torchrun"):
            waiting.result(timeout=60)
    server.wait()


# Differences between two processes in one step, and a part of the error.
STEPS = {
    "nothing": None,
    "prompt": r"new requests: 1 prompts of 3 tokens in all \(\w+\) for rank 0, but 1 prompts ",
    "parameters": "sampling parameters: ",
    "adapter": "adapters: ",
    "priority": "priorities: ",
    "tokens": "results of earlier steps: ",
    "batch": r"batch: 3 tokens of 1 sequences \(\w+\) for rank 0, but 3 tokens",
    "grammar": r"batch: 3 tokens of 1 sequences",
}


@pytest.mark.parametrize(("what", "text"), STEPS.items())
def test_steps(three: _Processes, what: str, text: str | None) -> None:
    def check(peers: Peers, rank: int) -> None:
        is_other = rank == 1
        bias = {5: 1.0, 7: 2.0 if is_other and what == "parameters" else 3.0}
        adapter = "b" if is_other and what == "adapter" else "a"
        request = types.SimpleNamespace(
            request_id="0",
            prompt_token_ids=[1, 2, 4 if is_other and what == "prompt" else 3],
            sampling_params=SamplingParams(logit_bias=bias),
            lora_request=types.SimpleNamespace(lora_name=adapter, lora_int_id=1),
            priority=int(is_other and what == "priority"),
        )
        mask = np.array([is_other and what == "grammar"])
        output = types.SimpleNamespace(
            added=(request,),
            total_num_scheduled_tokens=3,
            num_scheduled_tokens={"0": 3},
            grammar_bitmask=mask,
        )
        packed = np.arange(8, dtype=np.int32)
        packed[5] += is_other and what == "batch"
        peers.note(b"b" if is_other and what == "tokens" else b"a")
        peers.check_step(output, packed)

    told = three.run(check, ALL)
    assert len(set(told)) == 1
    if text is None:
        assert told[0] is None
    else:
        assert re.search(f"processes of this engine differ: {text}", told[0])
        assert told[0].endswith("same prompts and parameters, in the same order")


def test_fingerprint_of_weights() -> None:
    torch.manual_seed(0)
    weights = [torch.randn(8, 3).bfloat16(), torch.randn(4), torch.ones(3, dtype=torch.bool)]
    expected = fingerprint(weights)
    assert fingerprint([weight.clone() for weight in weights]) == expected
    for weight in weights:
        before = weight.clone()
        weight.view(-1)[-1] = 0
        assert fingerprint(weights) != expected
        weight.copy_(before)
    assert fingerprint([weights[0].view(3, 8), *weights[1:]]) != expected
    assert fingerprint(weights) == expected


def test_programs_that_not_all_have(tmp_path: Path) -> None:
    two = _Processes(2)
    for rank, names in enumerate(("ab", "bc")):
        folder = tmp_path / f"rank{rank}of2"
        folder.mkdir()
        for name in names:
            (folder / name).touch()
    folders = two.run(lambda p, _: p.program_folder(str(tmp_path)), [0, 1])
    assert folders == [str(tmp_path / "rank0of2"), str(tmp_path / "rank1of2")]
    assert [[file.name for file in Path(folder).iterdir()] for folder in folders] == [["b"], ["b"]]


def _launch(model: str, how: str) -> list[subprocess.CompletedProcess]:
    """Runs the program in two processes, with torchrun's environment variables."""
    port = str(vllm_command.free_port())
    common = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}
    program = Path(__file__).with_name("launched.py")

    def start(rank: int) -> subprocess.CompletedProcess:
        ranks = {"RANK": str(rank), "LOCAL_RANK": str(rank), "XLA_COORDINATOR_PORT": port}
        return run_program(program, model, how, **common | ranks)

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(start, range(2)))


def test_engines(models: Path) -> None:
    """The tokens are right and equal in both processes; different prompts are an error."""
    results = _launch(families.write("llama", models), "prompts")
    told = []
    for result in results:
        assert result.returncode == 1, result.stdout + result.stderr
        assert "differ: new requests: 7 prompts of 212 tokens" in result.stderr
        (line,) = re.findall("^TOLD (.*)", result.stdout, re.M)
        told.append(json.loads(line))
    assert told[0] == told[1]
    _, answers = told[0]
    for answer in answers[2::3]:
        assert answer in ([7, 0], [9, 0])


def test_engines_with_other_settings(models: Path) -> None:
    results = _launch(families.write("llama", models), "settings")
    for result in results:
        assert result.returncode == 1, result.stdout + result.stderr
        assert "engine differ: max_num_seqs: 8 for rank 0, but 16 for rank 1" in result.stderr
        assert "Loading safetensors" not in result.stderr


def test_torchrun() -> None:
    """The example runs with the torchrun command of docs/vllm.md."""
    result = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"),
            f"--master-port={vllm_command.free_port()}",
            *("examples/vllm/offline.py", "--tensor-parallel-size=2"),
        ],
        env=os.environ | {"CPU_NUM_DEVICES": "2"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    lines = re.findall(r"^w\d+.* ->( w\d+)+$", result.stdout, re.M)
    assert len(lines) == 4  # of one process
    assert re.search(r"^48 tokens of 4 prompts; programs compiled since: 0$", result.stdout, re.M)
