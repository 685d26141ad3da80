"""Fix the order of carried values in the program of torch_xla's while_loop.

torch_xla assumes that a traced computation's parameters are the carried values in order. But the
parameters are in the order of their first use, and include constants and outer tensors.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch_xla
import torch_xla.core.xla_builder as xb
from torch.utils import _pytree as pytree

from torch_xla_ext_startup.upstream_fixes import loop_functions

_XLAC = torch_xla._XLAC
_Op = xb.Op
# A linear congruential generator, by Knuth: the random seed of the next iteration.
_MULTIPLIER, _INCREMENT = 6364136223846793005, 1442695040888963407


def while_loop_wrapper(_original: Callable[..., object]) -> Callable[..., object]:
    """Replace torch_xla.experimental.fori_loop._xla_while_loop_wrapper."""
    return torch._disable_dynamo(_while_loop)  # it traces the functions itself


def _while_loop(
    cond_fn: Callable[..., torch.Tensor],
    body_fn: Callable[..., object],
    carried_inputs: Sequence[Any],
    additional_inputs: Sequence[Any] | None = None,
    fake_tensor: bool = False,  # what torch_xla's fori_loop passes
) -> object:
    """Run ``while cond_fn(*carried): carried = body_fn(*carried)`` on the device.

    Both functions also receive `additional_inputs`, after the carried values. Numbers are carried
    as tensors.
    """
    leaves, spec = pytree.tree_flatten(tuple(carried_inputs))
    carried = loop_functions.as_tensors(leaves)
    additional, additional_spec = pytree.tree_flatten(tuple(additional_inputs or ()))
    loop_functions.check_arguments("while_loop", [*carried, *additional])
    arguments = [*carried, *additional]
    arguments_spec = pytree.tree_structure(
        (*pytree.tree_unflatten(carried, spec), *pytree.tree_unflatten(additional, additional_spec))
    )

    with loop_functions.on_device_alone("while_loop"):
        condition = _Computation("condition", cond_fn, arguments, arguments_spec)
        condition.lower([_as_condition(condition.traced.leaves)])
        body = _Computation("body", body_fn, arguments, arguments_spec)
        loop_functions.check_carried("while_loop: the body", body.traced.leaves, carried)
        body.lower(body.traced.leaves)

        parameters = [*arguments, *condition.hoisted, *body.hoisted]
        first_of_body = len(arguments) + len(condition.hoisted)
        builder = xb.create_builder("while_loop")
        shapes = xb.tensor_shape(parameters)

        def cond(*values: _Op) -> _Op:
            return condition.call(values, len(arguments)).get_tuple_element(0)

        def step(*values: _Op) -> tuple[_Op, ...]:
            result = body.call(values, first_of_body)
            following = list(values)
            following[: len(carried)] = [
                result.get_tuple_element(number) for number in range(len(carried))
            ]
            for computation, first in ((condition, len(arguments)), (body, first_of_body)):
                for number in computation.seeds:
                    following[first + number] = _next_seed(values[first + number])
            return tuple(following)

        loop = _Op.mkwhile(
            tuple(xb.mkparam(builder, number, shape) for number, shape in enumerate(shapes)),
            cond,
            step,
        )
        results = _XLAC._xla_user_computation(
            "xla::while_loop", parameters, loop.build("while_loop")
        )
    results = _without_gradient(
        results[: len(carried)], [*arguments, *condition.traced.outer, *body.traced.outer]
    )
    return type(carried_inputs)(pytree.tree_unflatten(results, spec))


def _functionalized() -> torch._C._SetExcludeDispatchKeyGuard:
    """In a block, make writes to views visible, as functionalization does.

    PyTorch calls torch's while_loop after functionalization.
    """
    return torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.Functionalize, False)


class _Computation:
    """One of the loop's functions, traced as an XLA computation.

    Attributes:
        hoisted: the constants and outer tensors that the function uses, known after `lower`.
        seeds: the random seeds among `hoisted`, by index.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., object],
        arguments: list[torch.Tensor],
        spec: pytree.TreeSpec,
    ) -> None:
        self._name = name
        with _functionalized():
            self._inputs = loop_functions.placeholders(arguments)
        loop = f"while_loop: the {name}"
        seed = _XLAC._xla_get_rng_seed()

        def trace() -> loop_functions.Traced:
            _XLAC._xla_set_rng_seed(seed)
            with torch.no_grad(), _functionalized():
                return loop_functions.traced(loop, function, spec, self._inputs)

        self.traced = trace()
        key = spec, *((value.shape, value.dtype) for value in arguments)
        loop_functions.check_repeatable(
            loop, function, key, lambda: _computes_same(self.traced, trace())
        )

    def lower(self, results: list[torch.Tensor]) -> None:
        context = _XLAC.lowering.LoweringContext(self._name)
        context.set_name_string(self._name)
        context.build(results)
        self._computation = xb.computation_from_module_proto(self._name, context.hlo())
        hoisted = context.device_parameter_id_tensor_mapping()
        self._places: dict[int, int] = {}  # of the arguments that it uses, by parameter
        for number, tensor in enumerate(self._inputs):
            parameter = context.tensor_parameter_id(tensor)
            if parameter != -1:
                self._places[parameter] = number
                del hoisted[parameter]
        self._hoisted_parameters = list(hoisted)
        self.hoisted = list(hoisted.values())
        ids, values = _XLAC._get_tensors_xla_device_data_node(results)
        seeds = {
            context.tensor_parameter_id(value)
            for data, value in zip(ids, values, strict=True)
            if data == _XLAC._get_seed_info_id()
        }
        self.seeds = [
            number
            for number, parameter in enumerate(self._hoisted_parameters)
            if parameter in seeds
        ]

    def call(self, values: Sequence[_Op], first_hoisted: int) -> _Op:
        places = self._places | {
            parameter: first_hoisted + number
            for number, parameter in enumerate(self._hoisted_parameters)
        }
        return _Op.call(self._computation, [values[places[one]] for one in range(len(places))])


