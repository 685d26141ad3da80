"""Declare the functions that this project adds to upstream's extension module, `torch_xla._XLAC`.

Type checkers find this file beside the module, `_XLAC.cpython-….so`, in the wheel's root. The
module also has upstream's own names, which have no types here. The functions are defined in
torch_xla_ext/csrc/python, one file a subject, and in csrc/interpose/init.cc, which document at
runtime only what these sentences leave open.
tests/csrc/python/stubs_test.py compares this file with the module.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import torch

def __getattr__(name: str) -> Any: ...  # upstream's

# Custom calls.

@final
class _XlaPreparedCall:
    """A custom call with checked arguments, without its operands."""

def _xla_gpu_custom_call(
    inputs: Sequence[torch.Tensor],
    payload: bytes | str,
    output_shapes: Sequence[Sequence[int]],
    output_dtypes: Sequence[torch.dtype],
    target: str = "triton_kernel_call",
    aliases: Mapping[int, int] | None = None,
    api_version: int | None = None,
    has_side_effect: bool = False,
    partition: str = "",
    result_layouts: Mapping[int, Sequence[int]] | None = None,
    num_hidden_results: int = 0,
    payload_is_backend_config: bool = False,
    runs_first_alone: bool = False,
    operand_layouts: Mapping[int, Sequence[int]] | None = None,
) -> list[torch.Tensor]:
    """Call the kernel that is registered as `target` with the buffers of `inputs`."""

def _xla_custom_call(
    inputs: Sequence[torch.Tensor],
    target: str,
    output_shapes: Sequence[Sequence[int]],
    output_dtypes: Sequence[torch.dtype],
    has_side_effect: bool,
    backend_config: bytes | str,
    api_version: int,
    frontend_attributes: dict[str, str],
) -> list[torch.Tensor]:
    """Make the call of upstream's function; the program's hash includes all arguments."""

def _xla_prepare_custom_call(
    inputs: Sequence[torch.Tensor],
    payload: bytes | str,
    output_shapes: Sequence[Sequence[int]],
    output_dtypes: Sequence[torch.dtype],
    target: str = "triton_kernel_call",
    aliases: Mapping[int, int] | None = None,
    api_version: int | None = None,
    has_side_effect: bool = False,
    partition: str = "",
    result_layouts: Mapping[int, Sequence[int]] | None = None,
    num_hidden_results: int = 0,
    payload_is_backend_config: bool = False,
    runs_first_alone: bool = False,
    operand_layouts: Mapping[int, Sequence[int]] | None = None,
) -> _XlaPreparedCall:
    """Check the arguments of _xla_gpu_custom_call, and return the call without its operands."""

def _xla_call_prepared(
    call: _XlaPreparedCall, inputs: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Make a prepared call with operands of the shapes and dtypes that it was prepared for."""

def _xla_call_custom_call_target(
    target: str,
    platform: str,
    operands: Sequence[torch.Tensor],
    payload: bytes,
    results: Sequence[torch.Tensor],
    stream: int = 0,
) -> None:
    """Call a registered target without XLA, on PyTorch's own tensors."""

def _xla_call_key(
    values: tuple[Any, ...],
    operands: list[torch.Tensor] | None = None,
    other: Callable[[Any], Any] | None = None,
) -> bytes | None:
    """Return a call's cache key: calls with equal keys differ only in their operands."""

# The partitioner of calls in programs for several devices.

def _xla_register_partitioners(
    infer: Callable[[str, list[bytes | None]], bytes | None],
    propagate: Callable[[str, bytes], bytes],
    divide: Callable[[str, list[bytes | None], bytes | None], Any],
) -> None:
    """Register the functions that XLA calls to divide custom calls among devices."""

def _xla_set_lowers_whole_calls(lowers: bool) -> None:
    """Set whether this thread lowers these calls undivided, by their kernels' names."""

# Operators' kernels in PyTorch's dispatcher.

@final
class _XlaOperatorKernel:
    """A kernel in PyTorch's dispatcher, which is removed with this object."""

def _xla_register_operator(
    name: str,
    overload: str,
    prepare: Callable[..., _XlaPreparedCall | None],
    run: Callable[..., Any],
    environment: list[str] | None,
) -> _XlaOperatorKernel:
    """Register an operator's kernel for XLA tensors."""

