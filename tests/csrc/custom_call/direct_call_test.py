"""_xla_call_custom_call_target: a kernel called without XLA, on torch's own tensors."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from testing.scripts import run_script
from testing.xla import XLAC, register_host_kernels

call = XLAC._xla_call_custom_call_target


@pytest.fixture(scope="module", autouse=True)
def kernels() -> None:
    register_host_kernels("TestEcho", "TestCopy", "TestSumDifferenceRound", "TestFail")


def count(n: int) -> bytes:
    return n.to_bytes(8, "little")


def test_operands_results_and_payload() -> None:
    a, b = torch.randn(5), torch.randn(5)
    results = [torch.empty(5), torch.empty(5), torch.empty(5, dtype=torch.int32)]
    call("TestSumDifferenceRound", "Host", [a, b], count(5), results)
    assert torch.equal(results[0], a + b)
    assert torch.equal(results[1], a - b)
    assert torch.equal(results[2], a.int())


def test_payload_of_any_bytes() -> None:
    out = torch.empty(16, dtype=torch.int64)
    payload = b'\x00\xff{"\n\x80'
    call("TestEcho", "Host", [], payload, [out])
    assert out.tolist()[: 1 + len(payload)] == [len(payload), *payload]


def test_part_of_a_tensor() -> None:
    base, out = torch.randn(4, 3), torch.zeros(4, 3)
    call("TestCopy", "Host", [base[1]], count(3), [out[2]])
    assert torch.equal(out[2], base[1])
    assert not out[[0, 1, 3]].any()


def test_empty_tensors() -> None:
    call("TestCopy", "Host", [torch.empty(0)], count(0), [torch.empty(0)])


def test_a_result_that_shares_its_memory_lazily_is_copied_first() -> None:
    original = torch.ones(3)
    clone = torch._lazy_clone(original)
    call("TestCopy", "Host", [torch.zeros(3)], count(3), [clone])
    assert original.tolist() == [1, 1, 1]
    assert clone.tolist() == [0, 0, 0]


def test_failure_of_the_kernel() -> None:
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"^TestFail: operand 1 \(b\): expected 3 elements$"):
            call("TestFail", "Host", [], b"", [])


def test_cuda_target_is_registered_and_wants_cuda_tensors() -> None:
    # The entry is found: an unknown target is another error, below.
    text = 'custom call "XlaGpuSimpleAdd": results[0] must be a CUDA tensor'
    with pytest.raises(ValueError, match=re.escape(text)):
        call("XlaGpuSimpleAdd", "CUDA", [torch.ones(1)] * 2, b"", [torch.ones(1)])


X = torch.zeros(2, 3)
REFUSED = {
    "target": (
        ("NoSuchTarget", "Host", [], b"", []),
        'no custom-call target "NoSuchTarget" is registered for "Host"; registered are: .*TestCopy',
    ),
    "platform": (("TestCopy", "CPU", [], b"", []), 'unknown platform "CPU"; known are'),
    "operand is not contiguous": (
        ("TestCopy", "Host", [X.t()], b"", [X]),
        r'custom call "TestCopy": operands\[0\] must be contiguous',
    ),
    "operand is negated": (
        ("TestCopy", "Host", [X, torch._neg_view(X)], b"", [X]),
        r"operands\[1\] must be contiguous",
    ),
    "result is not contiguous": (
        ("TestCopy", "Host", [X], b"", [X[:, 1:]]),
        r"results\[0\] must be contiguous",
    ),
    "operand is elsewhere": (
        ("TestCopy", "Host", [X.to("meta")], b"", [X]),
        r"operands\[0\] must be a dense tensor on cpu, but is on meta",
    ),
    "operand is sparse": (
        ("TestCopy", "Host", [X.to_sparse()], b"", [X]),
        r"operands\[0\] must be a dense tensor on cpu",
    ),
}


@pytest.mark.parametrize(("arguments", "text"), REFUSED.values(), ids=REFUSED)
def test_wrong_operands_are_refused(arguments: tuple, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        call(*arguments)


def test_xla_tensors_are_refused(device: torch.device) -> None:
    with pytest.raises(ValueError, match=r"operands\[0\] must be a dense tensor on cpu, but is on"):
        call("TestCopy", "Host", [X.to(device)], b"", [X])


def test_wrong_python_types() -> None:
    for arguments in (
        ("TestCopy", "Host", [1.0], b"", [X]),
        ("TestCopy", "Host", [X], "text", [X]),
    ):
        with pytest.raises(TypeError):
            call(*arguments)


def test_calls_of_several_threads() -> None:
    results = [torch.empty(1000) for _ in range(8)]

    def work(result: torch.Tensor, value: float) -> None:
        for _ in range(50):
            call("TestCopy", "Host", [torch.full((1000,), value)], count(1000), [result])

    with ThreadPoolExecutor(len(results)) as threads:
        list(threads.map(work, results, map(float, range(len(results)))))
    assert [result.unique().tolist() for result in results] == [[i] for i in range(8)]


def test_no_xla_client_is_needed() -> None:
    """PJRT_DEVICE names a device that does not exist: making a client would fail."""
    script = (
        "import torch, torch_xla\n"
        "from torch_xla_ext import ArrayType\n"
        "from xla_kernels.signature import untyped_payload\n"
        "from torch_xla_ext.registry import registration\n"
        "x, out = torch.ones(2), torch.empty(2)\n"
        "schema = registration.schema('XlaGpuSimpleAdd')\n"
        "payload = untyped_payload.pack(schema, [ArrayType.of(x)] * 3, {})\n"
        "torch_xla._XLAC._xla_call_custom_call_target(\n"
        "    'XlaGpuSimpleAdd', 'Host', [x, x], payload, [out])\n"
        "print(out.tolist())"
    )
    result = run_script(script, PJRT_DEVICE="NOWHERE")
    assert result.stdout == "[2.0, 2.0]\n", result.stderr