def _computes_same(one: loop_functions.Traced, other: loop_functions.Traced) -> bool:
    traces = [
        [leaf for leaf in traced.leaves if isinstance(leaf, torch.Tensor)]
        for traced in (one, other)
    ]
    hashes = [_XLAC._get_graph_hash(leaves) for leaves in traces]
    data = [_XLAC._get_tensors_xla_device_data_node(leaves) for leaves in traces]
    return hashes[0] == hashes[1] and all(
        first == second or torch.equal(value, other_value)
        for first, second, value, other_value in zip(
            data[0][0], data[1][0], data[0][1], data[1][1], strict=True
        )
    )


def _as_condition(leaves: list[Any]) -> torch.Tensor:
    if len(leaves) != 1 or not isinstance(leaves[0], torch.Tensor) or leaves[0].numel() != 1:
        what = ", ".join(
            loop_functions.describe(leaf) if isinstance(leaf, torch.Tensor) else repr(leaf)
            for leaf in leaves
        )
        raise TypeError(
            f"while_loop: the condition returns {what}: it must return a tensor with one element"
        )
    result = leaves[0].reshape(())
    return result if result.dtype == torch.bool else result != 0


def _next_seed(seed: _Op) -> _Op:
    builder = seed.builder()
    multiplier, increment = (
        _Op.scalar(builder, value, dtype=xb.Type.S64) for value in (_MULTIPLIER, _INCREMENT)
    )
    return seed * multiplier + increment


def _without_gradient(
    results: list[torch.Tensor], inputs: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Return the results; a backward() through them raises an error if gradients are required."""
    if not torch.is_grad_enabled() or not any(tensor.requires_grad for tensor in inputs):
        return results
    differentiable = [one for one in results if one.is_floating_point() or one.is_complex()]
    if not differentiable:
        return results
    refuse = torch._C._functions.DelayedError(
        b"while_loop has no gradient, since the number of its iterations is not known before it "
        b"runs: use torch_xla.experimental.scan, or a loop in Python",
        len(differentiable),
    )
    refused = refuse(*(one.detach().requires_grad_() for one in differentiable))
    marked = iter(refused if isinstance(refused, tuple | list) else [refused])
    return [next(marked) if one.is_floating_point() or one.is_complex() else one for one in results]
