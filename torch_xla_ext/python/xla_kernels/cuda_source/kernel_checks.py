"""Check without a GPU that a kernel compiles, and that its calls' arguments fit."""

import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence

from xla_kernels.cuda_source.configuration import Configuration
from xla_kernels.cuda_source.machine_code import For
from xla_kernels.cuda_source.variants import Request, Variants
from xla_kernels.signature import examples as made_up
from xla_kernels.signature.schema import ArrayType

_MOST_CHECKED = 4096


class OncePerCall:
    """Checks calls, once for equal calls."""

    def __init__(self) -> None:
        self._checked: set[Hashable] = set()

    def __call__(self, key: Hashable, check: Callable[[], object]) -> None:
        """Check a call, unless a call with this key has passed; failures are not cached."""
        try:
            if key in self._checked:
                return
        except TypeError:  # the key is not hashable
            key = None
        check()
        if key is not None and len(self._checked) < _MOST_CHECKED:
            self._checked.add(key)


def check(
    variants: Variants, configuration: Configuration, args: Sequence[object], targets: Sequence[For]
) -> None:
    """Implement CudaKernel.check."""
    signature = variants.signature
    if signature is None:
        if args:
            raise TypeError(f"{variants.where}: check takes arguments only with a signature")
        for target in targets:
            variants.code.parameters(variants.name, target)
        _check_numbers(configuration)
        return
    if not args:
        for target, chosen in itertools.product(targets, made_up.dtypes(signature.schema)):
            _check_made_up(variants, configuration, target, chosen)
        return
    tensors, parameters = signature.checked_arguments(args)
    operands = tuple(None if t is None else ArrayType.of(t) for t in tensors)
    results = signature.results(operands, parameters)
    for target in targets:
        request = Request(target, operands, results, parameters, configuration)
        for variant in variants.all:
            variants.check_variant(variant, request)


def check_types(variants: Variants, target: For, expressions: Sequence[str], named: bool) -> None:
    """Compare the types of compiled kernels' parameters with the signature.

    Args:
        expressions: the kernels' name expressions.
        named: whether the user named the kernels, which then need not accept all dtypes.

    Raises:
        TypeError, ValueError: a kernel does not fit the signature.
    """
    signature = variants.signature
    if signature is None:
        return
    for expression in expressions:
        errors: list[TypeError | ValueError | None] = []
        for chosen in made_up.dtypes(signature.schema):
            example = next(made_up.examples(signature.schema, chosen), None)
            bound = None if example is None else signature.bind(*example)
            if bound is None or not signature.may_be(variants.name, expression, bound):
                continue
            try:
                variants.check_words(variants.code, target, expression, bound)
                errors.append(None)
            except (TypeError, ValueError) as error:
                errors.append(error)
        wrong = [error for error in errors if error is not None]
        if wrong and not (named and None in errors):
            raise wrong[0]


def _check_numbers(configuration: Configuration) -> None:
    """Check a launch configuration that does not depend on the arguments."""
    given = configuration.grid, configuration.block, configuration.shared_bytes
    if configuration.is_complete and not any(map(callable, given)):
        configuration.launch(b"", "", configuration.name, {})


def _check_made_up(
    variants: Variants, configuration: Configuration, target: For, chosen: Mapping[str, str]
) -> None:
    """Check calls with these dtypes; raise an error if all generated sizes fail."""
    first = None
    for example in made_up.examples(variants.signature.schema, chosen):
        request = Request(target, *example, configuration)
        try:
            for variant in variants.all:
                variants.check_variant(variant, request)
            return
        except (TypeError, ValueError) as error:
            first = first or type(error)(f"{error}; checked as for {example}")
    raise first or ValueError(
        f"{variants.where}: no generated sizes fit the signature; pass a call's arguments to check"
    )
