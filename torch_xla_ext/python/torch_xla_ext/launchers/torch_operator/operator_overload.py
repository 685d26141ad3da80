"""Call a PyTorch operator as a custom call."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import torch
import torch_xla
from torch.utils import _pytree as pytree

from torch_xla_ext import sharding
from torch_xla_ext.custom_call import Local, custom_call, is_cacheable, prepare
from torch_xla_ext.launchers.torch_operator import support
from torch_xla_ext.launchers.torch_operator.argument_encoding import encode
from torch_xla_ext.registry import registration
from xla_kernels.signature.schema import ArrayType

_XLAC = torch_xla._XLAC
TARGET = "XlaGpuTorchOperator"
# A sharding rule, or a function of the operator's arguments that returns one.
Rule = str | Callable[..., str | None] | None
# Computes the arguments for a device's part from its operands, as meta tensors, and its results.
OfPart = Callable[[Sequence[object], Sequence[ArrayType]], Sequence[object]]


@dataclasses.dataclass(frozen=True)
class _Call:
    """A call with given shapes and arguments, encoded for the target.

    Attributes:
        returned: the operator's return value, with a _Result in place of each result of the call.
    """

    attributes: dict[str, object]
    outputs: list[tuple[Sequence[int], torch.dtype]]
    aliases: dict[int, int]
    returned: tuple[object, ...]


class _Result(int):
    """The index of a result of the call, counted after the results written in place."""


class OperatorOverload:
    """An operator's overload, which can be called as a custom call."""

    def __init__(self, overload: torch._ops.OpOverload) -> None:
        self.overload = overload
        self.schema = overload._schema
        self.arguments = self.schema.arguments
        self.written = [support.is_written(argument) for argument in self.arguments]
        self.is_pure = not any(self.written)
        self._num_positional = sum(not argument.kwarg_only for argument in self.arguments)
        self._defaults = [(a.name, a.has_default_value(), a.default_value) for a in self.arguments]
        # Checked and encoded calls by their keys: csrc/custom_call/prepared_call.h.
        self._prepared: dict[bytes, tuple[object, _Call]] = {}
        self._sharding_rule: Rule = None

    def set_sharding_rule(self, rule: Rule) -> None:
        """Set the sharding rule for calls that pass none.

        Raises:
            ValueError: the operator has random results.
        """
        self._check_not_random()
        self._sharding_rule = rule
        self._prepared.clear()

    @property
    def _is_random(self) -> bool:
        return torch.Tag.nondeterministic_seeded in self.overload.tags

    def _check_not_random(self) -> None:
        if self._is_random:
            raise ValueError(
                f"{self.overload.name()} has random results, which would differ between devices "
                "with the same shard: omit the sharding_rule"
            )

    @cached_property
    def out(self) -> torch._ops.OpOverload | None:
        """The out= overload, which writes this one's results to arguments."""
        wanted = [(a.name, str(a.type)) for a in self.arguments]
        packet = self.overload.overloadpacket
        if any(self.written) or any(str(r.type) != "Tensor" for r in self.schema.returns):
            return None
        for name in packet.overloads():
            other = getattr(packet, name)
            arguments = other._schema.arguments
            extra = [a for a in arguments if a.kwarg_only and support.is_written(a)]
            rest = [(a.name, str(a.type)) for a in arguments if not support.is_written(a)]
            # A generated out= overload only copies the functional overload's results, as this class
            # does.
            if (
                rest == wanted
                and [str(a.type) for a in extra] == ["Tensor"] * len(self.schema.returns)
                and arguments[len(rest) :] == extra
                and torch.Tag.generated not in other.tags
            ):
                return other
        return None

    def bind(self, args: Sequence[object], kwargs: Mapping[str, object]) -> list[object]:
        """Return the values of all arguments in the schema's order."""
        rest = dict(kwargs)
        values = list(args)
        if len(values) > self._num_positional:
            self._refuse_surplus(f"{len(args)} positional ones")
        for name, has_default, default in self._defaults[len(values) :]:
            if name in rest:
                values.append(rest.pop(name))
            elif has_default:
                values.append(default)
            else:
                raise TypeError(
                    f"{self.overload.name()}: argument {name} is missing; the schema is "
                    f"{self.schema}"
                )
        if rest:
            self._refuse_surplus(", ".join(rest))
        return values

    def _refuse_surplus(self, surplus: str) -> None:
        raise TypeError(
            f"{self.overload.name()}: unexpected arguments: {surplus}; the schema is {self.schema}"
        )

    def invoke(self, values: Sequence[object]) -> tuple[object, ...]:
        """Call the operator itself, and return its results as a tuple."""
        split = self._num_positional
        keywords = {a.name: v for a, v in zip(self.arguments, values, strict=True) if a.kwarg_only}
        returned = self.overload(*values[:split], **keywords)
        if len(self.schema.returns) == 1:
            return (returned,)
        return tuple(returned) if self.schema.returns else ()

    def call(
        self,
        values: Sequence[object],
        sharding_rule: str | None = None,
        of_part: OfPart | None = None,
    ) -> tuple[list[torch.Tensor], tuple[object, ...]]:
        """Add the custom call to the program.

        Args:
            sharding_rule: by default the operator's.
            of_part: returns the values for a device's part, if arguments besides tensors depend on
                the part; equal values must have equal functions.

        Returns:
            The new values of the tensors that are written to, and the operator's return value, with
            None in place of these tensors.
        """
        operands: list[torch.Tensor] = []
        key = _XLAC._xla_call_key((sharding_rule, *values), operands, _number)
        if key is None or not operands or not is_cacheable(TARGET):
            return self._call_unusual(values, sharding_rule, of_part)
        found = self._prepared.get(key)
        if found is None:
            if len(self._prepared) > 4000:
                self._prepared.clear()
            call = self._planned(values)
            arguments = self._custom_call(call, operands, values, sharding_rule, of_part)
            found = prepare(**arguments), call
            self._prepared[key] = found
        return self._results(found[1], _XLAC._xla_call_prepared(found[0], operands))

    def _call_unusual(
        self, values: Sequence[object], sharding_rule: str | None, of_part: OfPart | None
    ) -> tuple[list[torch.Tensor], tuple[object, ...]]:
        """Make a call that cannot be cached, because its arguments have no key."""
        values = [self._on_device(values, value) for value in values]
        operands = [leaf for leaf in pytree.tree_leaves(values) if _is_operand(leaf)]
        if not operands:
            raise TypeError(f"{self.overload.name()}: none of its arguments is an XLA tensor")
        call = self._planned(values)
        arguments = self._custom_call(call, operands, values, sharding_rule, of_part)
        return self._results(call, custom_call(**arguments))

    def _custom_call(
        self,
        call: _Call,
        operands: Sequence[torch.Tensor],
        values: Sequence[object],
        sharding_rule: str | None,
        of_part: OfPart | None,
    ) -> dict[str, object]:
        """Return the arguments of custom_call."""
        rule = self._sharding_rule if sharding_rule is None else sharding_rule
        if callable(rule):
            rule = rule(**{a.name: v for a, v in zip(self.arguments, values, strict=True)})
        if rule is not None:
            self._check_not_random()
        elif self._is_random and sharding.num_devices() > 1:
            raise NotImplementedError(
                f"{self.overload.name()} has random results, which would differ between the "
                f"{sharding.num_devices()} devices; use an operator of torch_xla, whose random "
                "numbers are the same on all devices"
            )
        metas = pytree.tree_map(_meta, list(values))

        def arguments(
            inputs: Sequence[torch.Tensor], outputs: Sequence[ArrayType]
        ) -> dict[str, object]:
            parts = iter(inputs)
            own = pytree.tree_map(lambda v: next(parts) if _is_operand(v) else v, metas)
            try:
                part = self._planned(own if of_part is None else of_part(own, outputs))
            except (RuntimeError, IndexError) as error:  # of its fake function
                raise ValueError(str(error)) from None
            return {"outputs": part.outputs, "attributes": part.attributes}

        return {
            "target": TARGET,
            "inputs": operands,
            "outputs": call.outputs,
            "attributes": call.attributes,
            "api": "ffi",
            "aliases": call.aliases,
            # Otherwise XLA would merge two equal calls.
            "has_side_effect": self._is_random,
            "sharding_rule": rule,
            "local": Local(arguments),
        }

    def _results(
        self, call: _Call, results: list[torch.Tensor]
    ) -> tuple[list[torch.Tensor], tuple[object, ...]]:
        """Return the results of `call`."""
        count = len(call.aliases)
        return results[:count], _filled(call.returned, results[count:])

    def _on_device(self, values: Sequence[object], value: object) -> object:
        """Move a scalar CPU tensor to the device of the others."""

        def moved(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.device.type == "xla" or _is_number(tensor):
                return tensor
            if tensor.device.type == "cpu" and tensor.dim() == 0:
                leaves = pytree.tree_leaves(values)
                devices = [t.device for t in leaves if _is_operand(t) and t.device.type == "xla"]
                if devices:
                    return tensor.to(devices[0])
            raise TypeError(
                f"{self.overload.name()}: all tensors must be XLA tensors, but one is on "
                f"{tensor.device}"
            )

        return pytree.tree_map_only(torch.Tensor, moved, value)

    def _planned(self, values: Sequence[object]) -> _Call:
        count = 0
        outputs, aliases, words = [], {}, []
        for value, written in zip(values, self.written, strict=True):

            def word(tensor: torch.Tensor, written: bool = written) -> str:
                nonlocal count
                if not _is_operand(tensor):
                    return encode(tensor.item(), word)
                count += 1
                if not written:
                    return f"t{count - 1}"
                aliases[len(outputs)] = count - 1
                outputs.append((tuple(tensor.shape), tensor.dtype))
                return f"r{len(outputs) - 1}={count - 1}"

            words.append(encode(value, word))

        def result(tensor: torch.Tensor) -> str:
            outputs.append((tuple(tensor.shape), tensor.dtype))
            return f"r{len(outputs) - 1}"

        def numbered(value: object) -> object:
            if isinstance(value, (list, tuple)):
                return type(value)(map(numbered, value))
            return _Result(next(numbers)) if isinstance(value, torch.Tensor) else value

        numbers = itertools.count()
        returned = self._faked(values)
        returns = ["-" if value is _WRITTEN else encode(value, result) for value in returned]
        run = self.out if self.out is not None and "n" not in returns else self.overload
        if run is self.out:
            words, returns = [*words, *returns], ["-"] * len(returns)
        platform = registration.device_platform()
        attributes = {
            "operator": run._schema.name,
            "overload": run._schema.overload_name,
            "arguments": " ".join(words),
            "returns": " ".join(returns),
            "python": support.is_python(run, platform),
        }
        public = numbered(tuple(None if value is _WRITTEN else value for value in returned))
        return _Call(attributes, outputs, aliases, public)

    def _faked(self, values: Sequence[object]) -> tuple[object, ...]:
        """Return the operator's results for meta tensors; _WRITTEN for an argument."""
        if not self.schema.returns and not support.has_fake_function(self.overload):
            return ()
        with torch.no_grad():
            returned = self.invoke(pytree.tree_map(_meta, values))
        for leaf in pytree.tree_leaves(returned):
            if isinstance(leaf, torch.Tensor) and leaf.device.type != "meta":
                raise RuntimeError(
                    f"{self.overload.name()}: its fake function returns a tensor on {leaf.device} "
                    "for meta tensors"
                )
        return tuple(
            _WRITTEN if info.alias_info is not None else value
            for info, value in zip(self.schema.returns, returned, strict=True)
        )

    def written_tensors(self, values: Sequence[object]) -> list[torch.Tensor]:
        """Return the tensors that the operator writes to."""
        written = [v for v, is_written in zip(values, self.written, strict=True) if is_written]
        return [leaf for leaf in pytree.tree_leaves(written) if leaf is not None]

    def returned(self, values: Sequence[object], results: tuple[object, ...]) -> object:
        """Return the operator's results; if it returns an argument, that is the same tensor."""
        by_alias = {
            next(iter(argument.alias_info.before_set)): value
            for argument, value in zip(self.arguments, values, strict=True)
            if argument.alias_info is not None
        }
        filled = [
            by_alias[next(iter(info.alias_info.before_set))] if info.alias_info else result
            for info, result in zip(self.schema.returns, results, strict=True)
        ]
        if len(filled) == 1:
            return filled[0]
        return tuple(filled) if filled else None


_WRITTEN = object()


def _is_number(tensor: torch.Tensor) -> bool:
    """Return whether the dispatcher made this CPU tensor from a Python number."""
    if tensor.device.type != "cpu" or tensor.dim() != 0:
        return False
    narrow = {torch.float64: torch.float32, torch.int64: torch.int8, torch.bool: torch.bool}
    if tensor.dtype not in narrow:
        return False
    other = torch.empty((), dtype=narrow[tensor.dtype])
    return torch.result_type(tensor, other) == other.dtype


def _is_operand(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor) and not _is_number(leaf)


def _meta(value: object) -> object:
    """Return the meta tensor that stands for a value."""
    if isinstance(value, torch.device):
        return torch.device("meta")
    if _is_operand(value):
        return torch.empty(tuple(value.shape), dtype=value.dtype, device="meta")
    return value


def _number(value: object) -> tuple[torch.dtype, str] | None:
    """Return what a tensor that stands for a number adds to the key of a cached call."""
    if type(value) in (torch.Tensor, torch.nn.Parameter) and _is_number(value):
        return value.dtype, repr(value.item())
    return None


def _filled(returned: object, results: Sequence[torch.Tensor]) -> object:
    """Return the operator's result, with the call's results filled in."""
    kind = type(returned)
    if kind is _Result:
        return results[returned]
    if kind is tuple or kind is list:
        return kind([_filled(value, results) for value in returned])
    return returned
