"""Copy batches of named tuples, and with a sharding for each key, to a device.

Upstream, named tuples become lists, and only loaders accept a dict of shardings.
"""

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
    """Replace _for_each_instance_rewrite, which makes a list of a named tuple."""

    @functools.wraps(original)
    def rewrite_each(
        value: object,
        select_fn: Callable[[object], bool],
        fn: Callable[[object], object],
        rwmap: dict[int, object],
    ) -> object:
        if not (isinstance(value, tuple) and hasattr(value, "_fields")):
            return original(value, select_fn, fn, rwmap)
        return type(value)(*(rewrite_each(one, select_fn, fn, rwmap) for one in value))

    return rewrite_each
