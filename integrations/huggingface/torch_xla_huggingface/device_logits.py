"""Keep logits on the device until something other than their argmax is needed.

A greedy loop without processors only calls `argmax` on each token's logits, which the device has
computed. Copying, converting and searching them on the host takes longer than a step on the device.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

_aten = torch.ops.aten
# Methods that read memory or return a host object without an operator.
_READS = {
    *("__array__", "__deepcopy__", "__reduce_ex__"),
    *("data_ptr", "numpy", "tolist", "untyped_storage"),
}


@dataclasses.dataclass
class _Values:
    """Logits that several views share.

    Attributes:
        best: [batch], the largest value's index, on the device.
        copy: copies the values from the device.
        host: the values, once they are copied.
        owner: what keeps the memory on the device.
    """

    best: torch.Tensor
    copy: Callable[[], torch.Tensor]
    host: torch.Tensor | None = None
    owner: object = None


class DeviceLogits(torch.Tensor):
    """A host tensor for code that uses it, whose values stay on the device as long as possible.

    It is [batch, 1, vocabulary], or its last row, [batch, vocabulary].

    Full slices, the last row, copies in float32 and the argmax along the vocabulary do not copy
    values to the host. All other operations do, once.

    Args:
        logits: [batch, 1, vocabulary], on the device.
        best: [batch], the largest value's index, on the device.
        owner: as long as this object exists, nothing writes to the two tensors.
    """

    @staticmethod
    def __new__(
        cls: type, logits: torch.Tensor, best: torch.Tensor, owner: object = None
    ) -> DeviceLogits:
        values = _Values(best, logits.cpu, owner=owner)
        return DeviceLogits._of(values, logits.shape, logits.dtype)

    def __init__(self, *_: object, **__: object) -> None:
        pass

    @classmethod
    def _of(
        cls, values: _Values, shape: Sequence[int], dtype: torch.dtype, is_row: bool = False
    ) -> DeviceLogits:
        self = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype)
        self._shared, self._is_row = values, is_row
        return self

    def on_host(self) -> torch.Tensor:
        """Return the values; writes to them are kept."""
        if self._shared.host is None:
            self._shared.host = self._shared.copy()
        return self._part(self._shared.host)

    def _part(self, values: torch.Tensor) -> torch.Tensor:
        return values[:, 0] if self._is_row else values

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in _READS:
            return func(*_with_values(args), **_with_values(kwargs or {}))
        with torch._C.DisableTorchFunctionSubclass():  # results have their own classes
            return func(*args, **kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self = args[0] if args else None
        if isinstance(self, cls) and self._shared.host is None:
            result = self._without_values(func, args[1:], kwargs)
            if result is not None:
                return result
        return func(*_with_values(args), **_with_values(kwargs))

    def _without_values(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> torch.Tensor | None:
        shared, shape, dtype = self._shared, self.shape, self.dtype
        if func is _aten.argmax.default and args == (-1,) and not kwargs:
            return shared.best.cpu().reshape(shape[:-1])
        if func in (_aten.alias.default, _aten.detach.default):
            return self._of(shared, shape, dtype, self._is_row)
        if func is _aten.slice.Tensor and _is_whole(shape[args[0]], *args[1:]):
            return self._of(shared, shape, dtype, self._is_row)
        if func is _aten.select.int and args[0] == 1 and self.dim() == 3:
            return self._of(shared, shape[::2], dtype, is_row=True)
        if func is _aten._to_copy.default and kwargs.keys() <= {"dtype", "device"}:
            to, device = kwargs.get("dtype") or dtype, kwargs.get("device") or self.device
            if to in (dtype, torch.float32) and device.type == "cpu":
                values = _Values(shared.best, lambda: self._part(shared.copy()).to(to, copy=True))
                return self._of(values, shape, to)
        return None


def _is_whole(size: int, begin: int = 0, end: int | None = None, step: int = 1) -> bool:
    return begin == 0 and step == 1 and (end is None or end >= size)


def _with_values(tree: Any) -> Any:
    return pytree.tree_map_only(DeviceLogits, DeviceLogits.on_host, tree)
