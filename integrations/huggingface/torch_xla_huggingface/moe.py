"""Run MoE layers of transformers without reading on the host which experts have tokens.

A block loops over its experts. ``torch.where(mask)`` finds an expert's tokens, whose number only
the device knows; the expert computes these rows, and `index_add_` adds the results times the
router's weights. So each layer would wait for the device, and almost each step would compile
programs.

Here the tokens are sorted by expert, and each expert computes its own (grouped_experts.py). Where
that is not possible, every expert computes all tokens (masked_experts.py). The results are the
same, and no shape depends on what the router chooses. A block's functions stay transformers'; only
the results of `one_hot`, `where` and `nonzero` are replaced.
"""

import functools
import logging
from types import FunctionType

import torch_xla
from torch import Tensor, nn
from torch._C._dynamo import eval_frame  # not Dynamo, which takes a second to import

from torch_xla_huggingface.grouped_experts import FewRows, GroupedExperts
from torch_xla_huggingface.masked_experts import MaskedExperts
from torch_xla_huggingface.stand_ins import Unknown

_log = logging.getLogger("torch_xla_ext.moe")
# Functions that add the rows of one expert after another call these names.
_CALLED = {"where", "one_hot", "index_add_"}
_MARK = "_torch_xla_ext_moe"

# _masked: functions whose experts differ from each other or mix rows. _slow: functions whose use of
# the indices is not supported.
_masked: set[FunctionType] = set()
_slow: set[FunctionType] = set()
# Functions whose one-hot choices have one class more than there are experts. No token has this
# class, so that the loop needs no check.
_with_another_class: set[FunctionType] = set()


def _lazily(function: FunctionType, args: tuple, kwargs: dict[str, object]) -> object:
    """Call a block's function without reading indices on the host."""
    try:
        return _call(function, args, kwargs)
    except IndexError:
        if function in _with_another_class:
            raise
    _with_another_class.add(function)
    try:
        return _call(function, args, kwargs)
    except IndexError:
        _with_another_class.discard(function)
        raise


def _call(function: FunctionType, args: tuple, kwargs: dict[str, object]) -> object:
    skips_last = function in _with_another_class
    # Each of several devices may have its own tokens, but grouped rows mix those of all devices.
    if function not in _masked and not torch_xla.runtime.is_spmd():
        try:
            with GroupedExperts(skips_last) as mode:
                result = function(*args, **kwargs)
                mode.finish()
                return result
        except FewRows:
            pass
        except (Unknown, TypeError) as error:
            _masked.add(function)
            _log.info(
                "%s runs every expert on all tokens, because its use of the tokens' indices is not "
                "supported: %s",
                function.__qualname__,
                error,
            )
    if function not in _slow:
        try:
            with MaskedExperts(skips_last):
                return function(*args, **kwargs)
        except (Unknown, TypeError) as error:
            _slow.add(function)
            _log.warning(
                "%s waits for the device and compiles new programs in almost every step: its use "
                "of the indices of an expert's tokens is not supported: %s",
                function.__qualname__,
                error,
            )
    return function(*args, **kwargs)


# Dynamo's graph ends here, as it does at the block's loop, and called functions are not compiled.
_lazily._torchdynamo_disable = True
_skip = eval_frame._FrameAction.SKIP
eval_frame.set_code_exec_strategy(_lazily.__code__, eval_frame._FrameExecStrategy(_skip, _skip))


def without_reads(function: FunctionType) -> FunctionType:
    """Return a replacement for a block's function that loops over experts.

    The replacement does not read tensors' values on the host. Other functions are returned
    unchanged.
    """
    if not set(function.__code__.co_names) >= _CALLED:
        return function

    @functools.wraps(function)
    def replacement(*args: object, **kwargs: object) -> object:
        given = [*args, *kwargs.values()]
        if any(isinstance(x, Tensor) and x.device.type == "xla" for x in given):
            return _lazily(function, args, kwargs)
        return function(*args, **kwargs)

    setattr(replacement, _MARK, True)
    return replacement


def are_in(model: nn.Module) -> bool:
    """Return whether a model has blocks whose functions were replaced."""
    kinds = {kind for part in model.modules() for kind in type(part).__mro__}
    return any(hasattr(f, _MARK) for kind in kinds for f in vars(kind).values())