def _xla_register_operator_autograd(
    name: str, overload: str, differentiate: Callable[..., Any], written: list[int]
) -> _XlaOperatorKernel:
    """Register an operator's kernel for Autograd, which writes to the arguments `written`."""

def _xla_register_operator_in_place(
    name: str,
    overload: str,
    functional: _XlaOperatorKernel,
    run: Callable[..., Any],
    written: list[int],
) -> _XlaOperatorKernel:
    """Register the "Functionalize" kernel of an operator that writes to its arguments."""

def _xla_add_reference_blocks(count: int) -> None:
    """Change the count of open blocks in which operators look up reference implementations."""

# The registry of targets.

def _xla_register_custom_call_target(
    name: str, capsule: object, platform: str, api_version: int = 0
) -> None:
    """Register the function whose address a capsule holds as the target `name`."""

def _xla_register_ffi_handlers(
    name: str,
    instantiate: int,
    prepare: int,
    initialize: int,
    execute: int,
    record: int,
    platform: str,
    command_buffer_compatible: bool,
) -> None:
    """Register the handlers of an FFI target's stages, by their addresses."""

def _xla_register_ffi_type(name: str, type_id: int, deleter: int, platform: str) -> None:
    """Register a type of handlers' states, by the address of its XLA_FFI_TypeId."""

def _xla_registered_custom_call_targets(platform: str, api: str = "untyped") -> list[str]:
    """Return the names of the platform's targets, sorted; `api` is "untyped" or "ffi"."""

def _xla_has_custom_call_target(name: str, platform: str, api: str) -> bool:
    """Return whether XLA has this target."""

def _xla_current_custom_call_target(name: str, platform: str, api: str) -> str:
    """Return the target's name, such as "name#2", in the HLO of a call that is traced now."""

def _xla_custom_call_function(name: str, platform: str, api: str) -> str:
    """Return a description of the function that calls of a target run."""

def _xla_default_custom_call_api(name: str, platform: str) -> str:
    """Return the API for calls of a target that specify none."""

def _xla_capture_registrations() -> int:
    """Return a number that changes with every registration of a custom call."""

def _xla_kernel_schemas() -> dict[str, str]:
    """Return the schemas of the kernels that are linked into this library, by target."""

def _xla_kernel_sizes() -> list[tuple[str, str, int]]:
    """Return the kernels' functions that compute sizes of results: target, size, address."""

# Launchers.

def _xla_launch_compiled_kernel(
    attributes: dict[str, Any], operands: list[int], results: list[int], stream: int
) -> None:
    """Launch a compiled kernel on buffers, by their addresses, without XLA."""

def _xla_load_tvm_ffi(path: str) -> None:
    """Load libtvm_ffi, through which TVM-FFI functions are called."""

def _xla_tvm_ffi_function(library: str, symbol: str) -> int:
    """Return the handle of a TVM-FFI function in a shared library; 0 if it does not exist."""

def _xla_register_tvm_ffi_kernel(
    name: str, platform: str, function: int, arguments: list[str], in_graphs: bool, schema: str
) -> None:
    """Register a TVM-FFI function, by its handle, as an FFI target."""

# Captured and compiled programs.

@final
class _XlaCapturedProgram:
    """A compiled step, with the tensors that it reads and writes."""

    def __init__(
        self,
        hash: str | bytes,
        name: str,
        parameters: list[tuple[int, int]],
        names: list[str],
        state: list[torch.Tensor],
        constants: list[torch.Tensor],
        written: list[int],
        outputs: list[torch.Tensor],
        argument_state: list[int],
        replaced_gradients: list[tuple[int, int]],
        ends_step: bool,
    ) -> None: ...
    def find_computation(self) -> None:
        """Look up the program after a deferred compilation; call this before the first run."""

    def arguments_to_copy(self, arguments: list[torch.Tensor], /) -> list[int]:
        """Return the indices of the arguments that must be copied before a run."""

    def run_unless_copied(self, arguments: list[torch.Tensor], /) -> list[torch.Tensor] | None:
        """Run the program; return None if arguments must be copied before."""

    def matches(self, arguments: list[torch.Tensor], /) -> bool:
        """Return whether the state's tensors, apart from their values, are as at the capture."""

    def cache_shardings(self) -> None:
        """Record the current shardings of the state's tensors as those of the program."""

    def run(self, arguments: list[torch.Tensor], /) -> list[torch.Tensor]:
        """Run the program with the current data of its tensors."""

    def run_if_matches(
        self, arguments: list[torch.Tensor], here: bool
    ) -> list[torch.Tensor] | None:
        """Run the program if `matches` is true and the state has the recorded shardings."""

