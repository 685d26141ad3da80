"""Make calls of a CUDA kernel: check them, find each parameter's value, run the reference."""

import warnings
from collections.abc import Hashable, Mapping, Sequence

import torch

from xla_kernels import front_end
from xla_kernels import launch as launches
from xla_kernels.cuda_source import argument_binding, kernel_reference
from xla_kernels.cuda_source.configuration import Configuration
from xla_kernels.cuda_source.cpp_types import Argument, Parameter
from xla_kernels.cuda_source.kernel_checks import OncePerCall
from xla_kernels.cuda_source.kernel_reference import Reference
from xla_kernels.cuda_source.kernel_signature import Signature
from xla_kernels.cuda_source.machine_code import Code, For
from xla_kernels.cuda_source.variants import Request, Variants
from xla_kernels.launch import Call, Launch
from xla_kernels.plugin.driver import compute_capability
from xla_kernels.signature.schema import ArrayType

Outputs = Mapping[str | int, object] | Sequence[object]
# The size of a kernel's cache of calls, each of which holds the machine code.
_MOST_CACHED = 256


class Calls:
    """Makes a kernel's calls.

    Attributes:
        name: the kernel's name, or the expression that names it.
        code: where the kernel's machine code comes from.
        signature: the signature, or None.
        configuration: the launch configuration for calls that give none.
        variants: the code with each of the kernel's configurations.
    """

    def __init__(
        self,
        name: str,
        code: Code,
        signature: Signature | None,
        configuration: Configuration,
        reference: Reference | None,
        configs: Sequence[Mapping[str, object]] = (),
    ) -> None:
        self.name = name
        self.code = code
        self.variants = Variants(name, code, signature, configs)
        self.signature = signature
        self.configuration = configuration
        self._reference = reference
        self._warned: set[int] = set()
        self._cached: dict[Hashable, object] = {}
        # Checks calls where there is no GPU.
        self._check_once = OncePerCall()

    @property
    def where(self) -> str:
        """Prefix for error messages, with the kernel's name."""
        return self.variants.where

    def prepared(
        self,
        operands: Sequence[ArrayType | None],
        results: Sequence[ArrayType],
        parameters: Mapping[str, object],
        configuration: Configuration | None = None,
    ) -> tuple[Launch, list[str]]:
        """Return the launch for checked arguments, for a kernel with a signature.

        Returns:
            The launch and its parameters; absent operands are not counted.
        """
        configuration = configuration or self.configuration
        target = compute_capability()
        return self.variants.prepared(Request(target, operands, results, parameters, configuration))

    def _check_on_host(
        self,
        configuration: Configuration,
        args: Sequence[object],
        outputs: Outputs | None = None,
        aliases: Sequence[str | int] | None = None,
    ) -> None:
        """Check the launch as for a GPU, once for equal calls.

        Raises:
            CompilationError, TypeError, ValueError: as on a GPU.
        """
        described = outputs.items() if isinstance(outputs, Mapping) else outputs
        self._check_once(
            (configuration, *map(_described_value, (*args, *(described or ()), aliases))),
            lambda: self._made_for(None, configuration, args, outputs, aliases),
        )

    def operator_results(
        self,
        tensors: Sequence[torch.Tensor | None],
        results: Sequence[ArrayType],
        parameters: Mapping[str, object],
        least: int,
    ) -> list[torch.Tensor]:
        """Return the reference's results for an operator with checked arguments.

        Args:
            least: the number of results that the reference must return; it computes no workspaces.

        Raises:
            CompilationError, TypeError, ValueError: the kernel's source or launch is wrong, as far
                as this machine can tell.
        """
        operands = tuple(None if t is None else ArrayType(tuple(t.shape), t.dtype) for t in tensors)
        values = tuple(parameters.items())
        self._check_once(
            (operands, tuple(results), values),
            lambda: self.variants.prepared(
                Request(None, operands, results, parameters, self.configuration)
            ),
        )
        args = [*tensors, *parameters.values()]
        return kernel_reference.results(self.where, self._reference, args, results, least)

    def call(
        self,
        configuration: Configuration,
        args: Sequence[object],
        outputs: Outputs | None,
        aliases: Sequence[str | int] | None,
        has_side_effect: bool,
        sharding_rule: str | None,
    ) -> list[torch.Tensor]:
        """Make a call with the device's tensors and the arguments of ``kernel[grid, block](…)``."""
        front = front_end.current()
        if front.platform() == "Host":
            if sharding_rule is not None:
                args = launches.computed(args)
            types = self._checked_on_host(args, outputs, aliases)
            self._check_on_host(configuration, args, outputs, aliases)
            return kernel_reference.call(self.name, self.where, self._reference, args, types)

        def made() -> Call:
            call = self._made(configuration, args, outputs, aliases, sharding_rule)
            return call._replace(has_side_effect=has_side_effect)

        operands: list[torch.Tensor] = []
        others = outputs, aliases, has_side_effect, sharding_rule
        key = self._key(configuration, args, *others, operands)
        if key is None or not front.launch_is_cacheable():
            return front.launch(made())
        prepared = self._cached.get(key)
        if prepared is None:
            if len(self._cached) >= _MOST_CACHED:
                self._cached.clear()
            prepared = front.prepare_launch(made())
            self._cached[key] = prepared
        return front.launch_prepared(prepared, operands)

    def _key(
        self,
        configuration: Configuration,
        args: Sequence[object],
        outputs: Outputs | None,
        aliases: Sequence[str | int] | None,
        has_side_effect: bool,
        sharding_rule: str | None,
        operands: list[torch.Tensor],
    ) -> Hashable | None:
        """Return the key of a call; None if it is not cached.

        Args:
            operands: receives the device's tensors among `args`.
        """
        launch = None
        if configuration is not self.configuration:
            launch = configuration.grid, configuration.block, configuration.shared_bytes
        if isinstance(outputs, Mapping):
            outputs = list(outputs.items())
        front = front_end.current()
        given = front.call_key(args, operands)
        if given is None or not operands:
            return None
        others = launch, outputs, aliases, has_side_effect, sharding_rule
        described = front.call_key(others, None, _described)
        return None if described is None else (given, described)

    def _made(
        self,
        configuration: Configuration,
        args: Sequence[object],
        outputs: Outputs | None,
        aliases: Sequence[str | int] | None,
        sharding_rule: str | None = None,
    ) -> Call:
        """Return the call with checked arguments, for a GPU."""
        own = args if sharding_rule is None else launches.computed(args)
        call = self._made_for(compute_capability(), configuration, own, outputs, aliases)
        if sharding_rule is None:
            return call
        shapeless = [
            torch.empty(tuple(value.shape), dtype=value.dtype, device="meta")
            if isinstance(value, torch.Tensor)
            else value
            for value in args
        ]

        def local(inputs: Sequence[torch.Tensor], results: Sequence[ArrayType]) -> Call:
            tensors = iter(inputs)
            part = [next(tensors) if isinstance(v, torch.Tensor) else v for v in shapeless]
            types = outputs
            if isinstance(outputs, Mapping):
                types = dict(zip(outputs, results, strict=False))
            elif outputs is not None:
                types = results[: len(outputs)]
            return self._made(configuration, launches.computed(part), types, aliases)

        return call._replace(sharding_rule=sharding_rule, local=local)

    def _made_for(
        self,
        target: For,
        configuration: Configuration,
        args: Sequence[object],
        outputs: Outputs | None,
        aliases: Sequence[str | int] | None,
    ) -> Call | None:
        """Return the call for a target; None if the kernel's parameters are unknown."""
        if self.signature is not None:
            self._refuse_outputs(outputs, aliases)
            return self._made_with_signature(target, configuration, args)
        given, written = self._required_outputs(args, outputs, aliases)
        parameters = self.code.parameters(self.name, target)
        if parameters is None:
            return None
        binding = self._bound(parameters, args, given, written)
        return self._made_bound(target, configuration, parameters, args, binding)

    def _checked_on_host(
        self, args: Sequence[object], outputs: Outputs | None, aliases: Sequence[str | int] | None
    ) -> list[ArrayType]:
        """Check the arguments, and return the results' types, which the reference must compute."""
        if self.signature is not None:
            self._refuse_outputs(outputs, aliases)
            tensors, parameters = self.signature.checked_arguments(args)
            operands = tuple(None if t is None else ArrayType.of(t) for t in tensors)
            return self.signature.results(operands, parameters)
        outputs, aliases = self._required_outputs(args, outputs, aliases)
        binding = self._bound(self.code.declared(), args, outputs, aliases)
        return self._result_types(args, binding)

    def _refuse_outputs(self, outputs: object, aliases: object) -> None:
        if outputs is not None or aliases is not None:
            raise TypeError(f"{self.where}: outputs and aliases follow from its signature")

    def _required_outputs(
        self, args: Sequence[object], outputs: Outputs | None, aliases: Sequence[str | int] | None
    ) -> tuple[Outputs, Sequence[str | int]]:
        """Return the outputs and aliases of a call without a signature; raise if it has neither."""
        if isinstance(aliases, str):
            aliases = [aliases]
        outputs, aliases = outputs or (), aliases or ()
        if not outputs and not aliases:
            raise TypeError(
                f"{self.where}: it has neither outputs nor aliases, so the call returns no "
                "tensor; pass one of them"
            )
        if not any(isinstance(value, torch.Tensor) for value in args):
            raise TypeError(f"{self.where}: none of its arguments is an XLA tensor")
        return outputs, aliases

    @staticmethod
    def _result_types(args: Sequence[object], binding: argument_binding.Binding) -> list[ArrayType]:
        return [*binding.outputs, *(ArrayType.of(args[position]) for position in binding.aliases)]

    def _made_bound(
        self,
        target: For,
        configuration: Configuration,
        parameters: Sequence[Parameter],
        args: Sequence[object],
        binding: argument_binding.Binding,
    ) -> Call:
        given: dict[int, Argument] = {}
        operands: list[torch.Tensor] = []
        written: dict[int, int] = {}
        for number, index in enumerate(binding.of_outputs):
            given[index] = Argument(binding.outputs[number], launches.result(number))
        for position, (index, value) in enumerate(zip(binding.of_arguments, args, strict=True)):
            if not isinstance(value, torch.Tensor):
                given[index] = Argument(value)
                continue
            address = launches.operand(len(operands))
            if position in binding.aliases:
                number = len(binding.outputs) + binding.aliases.index(position)
                address = launches.result(number)
                written[number] = len(operands)
            given[index] = Argument(ArrayType.of(value), address)
            operands.append(value)
        arguments = [given[index] for index in range(len(parameters))]
        values: dict[str | int, object] = {i: each.value for i, each in enumerate(arguments)}
        names = [parameter.name for parameter in parameters]
        values |= {name: values[i] for i, name in enumerate(names) if name is not None}
        kernel = self.code.kernel(self.name, target, arguments)
        results = self._result_types(args, binding)
        launch, words = self.variants.launch(configuration, kernel, arguments, values, results)
        return Call(launch, operands, results, words, written)

    def _bound(
        self,
        parameters: Sequence[Parameter] | None,
        args: Sequence[object],
        outputs: Outputs,
        aliases: Sequence[str | int],
    ) -> argument_binding.Binding:
        """Bind and check a call's arguments."""
        binding = argument_binding.bind(self.where, parameters, args, outputs, aliases)
        if parameters is not None:
            argument_binding.check(self.where, parameters, args, binding)
            for position, index in enumerate(binding.of_arguments):
                is_tensor = isinstance(args[position], torch.Tensor)
                if (
                    is_tensor
                    and parameters[index].declares_writes
                    and position not in binding.aliases
                ):
                    self._warn_of_write(parameters, index)
        return binding

    def _warn_of_write(self, parameters: Sequence[Parameter], index: int) -> None:
        if index in self._warned:
            return
        self._warned.add(index)
        parameter = parameters[index]
        alias = "its position" if parameter.name is None else repr(parameter.name)
        warnings.warn(
            f"{self.where}: {argument_binding.label(parameters, index)} is {parameter.type}, which "
            "is not const: if the kernel writes to it, the write is lost, or is seen by other uses "
            f"of the tensor; pass aliases=[{alias}] then, or declare it const",
            stacklevel=6,
        )

    def _made_with_signature(
        self, target: For, configuration: Configuration, args: Sequence[object]
    ) -> Call:
        tensors, parameters = self.signature.checked_arguments(args)
        operands = tuple(None if t is None else ArrayType.of(t) for t in tensors)
        results = self.signature.results(operands, parameters)
        request = Request(target, operands, results, parameters, configuration)
        launch, words = self.variants.prepared(request)
        present = [tensor for tensor in tensors if tensor is not None]
        return Call(
            launch,
            present,
            results,
            words,
            self.signature.aliases(operands),
            operand_layouts=self.signature.schema.operand_layouts(operands),
            result_layouts=self.signature.schema.result_layouts,
        )


def _described(value: object) -> tuple[torch.Size, torch.dtype] | None:
    """Return a result description's part of the key."""
    return (value.shape, value.dtype) if isinstance(value, torch.Tensor) else None


def _described_value(value: object) -> object:
    """Return the part of a value on which checks depend."""
    if isinstance(value, torch.Tensor):
        return value.shape, value.dtype
    return (type(value), tuple(value)) if isinstance(value, list) else (type(value), value)
