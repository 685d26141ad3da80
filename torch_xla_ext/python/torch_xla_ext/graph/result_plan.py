"""Make the plans from which a replay builds the step's results and gradients."""

import collections
import dataclasses
import gc
import weakref
from typing import Any

import torch
import torch_xla
from torch.utils import _pytree as pytree

from torch_xla_ext.graph import watch
from torch_xla_ext.graph.errors import CaptureError
from torch_xla_ext.graph.results import (
    New,
    Planner,
    Reference,
    Result,
    SameTensor,
    View,
    tensors_in,
)
from torch_xla_ext.graph.tensors import location_of, view_of

_XLAC = torch_xla._XLAC


@dataclasses.dataclass
class Known:
    """A tensor that existed before the trace."""

    name: str
    tensor: torch.Tensor
    argument: int | None = None  # its index among the tensor arguments
    gradient_of: int | None = None  # index of the known tensor whose .grad it is
    requires_grad: bool = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.requires_grad = self.tensor.requires_grad


class Plans:
    """The plans of one trace.

    Args:
        known: the tensors that existed before the trace.
        by_id: their indices, by their addresses.
        by_storage: their indices, by their storages.
        gradients: the .grad of these tensors before the trace.
        saved: the data of these tensors before the trace.
        existing: the addresses of objects that existed before the trace, if known.
    """

    def __init__(
        self,
        known: list[Known],
        by_id: dict[int, int],
        by_storage: dict[int, list[int]],
        gradients: dict[int, torch.Tensor | None],
        saved: Any,
        existing: set[int] | None,
    ) -> None:
        self._known, self._by_id, self._by_storage = known, by_id, by_storage
        self._gradients, self._saved, self._existing = gradients, saved, existing

    def of_outputs(self, outputs: Any, new: list[torch.Tensor]) -> Result:
        """Return the plan for the outputs; add tensors that the program computes to `new`."""
        planner, plan = self.check_results(outputs)
        tensors = planner.tensors
        uses = collections.Counter(map(_XLAC._xla_capture_storage, tensors.values()))
        plans: dict[int, Result] = {}  # by the identity of the tensor
        roots: dict[int, torch.Tensor] = {}  # for new storages with several results
        for identity, tensor in tensors.items():
            number = self._by_id.get(identity)
            storage = _XLAC._xla_capture_storage(tensor)
            if number is not None:
                plans[identity] = SameTensor(self._reference(number))
            elif storage in self._by_storage:
                plans[identity] = self._alias(tensor, self._by_storage[storage])
            elif uses[storage] == 1:
                plans[identity] = New(len(new))
                new.append(tensor)
            else:
                root = tensor if tensor._base is None else tensor._base
                if storage not in roots:
                    roots[storage] = root
                    root_number = len(new)
                    new.append(root)
                    plans[storage] = New(root_number)
                view = view_of(tensor, roots[storage])
                if view is None:
                    raise CaptureError(
                        f"results share memory in a way that a replay cannot repeat, "
                        f"{watch.describe(tensor)} among them: return a clone() of it"
                    )
                plans[identity] = View(plans[storage], view, location_of(tensor))
        return planner.finish(plan, plans)

    def check_results(self, outputs: Any) -> tuple[Planner, Any]:
        """Refuse outputs that a replay cannot return; return their tensors."""
        planner = Planner(self._is_result, self._existing)
        plan = planner.take_apart(outputs)
        for position, tensor in enumerate(planner.tensors.values()):
            self._check_result(position, tensor)
        return planner, plan

    def _is_result(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is an argument, or was made on the device by the step."""
        number = self._by_id.get(id(tensor))
        if number is not None:
            return self._known[number].argument is not None
        return tensor.device.type == "xla" and not self._is_older(tensor)

    def _is_older(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor on the device existed before the trace."""
        return (
            not _XLAC._xla_capture_is_supported(tensor)
            or _XLAC._xla_get_tensor_id(tensor) < self._saved.first_new_id
        )

    def _check_result(self, position: int, tensor: torch.Tensor) -> None:
        name = f"result {position}, {watch.describe(tensor)},"
        if tensor.device.type != "xla":
            raise CaptureError(
                f"{name} is on {tensor.device}, where a replay would not compute it: return a "
                "tensor of the XLA device"
            )
        if tensor.requires_grad and id(tensor) not in self._by_id:
            raise CaptureError(
                f"{name} requires a gradient, and a replay records no graph for backward(): call "
                "backward() inside the function and return its detach(), or use torch.no_grad()"
            )

    def _alias(self, tensor: torch.Tensor, numbers: list[int]) -> Result:
        for number in numbers:
            known = self._known[number]
            view = view_of(tensor, known.tensor)
            if view is not None:
                return View(SameTensor(self._reference(number)), view, location_of(tensor))
        raise CaptureError(
            f"a result, {watch.describe(tensor)}, shares memory with "
            f"{self._known[numbers[0]].name} in a way that cannot be repeated: return a clone() "
            "of it"
        )

    def _reference(self, number: int) -> Reference:
        known = self._known[number]
        if known.argument is not None:
            return Reference(argument=known.argument)
        return Reference(tensor=weakref.ref(known.tensor))

    def of_gradients(self, new: list[torch.Tensor]) -> list[tuple[Reference, int | None]]:
        """Return the tensors whose .grad the step replaces, with the new one's index or None."""
        plan: list[tuple[Reference, int | None]] = []
        for number, before in self._gradients.items():
            after = self._known[number].tensor.grad
            if after is before:
                continue
            if after is not None and id(after) in self._by_id:
                raise CaptureError(
                    "the function assigns a tensor that existed before to "
                    f"{self._known[number].name}.grad: assign a copy of it instead"
                )
            plan.append((self._reference(number), None if after is None else len(new)))
            if after is not None:
                new.append(after)
        return plan

    def kept_tensor(self, outputs: Any, made: list[weakref.ref]) -> str | None:
        """Describe a tensor of the trace that is still in use, but no result or gradient."""
        if any(known.tensor.grad_fn is not None for known in self._known):
            return None  # its autograd graph keeps tensors
        if self._find_kept(outputs, made) is None:
            return None
        gc.collect()
        found = self._find_kept(outputs, made)
        return None if found is None else watch.describe(found)

    def _find_kept(self, outputs: Any, made: list[weakref.ref]) -> torch.Tensor | None:
        expected = set(self._by_storage)
        results = pytree.tree_leaves(outputs)
        results += [known.tensor.grad for known in self._known if known.tensor.is_leaf]
        for result in results:
            for tensor in [result] if isinstance(result, torch.Tensor) else tensors_in(result):
                if _XLAC._xla_capture_is_supported(tensor):
                    expected.add(_XLAC._xla_capture_storage(tensor))
        for reference in made:
            tensor = reference()
            if (
                tensor is not None
                and _XLAC._xla_capture_is_used_by_python(tensor)
                and _XLAC._xla_capture_is_supported(tensor)
                and _XLAC._xla_capture_storage(tensor) not in expected
                and not _XLAC._xla_capture_data_address(tensor)
            ):
                return tensor
        return None
