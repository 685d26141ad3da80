"""Launch a kernel with the best of its configurations for each call."""

import functools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from xla_kernels.cuda_source import tuning
from xla_kernels.cuda_source.configuration import Configuration
from xla_kernels.cuda_source.cpp_types import Argument
from xla_kernels.cuda_source.kernel_signature import Bound, Signature
from xla_kernels.cuda_source.machine_code import Code, For, Kernel, SourceCode, name_fields
from xla_kernels.launch import Launch
from xla_kernels.signature.schema import ArrayType


class Variant(NamedTuple):
    """A kernel with one of its configurations."""

    config: Mapping[str, object]
    code: Code


@dataclass(frozen=True)
class Request:
    """The parts of a checked call on which its launch depends, for a kernel with a signature.

    Attributes:
        target: the GPU or architecture for which the kernel is compiled.
        operands: the operands' types; None for an absent operand.
    """

    target: For
    operands: Sequence[ArrayType | None]
    results: Sequence[ArrayType]
    parameters: Mapping[str, object]
    configuration: Configuration

    @property
    def key(self) -> Hashable:
        """A key that calls with the same launch share, whatever their target."""
        arrays = map(tuple, (self.operands, self.results, self.parameters.items()))
        return (*arrays, self.configuration.key)


class Variants:
    """A kernel's code, with each of its configurations.

    Attributes:
        name: the kernel's name, or the expression that names it.
        code: where the kernel's machine code comes from.
        signature: the signature, or None.
        all: a variant for each configuration; one if there are no configurations.
    """

    def __init__(
        self,
        name: str,
        code: Code,
        signature: Signature | None,
        configs: Sequence[Mapping[str, object]],
    ) -> None:
        self.name = name
        self.code = code
        self.signature = signature
        self.all = [Variant(dict(config), _with_macros(code, config)) for config in configs or [{}]]
        # The indices of chosen variants, by call.
        self._choices: dict[Hashable, int] = {}

    @property
    def where(self) -> str:
        """Prefix for error messages, with the kernel's name."""
        return f"cuda_kernel {self.name!r}"

    def prepared(self, request: Request) -> tuple[Launch, list[str]]:
        """Return the launch and its parameters; absent operands are not counted."""
        return self.prepared_variant(self.all[self._chosen(request)], request)

    def prepared_variant(self, variant: Variant, request: Request) -> tuple[Launch, list[str]]:
        """Return the launch and its parameters for one of the configurations."""
        bound = self._bound(request, variant)
        expression = self.signature.expression(self.name, bound)
        declared = variant.code.parameters(expression, request.target)
        arguments = []
        if declared is not None:
            arguments = self.signature.arguments_for(self.where, declared, bound)
        kernel = variant.code.kernel(expression, request.target, arguments)
        return self.launch(request.configuration, kernel, arguments, bound.values, request.results)

    def check_variant(self, variant: Variant, request: Request) -> None:
        """Check a call; its grid and block may be unknown until the actual call."""
        if request.configuration.is_complete:
            self.prepared_variant(variant, request)
        else:
            bound = self._bound(request, variant)
            expression = self.signature.expression(self.name, bound)
            self.check_words(variant.code, request.target, expression, bound)

    def check_words(self, code: Code, target: For, expression: str, bound: Bound) -> None:
        """Compare the parameters of a kernel with a call's arguments."""
        parameters = code.parameters(expression, target)
        arguments = self.signature.arguments_for(self.where, parameters, bound)
        code.kernel(expression, target, arguments).words(self.where, arguments)

    def launch(
        self,
        configuration: Configuration,
        kernel: Kernel | None,
        arguments: Sequence[Argument],
        values: Mapping[str | int, object],
        results: Sequence[ArrayType],
    ) -> tuple[Launch, list[str]]:
        """Return the launch; without a kernel, only check the launch's numbers."""
        code = (b"", "", self.name)
        if kernel is not None:
            code = kernel.module, kernel.digest, kernel.function
        launch = configuration.launch(*code, values)
        if 0 in launch.grid and any(result.size for result in results):
            # An empty launch would leave the results uninitialized.
            raise ValueError(
                f"{self.where}: a grid of {launch.grid} has no blocks, but the results have "
                "elements"
            )
        if kernel is None:
            return launch, []
        kernel.check(self.where, launch)
        return launch, kernel.words(self.where, arguments)

    def _bound(self, request: Request, variant: Variant) -> Bound:
        bound = self.signature.bind(request.operands, request.results, request.parameters)
        return bound.with_config(variant.config)

    def _chosen(self, request: Request) -> int:
        """Return the index of the variant for a call: on a GPU, the fastest."""
        if len(self.all) == 1 or not isinstance(request.target, int):
            return 0
        if (key := request.key) not in self._choices:
            self._choices[key] = tuning.choose(
                self.where,
                [variant.config for variant in self.all],
                self._timed_source(request),
                tuning.Arrays(
                    [each for each in request.operands if each is not None],
                    request.results,
                    self.signature.aliases(request.operands),
                ),
                [functools.partial(self.prepared_variant, each, request) for each in self.all],
            )
        return self._choices[key]

    def _timed_source(self, request: Request) -> object:
        """Return the machine code and launches, which determine a call's time beside its arrays.

        The first variant that compiles stands for the code of all, which has one source.
        """
        launches, digest = [], ""
        for variant in self.all:
            values = self._bound(request, variant).values
            try:
                launch = request.configuration.launch(b"", "", self.name, values)
                launches.append([launch.grid, launch.block, launch.cluster, launch.shared])
                if not digest:
                    digest = self.prepared_variant(variant, request)[0].digest
            except (RuntimeError, TypeError, ValueError) as error:
                launches.append(str(error))
        numbers = [[name, repr(value)] for name, value in request.parameters.items()]
        absent = [operand is None for operand in request.operands]
        return [self.name, digest, launches, numbers, absent]


def _with_macros(code: Code, config: Mapping[str, object]) -> Code:
    """Return the code with macros for values that are not fields of the kernel's name."""
    if not isinstance(code, SourceCode):
        return code
    fields = set(name_fields(code.source.name))
    return code.with_macros({name: each for name, each in config.items() if name not in fields})
