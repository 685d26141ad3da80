"""group_rows against PyTorch's stable sort, on the CPU or a GPU."""

import pytest
import torch

from torch_xla_ext.ops import group_rows


def check(groups: torch.Tensor, num_groups: int, device: torch.device) -> None:
    order, position, ranges = (r.cpu() for r in group_rows(groups.to(device), num_groups))
    numbers = torch.where((groups >= 0) & (groups < num_groups), groups, num_groups)
    right = numbers.argsort(stable=True)
    ends = torch.bincount(numbers, minlength=num_groups + 1).cumsum(0)[:num_groups]
    assert torch.equal(order, right.int())
    assert torch.equal(position, right.argsort().int())
    assert torch.equal(ranges[:, 1], ends.int())
    assert torch.equal(ranges[:, 0], torch.cat([torch.zeros(1), ends[:-1]]).int())


@pytest.mark.parametrize("num_groups", [1, 2, 8, 33, 128, 1024])
@pytest.mark.parametrize("rows", [0, 1, 8, 512, 1023, 1024, 1025, 5000, 70000])
def test_random_groups(device: torch.device, rows: int, num_groups: int) -> None:
    check(torch.randint(num_groups, (rows,), dtype=torch.int32), num_groups, device)


def test_one_group_has_all_rows(device: torch.device) -> None:
    for group in (0, 7, 63):
        check(torch.full((3000,), group, dtype=torch.int32), 64, device)


def test_rows_of_no_group(device: torch.device) -> None:
    check(torch.randint(-3, 12, (3000,), dtype=torch.int32), 8, device)
    check(torch.tensor([-(2**31), 2**31 - 1, 0, -1, 4], dtype=torch.int32), 4, device)


def test_wrong_arguments(device: torch.device) -> None:
    groups = torch.zeros(4, dtype=torch.int32, device=device)
    for num_groups in (0, 1025):
        with pytest.raises(ValueError, match="num_groups"):
            group_rows(groups, num_groups)
    with pytest.raises(TypeError, match=r"operand 0 \(groups\): expected dtype S32"):
        group_rows(groups.long(), 4)