@final
class _XlaProgramOnSharedMemory:
    """A program that runs on PyTorch's own tensors, in memory that XLA shares."""

    def __init__(self, program: _XlaCapturedProgram, device: torch.device) -> None: ...
    def arguments_to_copy(self, arguments: list[torch.Tensor], /) -> list[int]:
        """Return the indices of arguments on another device, not row-major, or that overlap."""

    def run(self, arguments: list[torch.Tensor], stream: int) -> list[torch.Tensor]:
        """Run the program after the work on one of PyTorch's CUDA streams."""

@final
class _XlaPythonGuard:
    """Records a list of Python values."""

    def __init__(self, values: list[Any], /) -> None: ...
    def is_same(self) -> bool:
        """Return whether the values are unchanged."""

@final
class _XlaSavedState:
    """Undoes what tracing does to tensors."""

    def __init__(self) -> None: ...
    def add(self, tensor: torch.Tensor, /) -> bool:
        """Add an older tensor's storage; return False if it was already added."""

    def add_all(self, tensors: list[torch.Tensor], /) -> None:
        """Add several storages, and compute the pending ones together."""

    def data_address(self, tensor: torch.Tensor, /) -> int:
        """Return the address of the storage's data before the trace, or 0."""

    def is_written(self, tensor: torch.Tensor, /) -> bool:
        """Return whether the tensor's storage has been written to."""

    def before(self, tensor: torch.Tensor, /) -> torch.Tensor:
        """Return a new tensor with the storage's data from before the trace."""

    def restore(self) -> None:
        """Restore the data of all storages."""

    @property
    def first_new_id(self) -> int:
        """Tensors with this id or a higher one were made after this object."""

@final
class _XlaView:
    """The operations that make a view from its base. Owns neither tensor."""

    def __call__(self, base: torch.Tensor, /) -> torch.Tensor:
        """Make the same view of a given base."""

_xla_compute_stream_target: str
"""The target whose call reports XLA's CUDA stream."""

def _xla_is_compute_stream_known() -> bool:
    """Return whether a call of `_xla_compute_stream_target` has run."""

def _xla_shares_memory(device: torch.device, /) -> bool:
    """Return whether PyTorch's tensors on `device` are in the memory of torch_xla's device."""

def _xla_is_row_major(tensor: torch.Tensor, /) -> bool:
    """Return whether XLA can use the tensor's memory in place: row-major, dense and aligned."""

def _xla_views(tensors: list[torch.Tensor], /) -> list[torch.Tensor]:
    """Return, for each tensor, an XLA tensor on its memory, which the XLA tensor does not own."""

@final
class _XlaUncompiledProgram:
    """A program that has been lowered to HLO."""

    def compile(self) -> None:
        """Compile the program, once, in any thread."""

def _xla_capture_lower(tensors: list[torch.Tensor], hash: bytes) -> _XlaUncompiledProgram | None:
    """Lower the tensors' program; return None if it is compiled already."""

def _xla_capture_signature(arguments: list[torch.Tensor], /) -> tuple[bytes, list[int]]:
    """Return the arguments' properties that a program depends on, and the unshared views."""

def _xla_capture_view(tensor: torch.Tensor, /) -> _XlaView | None:
    """Return the operations that make the tensor from its base, if autograd knows them."""

def _xla_capture_place(tensor: torch.Tensor, /) -> tuple[list[int], list[int], int]:
    """Return a tensor's sizes, strides and offset in PyTorch."""

def _xla_capture_is_supported(tensor: torch.Tensor, /) -> bool:
    """Return whether the tensor is an XLA tensor with functionalization."""

def _xla_capture_split(values: tuple[Any, ...], /) -> tuple[list[torch.Tensor], list[Any], bool]:
    """Return the tensors, the other values, and whether all tensors are functional XLA tensors."""

def _xla_capture_is_used_by_python(tensor: torch.Tensor, /) -> bool:
    """Return whether a Python object strongly refers to the tensor."""

