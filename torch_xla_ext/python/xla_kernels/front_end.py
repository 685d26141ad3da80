"""The interface of a front end: the process's device, its kernels, and their calls."""

from __future__ import annotations

import abc
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from xla_kernels.launch import Call, Launch
    from xla_kernels.signature.schema import ArrayType, Schema


class Parts(Protocol):
    """A function's results for each part of a call's arrays; its repr has all of them."""

    def at(self, operands: Sequence[object], results: Sequence[object]) -> object:
        """Return the result for a device with these parts of the arrays."""


class FrontEnd(abc.ABC):
    """A package through which PyTorch runs XLA programs.

    Attributes:
        name: the package's name, for errors.
        device_type: PyTorch's name of its devices.
        autocast_keys: the dispatch keys of torch.autocast for the devices of its operators.
        operator_call: the class, derived from xla_kernels.operator.checked.OperatorCall, that makes
            the calls of an operator whose target is a kernel's name.
        cuda_kernel_operator_call: the same for a `cuda_kernel`.
    """

    name: str
    device_type: str
    autocast_keys: Sequence[str]
    operator_call: type
    cuda_kernel_operator_call: type

    @abc.abstractmethod
    def platform(self) -> str:
        """Return XLA's platform of the process's device, "CUDA" or "Host"."""

    @abc.abstractmethod
    def schema(self, target: str) -> Schema | None:
        """Return the schema of the kernel that is registered as `target`, or None."""

    @abc.abstractmethod
    def kernel_names(self) -> Collection[str]:
        """Return the names of the registered kernels."""

    # Operators

    @abc.abstractmethod
    def implement(self, library: torch.library.Library, call: object) -> object:
        """Register the operator's kernels for the front end's devices.

        Returns:
            The registration, for `implement_in_place`.
        """

    @abc.abstractmethod
    def implement_in_place(
        self,
        library: torch.library.Library,
        call: object,
        functional: object,
        new_values: Callable[[tuple[object, ...]], list[tuple[torch.Tensor, torch.Tensor]]],
    ) -> None:
        """Register the kernels of an operator that writes to arguments.

        Args:
            functional: the registration of the operator that returns the new values instead.
            new_values: calls that operator, and returns each written argument with its new value.
        """

    @abc.abstractmethod
    def differentiate(
        self,
        library: torch.library.Library,
        operator: torch._ops.OpOverload,
        kernel: Callable[..., object],
        written: Sequence[int] = (),
    ) -> None:
        """Make PyTorch call `kernel` if an argument has a gradient or a tangent.

        Args:
            written: the arguments that the operator writes to, by their positions.
        """

    # Launches of compiled kernels

    @abc.abstractmethod
    def call_key(
        self,
        values: Sequence[object],
        operands: list[torch.Tensor] | None = None,
        other: Callable[[object], Hashable | None] | None = None,
    ) -> Hashable | None:
        """Return the key of a cached call: calls with equal keys differ in their operands only.

        Args:
            operands: receives the device's tensors among `values`; the key has only their types.
            other: returns the part of the key for a value of any other type, or None.

        Returns:
            None for a call that is not cached.
        """

    @abc.abstractmethod
    def launch_is_cacheable(self) -> bool:
        """Return whether `launch_prepared` may replace `launch` for calls with a `call_key`.

        It does not under PyTorch's transforms, or if a reference replaces the kernel.
        """

    @abc.abstractmethod
    def launch(self, call: Call) -> list[torch.Tensor]:
        """Make a call.

        Raises:
            NotImplementedError: under a transform of PyTorch, or in a backward pass.
        """

    def launch_now(
        self,
        launch: Launch,
        parameters: Sequence[str],
        operands: Sequence[int],
        results: Sequence[int],
        stream: int,
    ) -> None:
        """Enqueue a launch on a CUDA stream of the current context, without XLA.

        Args:
            parameters: the launch's words.
            operands, results: the arrays' addresses.

        Raises:
            RuntimeError: the driver refuses the launch.
            NotImplementedError: this front end cannot launch kernels.
        """
        raise NotImplementedError(f"{self.name} launches kernels only in XLA's programs")

    def agreed(self, key: str, choose: Callable[[], str]) -> str:
        """Call `choose` in one process of the program, and return its result in all of them.

        Args:
            key: identifies the choice; the same in all processes.
        """
        return choose()

    @abc.abstractmethod
    def prepare_launch(self, call: Call) -> object:
        """Prepare a call for operands like these, without the operands themselves."""

    @abc.abstractmethod
    def launch_prepared(
        self, prepared: object, operands: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Make the call that `prepare_launch` returned."""

    def parts(
        self,
        caller: str,
        function: Callable[[Sequence[torch.Tensor | None], Sequence[ArrayType]], object],
        sharding_rule: str | None,
        operands: Sequence[torch.Tensor | None],
        results: Sequence[ArrayType],
        aliases: Mapping[int, int] | None = None,
    ) -> Parts | None:
        """Call a user's function for each possible shape of a device's part of the arrays.

        Args:
            caller: prefix of error messages.
            function: receives a part's operands, as meta tensors, and the types of its results.

        Returns:
            None if there is no rule, or only one device.
        """
        return None

    # Launchers of other libraries' functions

    @abc.abstractmethod
    def run_operator(
        self,
        operator: torch._ops.OpOverload,
        *args: object,
        sharding_rule: str | None = None,
        of_part: Callable[..., list[object]] | None = None,
    ) -> list[torch.Tensor]:
        """Run an operator that returns a list of tensors with its kernel for the CPU.

        Args:
            args: its arguments, with the device's tensors.
            of_part: returns the arguments for a device's part of them and of the results.
        """

    @abc.abstractmethod
    def assign(self, tensor: torch.Tensor, value: torch.Tensor) -> None:
        """Write a value to one of the device's tensors."""

    @abc.abstractmethod
    def load_tvm_ffi(self, path: str) -> None:
        """Load libtvm_ffi, unless it is loaded; raise RuntimeError if it cannot be used."""

    @abc.abstractmethod
    def tvm_ffi_function(self, library: str, symbol: str) -> int:
        """Return the handle of a function in a TVM-FFI library; 0 if it has none of this name."""

    @abc.abstractmethod
    def register_tvm_ffi(
        self,
        name: str,
        platform: str,
        function: int,
        words: Sequence[str],
        cuda_graph: bool,
        library: object,
        schema: Schema | None,
    ) -> list[object]:
        """Register a TVM-FFI function, by its handle, as a target, and return the target.

        Args:
            words: the function's arguments, as csrc/launchers/tvm_ffi_arguments.h reads them.
            library: the function's origin, which is kept alive.
            schema: for checks of calls.
        """


_registered: FrontEnd | None = None


def register(front_end: FrontEnd) -> None:
    """Make `front_end` this process's front end."""
    global _registered
    _registered = front_end


def current() -> FrontEnd:
    """Return the front end of this process.

    Raises:
        RuntimeError: no front end is imported.
    """
    if _registered is None:
        raise RuntimeError(
            "xla_kernels: no front end, which makes the calls, is imported; import torch_xla_ext "
            "(torch_xla), or torch_xla_gpu (torch-tpu), first"
        )
    return _registered
