"""Programs that write the new values of tensors into these tensors' buffers.

A captured step is one (torch_xla_ext.capture), and so is a graph of torch.compile (compiled_graph).
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch
import torch_xla
from torch_xla import runtime
from torch_xla.utils.buffer_donor_context import alias_with_buffer_donor_config

_XLAC = torch_xla._XLAC


def keep_shardings(written: Sequence[torch.Tensor], saved: object) -> None:
    """Gives a new value that has no sharding the one that the tensor's value had before.

    ``cache[:] = value`` makes such a value. XLA would choose a sharding for it, which the next run
    of the program would not fit.
    """
    if not runtime.is_spmd():
        return
    for tensor in written:
        if not _XLAC._get_xla_sharding_spec(tensor):
            _XLAC._xla_mark_sharding(tensor, _XLAC._get_xla_op_sharding(saved.before(tensor)))
    # What is told of sharded data is read in them: programs before have to have run.
    _XLAC._xla_wait_device_ops([])


class InPlaceProgram:
    """A traced program.

    Args:
        written: the tensors that it writes to.
        new: the tensors that it computes besides.
        saved: what `written` were before the trace, an _XlaSavedState.

    Attributes:
        results: what it computes: the new values of `written`, then `new`.
        parameters: a tensor for each of its parameters.
        ids: these tensors' ids, -1 for a constant.
        places: of each of `written`, the place of its former value among the parameters.
    """

    def __init__(
        self, written: Sequence[torch.Tensor], new: Sequence[torch.Tensor], saved: object
    ) -> None:
        self._values = [_XLAC._xla_capture_base(tensor) for tensor in written]
        self.results = [*self._values, *new]
        for tensor in self.results:
            if _XLAC._xla_capture_data_address(tensor):  # no operation of its own
                _XLAC._xla_optimization_barrier_([tensor])
        addresses = [saved.data_address(tensor) for tensor in written]
        found = self._find_parameters()
        unread = [i for i, address in enumerate(addresses) if address not in found]
        if unread:
            # Only the buffer of a parameter can be written to.
            for i in unread:
                _XLAC._xla_optimization_barrier_([self._values[i], saved.before(written[i])])
            found = self._find_parameters()
        self.places = [found[address] for address in addresses]

    def _find_parameters(self) -> dict[int, int]:
        """Sets `ids` and `parameters`. Returns parameters' places by their data's addresses."""
        self.ids, self.parameters = _XLAC._get_tensors_xla_device_data_node(self.results)
        addresses = map(_XLAC._xla_capture_data_address, self.parameters)
        return {address: place for place, address in enumerate(addresses)}

    def compile(self) -> bytes:
        """Compiles it, unless it is compiled. Returns the key by which torch_xla finds it."""
        with alias_with_buffer_donor_config(), contextlib.ExitStack() as stack:
            donated = [self.parameters[place] for place in self.places]
            for tensor in donated:
                _XLAC._set_buffer_donation(tensor, True)  # may give its data another id
                stack.callback(_XLAC._set_buffer_donation, tensor, False)
            for tensor, value in zip(donated, self._values, strict=True):
                parameter = _XLAC._xla_capture_parameter_id(tensor)
                before = _XLAC._xla_capture_set_alias(value, parameter)
                stack.callback(_XLAC._xla_capture_set_alias, value, before)
            key = _XLAC._get_graph_hash(self.results)
            if self.results:
                _XLAC._xla_warm_up_cache(self.results, [])
        return key