def _xla_capture_is_view(tensor: torch.Tensor, /) -> bool:
    """Return whether the tensor is a view of another tensor."""

def _xla_capture_has_own_values(tensor: torch.Tensor, /) -> bool:
    """Return whether the tensor selects or rearranges another tensor's elements."""

def _xla_capture_storage(tensor: torch.Tensor, /) -> int:
    """Return the address of the tensor's storage, which its views share."""

def _xla_capture_base(tensor: torch.Tensor, /) -> torch.Tensor:
    """Return the tensor with all values of the storage, without functionalization."""

def _xla_capture_data_address(tensor: torch.Tensor, /) -> int:
    """Return the address of the data on the device, or 0 for a pending or fake tensor."""

def _xla_capture_transfer(tensor: torch.Tensor, /) -> bool:
    """Transfer values that are only on the host; return False if there are none."""

def _xla_capture_parameter_id(tensor: torch.Tensor, /) -> int:
    """Return the parameter id of this tensor's data in programs, or -1."""

def _xla_capture_set_alias(tensor: torch.Tensor, id: int) -> int:
    """Make a program write the tensor's value to the parameter `id`; return the former setting."""

def _xla_strides(values: tuple[Any, ...], /) -> list[list[int] | None] | None:
    """Return each XLA tensor's strides in PyTorch; None for row-major ones and other values."""

def _xla_set_strides(copy: torch.Tensor, strides: list[int], /) -> None:
    """Set the strides that operators assume for the tensor in PyTorch."""

# Fixes of torch_xla's runtime.

@final
class _XlaThreadTrace:
    """A trace that this thread begins.

    Other threads' syncs leave its tensors pending, and its random seeds are its own.
    """

    def __init__(self) -> None: ...
    def end(self, keeps: bool) -> None:
        """End it, in the same thread; with `keeps`, its random numbers count as drawn."""

@final
class _XlaRandomState:
    """The state of the device's random number generator."""

    def __init__(self) -> None: ...
    def seed(self) -> torch.Tensor:
        """Return the saved seed, a tensor on the device."""

    def restore(self, seed: torch.Tensor = ...) -> None:
        """Restore this state, or set a seed."""

def _xla_is_read_by_pending_values(tensors: list[torch.Tensor]) -> bool:
    """Return whether a pending value reads the data of any of these tensors."""

def _xla_compute_pending_values(tensor: torch.Tensor, /) -> None:
    """Compute all pending values of the tensor's device if programs have grown."""

def _xla_has_live_tensors() -> bool:
    """Return whether any XLA tensor exists."""

def _xla_are_in_manual_region(tensors: list[torch.Tensor], /) -> bool:
    """Return whether any pending value is one device's part in a region of manual sharding."""

def _xla_pause_computing_pending_values(begins: bool, /) -> None:
    """Disable _xla_compute_pending_values while a step is traced."""

def _xla_find_pending_step(updated: torch.Tensor, /) -> None:
    """Warn if the value of an optimizer's last step is still pending."""

def _xla_precision_settings() -> tuple[int, int, int]:
    """Return the precisions of products and convolutions of float32, and of other dtypes."""

def _xla_seed_all_devices(seed: int) -> None:
    """Set the random seed of each device; without a client, a later client begins with it."""

def _set_use_eager_mode(enable: bool, /) -> None:
    """Set upstream's flag, which our library reads, too."""

def _clear_pending_irs(device: str, /) -> None:
    """Clear pending values as upstream does, but keep sharded ones."""

# The plug-in and other processes.

def _xla_load_pjrt_plugin(path: str) -> tuple[int, int]:
    """Load the PJRT plugin behind the shim; return its API version, (major, minor)."""

def _xla_set_compile_options(fields: bytes) -> None:
    """Add wire-format CompileOptionsProto fields to the programs that this thread compiles."""

def _xla_compile_options() -> bytes:
    """Return the last options of _xla_set_compile_options in this thread."""

def _xla_lost_process() -> str:
    """Return the error's text if another process of this program is lost, else ""."""

def _prepare_to_exit() -> None:
    """Prepare as upstream does, but wait for no device if another process is lost."""

_root_log_handlers: list[Any]
"""The root logger's handlers before torch_xla was imported; its import removes this name."""
