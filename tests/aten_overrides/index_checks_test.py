"""torch_xla_ext.debug.check_indices: indices that are out of range are errors."""

from collections.abc import Callable

import pytest
import torch

from torch_xla_ext.debug import check_indices

functional = torch.nn.functional


def _at(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, device="xla")


def _x() -> torch.Tensor:
    return torch.arange(12.0).view(3, 4).to("xla")


def _put() -> None:
    x = _x()
    x[_at(0, 3)] = 1.0


WRONG: dict[str, tuple[Callable[[], object], str, int, int, int]] = {
    # what is called, its name, the index, the dimension and its size
    "gather": (lambda: _x().gather(1, _at(0, 4).view(1, 2)), "gather", 4, 1, 4),
    "gather negative": (lambda: _x().gather(0, _at(-1).view(1, 1)), "gather", -1, 0, 3),
    "x[i]": (lambda: _x()[_at(3)], "__getitem__", 3, 0, 3),
    "x[:, i]": (lambda: _x()[:, _at(1, -5)], "__getitem__", -5, 1, 4),
    "x[i] = y": (_put, "__setitem__", 3, 0, 3),
    "index_select": (lambda: _x().index_select(-1, _at(7)), "index_select", 7, 1, 4),
    "embedding": (lambda: functional.embedding(_at(0, 3), _x()), "embedding", 3, 0, 3),
    "embedding_bag": (
        lambda: functional.embedding_bag(_at(0, 3), _x(), _at(0)),
        "embedding_bag",
        3,
        0,
        3,
    ),
    "scatter": (lambda: _x().scatter(1, _at(4).view(1, 1), 1.0), "scatter", 4, 1, 4),
    "scatter_": (lambda: _x().scatter_(1, _at(4).view(1, 1), 1.0), "scatter", 4, 1, 4),
    "scatter_add": (
        lambda: _x().scatter_add(0, _at(9).view(1, 1), _x()[:1, :1]),
        "scatter_add",
        9,
        0,
        3,
    ),
    "index_add_": (lambda: _x().index_add_(0, _at(3), _x()[:1]), "index_add", 3, 0, 3),
    "masked_scatter": (
        lambda: _x().masked_scatter(_x()[0] > 1, _x()[0]),
        "masked_scatter",
        4,
        0,
        4,
    ),
    "one_hot": (lambda: functional.one_hot(_at(0, 3), 3), "one_hot", 3, 1, 3),
    "take": (lambda: _x().take(_at(12)), "take", 12, 0, 12),
    "cross_entropy": (
        lambda: functional.cross_entropy(_x(), _at(0, 4, -100)),
        "cross_entropy",
        4,
        1,
        4,
    ),
}


@pytest.mark.parametrize("call", WRONG)
def test_an_index_out_of_range_is_an_error(call: str) -> None:
    function, name, index, dim, size = WRONG[call]
    message = f"index {index} is out of range for dimension {dim} of size {size} "
    with check_indices(), pytest.raises(IndexError, match=message) as caught:
        function()
    assert str(caught.value).startswith(name)
    function()  # and not outside of the context


def test_the_error_names_the_position() -> None:
    with check_indices(), pytest.raises(IndexError, match=r"at \[1, 1\] of the indices; 2 of 6 "):
        functional.embedding(_at(0, 1, 2, 0, -1, 9).view(2, 3), _x())


def test_indices_in_range_are_as_without() -> None:
    def results() -> list[torch.Tensor]:
        x = _x().requires_grad_()
        y = x[_at(-1, 0)] * 2 + x.gather(0, _at(2, 1).view(2, 1))
        table = functional.embedding(_at(0, 2), x)
        loss = functional.cross_entropy(y + table, _at(3, -100))
        loss = (
            loss + (functional.one_hot(_at(0, 3), 4) * y).sum() + functional.one_hot(_at(1)).sum()
        )
        loss.backward()
        z = _x()
        z[_at(-3, 1), _at(0, 3)] = 5.0
        z[z > 6] = 0.0
        z[:, None, _at(2)] += 1
        return [y.detach().cpu(), x.grad.cpu(), z.cpu()]

    expected = results()
    with check_indices():
        found = results()
    torch.testing.assert_close(found, expected)


def test_calls_inside_of_modules() -> None:
    table = torch.nn.Embedding(3, 2).to("xla")
    with check_indices():
        table(_at(0, 2)).sum().backward()
        with pytest.raises(IndexError, match="embedding: index 3"):
            table(_at(3))
    assert table.weight.grad.cpu().tolist() == [[1, 1], [0, 0], [1, 1]]


def test_subscripts() -> None:
    x = torch.zeros(2, 3, 4, 5, device="xla")
    mask = torch.ones(2, 3, dtype=torch.bool, device="xla")
    right = [
        lambda: x[..., _at(4), None],
        lambda: x[mask, _at(3)],
        lambda: x[:, None, _at(2), ..., 4],
        lambda: x[mask, ..., _at(-5)],
        lambda: torch.take_along_dim(x, _at(4).view(1, 1, 1, 1), 3),
        lambda: x.index_put((_at(1), _at(-3)), torch.ones((), device="xla")),
        lambda: x[1, torch.tensor([2])],
    ]
    wrong = [
        (lambda: x[..., _at(5), None], "dimension 3 of size 5"),
        (lambda: x[mask, _at(4)], "dimension 2 of size 4"),
        (lambda: x[:, None, _at(3), ..., 4], "dimension 1 of size 3"),
        (lambda: x[mask, ..., _at(-6)], "dimension 3 of size 5"),
        (lambda: torch.take_along_dim(x, _at(5).view(1, 1, 1, 1), 3), "dimension 3 of size 5"),
        (
            lambda: x.index_put((_at(1), _at(3)), torch.ones((), device="xla")),
            "dimension 1 of size 3",
        ),
    ]
    with check_indices():
        for function in right:
            function()
        for function, message in wrong:
            with pytest.raises(IndexError, match=message):
                function()


def test_tensors_on_the_cpu_are_pytorchs() -> None:
    with check_indices(), pytest.raises(IndexError, match="index 3 is out of bounds"):
        torch.arange(3.0)[torch.tensor([3])]
