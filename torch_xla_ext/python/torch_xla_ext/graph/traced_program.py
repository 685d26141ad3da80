"""Make a program from a trace; it writes new values of tensors into the tensors' buffers.

Captured steps (step.py) and graphs of torch.compile (compiled_graph.py) become such programs.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future

import torch
import torch_xla
from torch_xla import runtime
from torch_xla.utils.buffer_donor_context import alias_with_buffer_donor_config

from torch_xla_ext.graph.parallel_compilation import Compiler

_XLAC = torch_xla._XLAC


class Source(enum.IntEnum):
    """The origin of a program's parameter, as Source::Kind in csrc/graph/program.h."""

    ARGUMENT = 0
    STATE = 1
    GRADIENT = 2
    CONSTANT = 3
    SEED = 4
    OWN_VALUES = 5  # an argument that the program only reads


@contextlib.contextmanager
def same_seed() -> Iterator[None]:
    """In a block, keep the device's random seed when a step of this thread ends.

    The call that compiles then draws the same random numbers as later calls.
    """
    of_thread = _XLAC._XlaThreadTrace()
    try:
        yield
    finally:
        of_thread.end(keeps=False)


class Trace:
    """Undoes a trace's changes to tensors.

    Between `begin` and `end`, other threads' syncs leave its tensors alone, and the device's random
    seed is its own.

    Attributes:
        saved: the tensors' values before the trace, an _XlaSavedState.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.saved = _XLAC._XlaSavedState()
        self.saved.add_all(list(tensors))

    def begin(self) -> None:
        running_seed = _XLAC._xla_get_rng_seed()
        _XLAC._xla_set_rng_seed(running_seed)  # so that the trace draws from this one
        self._of_thread = _XLAC._XlaThreadTrace()
        self._seed = _XLAC._get_base_seed_as_tensor(str(torch_xla.device()))

    def undo(self, tensors: Iterable[torch.Tensor]) -> None:
        """Restore the earlier values, and update `tensors` from their bases."""
        self.saved.restore()
        for tensor in tensors:
            torch._sync(tensor)

    def end(self, *, keeps: bool = False) -> None:
        """End the trace; with `keeps` the function's effects are not undone."""
        self._of_thread.end(keeps)

    def sources(
        self,
        program: InPlaceProgram,
        source_of: Callable[[int], tuple[Source, int] | None],
        check_other: Callable[[int, torch.Tensor], None] = lambda tensor_id, tensor: None,
    ) -> list[tuple[Source, int]]:
        """Return where the value of each of the program's parameters comes from.

        Args:
            program: the traced program.
            source_of: returns the source of the data at an address, or None.
            check_other: raises if a parameter without a source cannot be a constant; called with
                the seed's id, it raises if the trace may not set the seed.
        """
        seed = _XLAC._xla_capture_data_address(self._seed)
        sources: list[tuple[Source, int]] = []
        num_constants = 0
        for tensor_id, parameter in zip(program.ids, program.parameters, strict=True):
            address = _XLAC._xla_capture_data_address(parameter)
            source = source_of(address)
            if source is None and address == seed:
                source = (Source.SEED, 0)
            if source is None:
                check_other(tensor_id, parameter)
                if tensor_id == _XLAC._get_seed_info_id():
                    source = (Source.SEED, 0)
                else:
                    source = (Source.CONSTANT, num_constants)
                    num_constants += 1
            sources.append(source)
        return sources


def keep_shardings(written: Sequence[torch.Tensor], saved: object) -> None:
    """Mark new values without a sharding with the sharding of the tensor's former value.

    ``cache[:] = value`` makes such a value. XLA might choose a sharding that the program's next run
    does not accept.
    """
    if not runtime.is_spmd():
        return
    for tensor in written:
        before = saved.before(tensor)
        # A view is not marked: the former value is that of its base.
        if before.shape == tensor.shape and not _XLAC._get_xla_sharding_spec(tensor):
            _XLAC._xla_mark_sharding(tensor, _XLAC._get_xla_op_sharding(before))
    # Shardings are read from the data, so earlier programs must have run.
    _XLAC._xla_wait_device_ops([])


class InPlaceProgram:
    """A traced program, and the tensors that it updates in place.

    Args:
        written: the tensors that it writes to.
        new: the other tensors that it computes.
        saved: the state of `written` before the trace, an _XlaSavedState.

    Attributes:
        results: the new values of `written`, then `new`.
        parameters: a tensor for each of the program's parameters.
        ids: these tensors' ids, -1 for a constant.
        parameter_indices: the index of the former value of each of `written`.
        compilation: a future that ends when the program is compiled; None if `compile` has waited.
    """

    compilation: Future[None] | None = None

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
        self.parameter_indices = [found[address] for address in addresses]

    def _find_parameters(self) -> dict[int, int]:
        """Set `ids` and `parameters`; return the parameters' indices by their data's addresses."""
        self.ids, self.parameters = _XLAC._get_tensors_xla_device_data_node(self.results)
        addresses = map(_XLAC._xla_capture_data_address, self.parameters)
        return {address: index for index, address in enumerate(addresses)}

    def compile(self, compiler: Compiler | None = None) -> bytes:
        """Compile the program if necessary, and return its key in torch_xla's cache.

        With a `compiler`, another thread compiles, and `compilation` ends when it is done.
        """
        with alias_with_buffer_donor_config(), contextlib.ExitStack() as stack:
            donated = [self.parameters[index] for index in self.parameter_indices]
            for tensor in donated:
                _XLAC._set_buffer_donation(tensor, True)  # may give its data another id
                stack.callback(_XLAC._set_buffer_donation, tensor, False)
            for tensor, value in zip(donated, self._values, strict=True):
                parameter = _XLAC._xla_capture_parameter_id(tensor)
                before = _XLAC._xla_capture_set_alias(value, parameter)
                stack.callback(_XLAC._xla_capture_set_alias, value, before)
            key = _XLAC._get_graph_hash(self.results)
            if self.results and compiler is not None:
                self.compilation = compiler.start(self.results, key)
            elif self.results:
                _XLAC._xla_warm_up_cache(self.results, [])
        return key
