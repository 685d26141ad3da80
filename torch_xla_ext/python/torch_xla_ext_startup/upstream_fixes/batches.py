"""Copy batches of tuples and dict-like classes, and with a sharding for each key, to a device.

Upstream, tuples become lists and subclasses of dict become dicts, and only loaders accept a dict of
shardings.
"""

import copy
import functools
from collections.abc import Callable

import torch


def check_shardings(shardings: object) -> None:
    """Raise a TypeError unless this is a ShardingSpec or a dict of them."""
    for spec in shardings.values() if isinstance(shardings, dict) else [shardings]:
        if spec is not None and not hasattr(spec, "xla_spec"):
            raise TypeError(
                "input_sharding must be a ShardingSpec for all tensors of a batch or, if a batch "
                f"is a dict, a dict with a ShardingSpec for each key; got {type(spec).__name__}"
            )


def send(original: Callable[..., object]) -> Callable[..., object]:
    """Replace send_cpu_data_to_device, which refused a dict of shardings."""

    @functools.wraps(original)
    def send_cpu_data_to_device(
        datas: object, device: str | torch.device, input_sharding: object = None
    ) -> object:
        check_shardings(input_sharding)
        if not isinstance(input_sharding, dict):
            return original(datas, device, input_sharding)
        if not isinstance(datas, dict) or datas.keys() - input_sharding.keys():
            given = list(datas) if isinstance(datas, dict) else type(datas).__name__
            raise ValueError(
                f"input_sharding has the keys {list(input_sharding)}, so the data must be a dict "
                f"with some of these keys; got {given}"
            )
        return {
            key: original([data], device, input_sharding[key])[0] for key, data in datas.items()
        }

    return send_cpu_data_to_device


def rewrite(original: Callable[..., object]) -> Callable[..., object]:
    """Replace _for_each_instance_rewrite; tuples and subclasses of dict keep their types."""

    @functools.wraps(original)
    def rewrite_each(
        value: object,
        select_fn: Callable[[object], bool],
        fn: Callable[[object], object],
        rwmap: dict[int, object],
    ) -> object:
        if type(value) is tuple or (isinstance(value, tuple) and hasattr(value, "_fields")):
            elements = [rewrite_each(one, select_fn, fn, rwmap) for one in value]
            return tuple(elements) if type(value) is tuple else type(value)(*elements)
        if isinstance(value, dict) and type(value) is not dict and id(value) not in rwmap:
            rwmap[id(value)] = result = copy.copy(value)  # also its attributes, as default_collate
            for key in value:
                result[key] = rewrite_each(value[key], select_fn, fn, rwmap)
            return result
        return original(value, select_fn, fn, rwmap)

    return rewrite_each
