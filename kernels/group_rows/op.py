"""Sort rows by group, as MoE layers need it."""

import torch

from xla_kernels import define_operator

__all__ = ["group_rows"]

define_operator(
    "xla_gpu::group_rows(Tensor groups, int num_groups) -> (Tensor, Tensor, Tensor)",
    target="XlaGpuGroupRows",
    environment=(),
    sharding_rule="_ -> _, _, _ _",
)


def group_rows(
    groups: torch.Tensor, num_groups: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sort rows by group: ``torch.ops.xla_gpu.group_rows``.

    The sort is stable. Rows whose group is not in ``range(num_groups)`` come last. Pass the
    resulting ranges to `grouped_matmul`.

    Args:
        groups: int32 [num_rows], each row's group.
        num_groups: 1 to 1024.

    Returns:
        order: int32 [num_rows], the rows in the order of their groups.
        position: int32 [num_rows], each row's index in `order`.
        ranges: int32 [num_groups, 2]: the begin and the end of each group in `order`.

    Raises:
        TypeError, ValueError: an argument has an unsupported or mismatched dtype, shape or value.

    Example:
        >>> order, position, ranges = group_rows(torch.tensor([2, 0, 2, 0]).int().to("xla"), 3)
        >>> order.cpu(), position.cpu()
        (tensor([1, 3, 0, 2], dtype=torch.int32), tensor([2, 0, 3, 1], dtype=torch.int32))
        >>> ranges.cpu()
        tensor([[0, 2],
                [2, 2],
                [2, 4]], dtype=torch.int32)
    """
    return torch.ops.xla_gpu.group_rows(groups, num_groups)
