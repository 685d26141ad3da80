"""A call's hash covers everything that changes what runs.

Upstream torch_xla 2.8.1 hashes only the target's name: the second of two calls that differ only in
their payload runs the first one's program.
"""

import pytest
import torch
from testing.xla import XLAC, graph_hash, register_host_kernels

GPU_CALL = {
    "payload": b"a",
    "output_shapes": [[16]],
    "output_dtypes": [torch.int64],
    "target": "TestEcho",
}
CUSTOM_CALL = {
    "target": "TestEchoSingle",
    "output_shapes": [[16]],
    "output_dtypes": [torch.int64],
    "has_side_effect": False,
    "backend_config": "a",
    "api_version": 3,
    "frontend_attributes": {"k": "v"},
}


@pytest.fixture(scope="module", autouse=True)
def kernels() -> None:
    register_host_kernels("TestEcho", "TestEchoSingle")


@pytest.fixture
def operand(device: torch.device) -> torch.Tensor:
    return torch.zeros(1).to(device)


def gpu_call_hash(operand: torch.Tensor, **changes: object) -> str:
    return graph_hash(*XLAC._xla_gpu_custom_call([operand], **{**GPU_CALL, **changes}))


def custom_call_hash(operand: torch.Tensor, **changes: object) -> str:
    return graph_hash(*XLAC._xla_custom_call([operand], **{**CUSTOM_CALL, **changes}))


GPU_CHANGES = [
    {"payload": b"b"},
    {"payload": b""},
    {"payload": b"a\0"},
    {"target": "TestEcho2"},
    {"target": "triton_kernel_call"},
    {"payload": b"o", "target": "TestEch"},
    {"output_shapes": [[4, 4]]},
    {"output_dtypes": [torch.float64]},
]
# Layouts of a call with two results, the first of which is 4 by 4.
LAYOUT_CHANGES = [
    {"result_layouts": {0: (0, 1)}},
    {"result_layouts": {0: (1, 0)}},
    {"num_hidden_results": 1},
]
CUSTOM_CHANGES = [
    {"target": "TestEchoSingle2"},
    {"backend_config": "b"},
    {"backend_config": ""},
    {"api_version": 2},
    {"has_side_effect": True},
    {"frontend_attributes": {}},
    {"frontend_attributes": {"k": "w"}},
    {"frontend_attributes": {"l": "v"}},
    {"frontend_attributes": {"k": "v", "l": "w"}},
    {"output_shapes": [[4, 4]]},
]


def test_equal_gpu_calls_have_equal_hashes(operand: torch.Tensor) -> None:
    assert gpu_call_hash(operand) == gpu_call_hash(operand)


@pytest.mark.parametrize("changes", GPU_CHANGES, ids=str)
def test_different_gpu_calls_have_different_hashes(
    operand: torch.Tensor, changes: dict[str, object]
) -> None:
    assert gpu_call_hash(operand, **changes) != gpu_call_hash(operand)


def test_calls_with_other_layouts_or_hidden_results_have_different_hashes(
    operand: torch.Tensor,
) -> None:
    results = {"output_shapes": [[4, 4], [1]], "output_dtypes": [torch.int64] * 2}
    hashes = {gpu_call_hash(operand, **results, **changes) for changes in [{}, *LAYOUT_CHANGES]}
    assert len(hashes) == 1 + len(LAYOUT_CHANGES)


def test_equal_custom_calls_have_equal_hashes(operand: torch.Tensor) -> None:
    assert custom_call_hash(operand) == custom_call_hash(operand)


def test_the_order_of_frontend_attributes_does_not_matter(operand: torch.Tensor) -> None:
    one = custom_call_hash(operand, frontend_attributes={"k": "v", "l": "w"})
    other = custom_call_hash(operand, frontend_attributes={"l": "w", "k": "v"})
    assert one == other


@pytest.mark.parametrize("changes", CUSTOM_CHANGES, ids=str)
def test_different_custom_calls_have_different_hashes(
    operand: torch.Tensor, changes: dict[str, object]
) -> None:
    assert custom_call_hash(operand, **changes) != custom_call_hash(operand)


def test_gpu_calls_that_differ_in_payload_give_their_own_results(operand: torch.Tensor) -> None:
    for payload in (b"first", b"second", b"first"):
        result = XLAC._xla_gpu_custom_call([operand], **{**GPU_CALL, "payload": payload})
        echoed = result[0].cpu().tolist()
        assert bytes(echoed[1 : 1 + echoed[0]]) == payload


def test_custom_calls_that_differ_in_backend_config_give_their_own_results(
    operand: torch.Tensor,
) -> None:
    for config in ("first", "second", "first"):
        result = XLAC._xla_custom_call([operand], **{**CUSTOM_CALL, "backend_config": config})
        echoed = result[0].cpu().tolist()
        assert bytes(echoed[1 : 1 + echoed[0]]).decode() == config


def test_two_different_calls_in_one_graph(operand: torch.Tensor) -> None:
    one, other = (
        XLAC._xla_gpu_custom_call([operand], **{**GPU_CALL, "payload": payload})[0]
        for payload in (b"ab", b"cde")
    )
    assert (one + other).cpu().tolist()[0] == 5
