"""Recurrent layers, with sequences of equal length and with packed sequences."""

import pytest
import torch
import torch_xla  # which also replaces torch.nn.GRU
from torch.nn.modules import rnn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

LAYERS = [rnn.RNN, rnn.LSTM, rnn.GRU, torch.nn.GRU]
OPTIONS = [{}, {"bidirectional": True}, {"num_layers": 2, "batch_first": True}]


def numbers(
    layer: type[rnn.RNNBase], options: dict, lengths: list[int] | None, device: str
) -> list[torch.Tensor]:
    """The results and gradients of a layer."""
    torch.manual_seed(0)
    module = layer(3, 4, **options).to(device)
    batch_first = module.batch_first
    x = torch.randn(2, 5, 3).to(device)
    x = (x if batch_first else x.mT.permute(2, 0, 1).contiguous()).requires_grad_()
    if lengths is None:
        result, state = module(x)
    else:
        packed = pack_padded_sequence(
            x, torch.tensor(lengths), batch_first, enforce_sorted=lengths == sorted(lengths)[::-1]
        )
        packed_result, state = module(packed)
        result, found = pad_packed_sequence(packed_result, batch_first)
        assert found.tolist() == lengths
    result.square().sum().backward()
    gradients = [parameter.grad for parameter in module.parameters()]
    return [result, *torch.utils._pytree.tree_leaves(state), x.grad, *gradients]


@pytest.mark.parametrize("lengths", [None, [5, 3], [3, 5]])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("layer", LAYERS)
def test_results_and_gradients_are_the_cpus(
    layer: type[rnn.RNNBase], options: dict, lengths: list[int] | None
) -> None:
    expected = numbers(layer, options, lengths, "cpu")
    got = numbers(layer, options, lengths, "xla")
    torch_xla.sync()  # one program for all of them
    torch.testing.assert_close(got, expected, check_device=False, rtol=1e-4, atol=1e-5)
