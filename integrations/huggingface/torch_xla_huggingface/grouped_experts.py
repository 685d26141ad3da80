"""Sort an MoE block's tokens by expert, so that each expert computes only its own tokens.

The block's loop over the experts runs, but computes nothing: an expert's operations on its rows are
recorded. When the results are needed, they are computed once, for all experts, on the sorted rows;
products with an expert's weights become one grouped matmul, `torch_xla_ext.ops.grouped_linear`.

Only row-wise operations are recorded, and they must be the same for all experts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from torch_xla_ext import ops
from torch_xla_huggingface.stand_ins import Experts, Index, Rows, Unknown

# Elementwise functions, by PyTorch's names without underscores around them.
_ELEMENTWISE = {
    *("abs", "add", "clamp", "clamp_max", "clamp_min", "div", "dropout", "elu", "exp"),
    *("float", "gelu", "hardswish", "hardtanh", "leaky_relu", "maximum", "minimum"),
    *("mish", "mul", "neg", "pow", "radd", "reciprocal", "relu", "relu6", "rmul", "rsub"),
    *("rsqrt", "sigmoid", "silu", "softplus", "sqrt", "square", "sub", "tanh", "to"),
    *("truediv", "true_divide", "type", "type_as"),
}
_PRODUCTS = {"linear", "matmul", "mm"}
# The two indices of an expert's weight, `weights[expert]` and its attribute.
_PART = "_torch_xla_ext_part"
# Functions that describe a tensor without reading values.
_OF_KIND = {Tensor.dtype.__get__, Tensor.device.__get__, Tensor.shape.__get__, Tensor.ndim.__get__}
_OF_KIND |= {Tensor.dim, Tensor.size, Tensor.requires_grad.__get__}


class FewRows(Exception):  # noqa: N818
    """There are fewer rows than experts: stacking all experts' weights would cost more."""


def _name(function: Callable) -> str:
    return getattr(function, "__name__", "").strip("_")


class _Mask:
    """A router's choices in one-hot form, with the experts first, and operations on them.

    Attributes:
        kinds: the kinds of the other dimensions.
    """

    def __init__(self, routing: _Routing, kinds: tuple[str, ...] = ("token", "choice", "")) -> None:
        self._routing = routing
        self._kinds = kinds

    def permute(self, *dims: int) -> _Mask:
        return _Mask(self._routing, tuple(self._kinds[dim] for dim in dims))

    def sum(self, dim: Sequence[int]) -> _Hits:
        if self._kinds[0] or {i % 3 for i in dim} != {1, 2}:
            raise Unknown("summing the choices")
        return _Hits(self._routing.num_classes - self._routing.skips_last)

    def __getitem__(self, expert: int) -> _ExpertMask:
        if self._kinds[0]:
            raise Unknown("indexing a dimension other than the experts")
        return _ExpertMask(self._routing, range(self._routing.num_classes)[expert], self._kinds[1:])

    def __getattr__(self, name: str) -> object:
        raise AttributeError(name) if name.startswith("__") else Unknown(name)


class _Hits(Index):
    """Each expert's number of tokens, in which a block looks for positive elements."""

    def __init__(self, count: int) -> None:
        self._count = count

    def nonzero(self, *, as_tuple: bool = False) -> Experts:
        if as_tuple:
            raise Unknown("the experts as a tuple")
        return Experts(self._count)

    def is_above(self, number: int) -> _Hits:
        if number != 0:
            raise Unknown("the number of an expert's tokens")
        return self


_Hits.known = {torch.greater: _Hits.is_above, torch.gt: _Hits.is_above}


class _ExpertMask(Index):
    """A mask of the tokens that chose an expert."""

    def __init__(self, routing: _Routing, expert: int, kinds: tuple[str, ...]) -> None:
        self._routing = routing
        self._expert = expert
        self._kinds = kinds

    def squeeze(self, dim: int) -> _ExpertMask:
        if dim != 0:
            raise Unknown("squeeze")
        return self

    def where(self) -> tuple[_Rows, ...]:
        return tuple(_Rows(self._routing, self._expert, kind) for kind in self._kinds)


_ExpertMask.known = {torch.where: _ExpertMask.where}


class _Rows(Rows):
    """The indices of an expert's tokens, or of these tokens' choices."""

    def __init__(self, routing: _Routing, expert: int, kind: str) -> None:
        self.routing = routing
        self.expert = expert
        self.kind = kind


def _taken(tensor: Tensor, index: object) -> _Value:
    """Record ``tensor[index]``."""
    items = list(index) if isinstance(index, tuple) else [index]
    rows = [item for item in items if item is not None]
    first = rows[0]
    if not isinstance(tensor, Tensor) or not isinstance(first, _Rows) or first.kind != "token":
        raise Unknown("indexing a dimension other than the tokens")
    routing, expert = first.routing, first.expert
    if tensor.shape[0] != routing.num_tokens:
        raise Unknown("indexing a dimension other than the tokens")
    if len(rows) == 1:
        value = _Value(_tokens, (tensor,), routing, expert)
    elif len(rows) != 2 or tensor.dim() != 2:
        raise Unknown("indexing several dimensions at once")
    elif isinstance(rows[1], _Rows) and rows[1].kind == "choice" and rows[1].expert == expert:
        value = _Value(_of_choices, (tensor,), routing, expert)
    elif type(rows[1]) is int and rows[1] == expert:
        value = _Value(_of_experts, (tensor,), routing, expert)
    else:
        raise Unknown("indexing several dimensions at once")
    places = tuple(None if item is None else slice(None) for item in items if item not in rows[1:])
    return (
        value if places == (slice(None),) else _Value(_inserted, (value, places), routing, expert)
    )


_Rows.known = {Tensor.__getitem__: _taken}


def _tokens(rows: _SortedRows, tensor: Tensor) -> Tensor:
    return rows.gather(tensor, rows.order // rows.top_k)


def _of_choices(rows: _SortedRows, tensor: Tensor) -> Tensor:
    return rows.gather(tensor.reshape(-1, 1), rows.order).squeeze(1)


def _of_experts(rows: _SortedRows, tensor: Tensor) -> Tensor:
    chosen = tensor.gather(1, rows.choices.clamp(max=tensor.shape[1] - 1))
    return _of_choices(rows, chosen)


def _inserted(_: _SortedRows, rows: Tensor, places: tuple) -> Tensor:
    """Insert dimensions; a later reshape removes one that comes before the rows."""
    return rows[places[1:] if places[0] is None else places]


class _Value(Index):
    """A record of an operation on an expert's rows."""

    def __init__(
        self,
        function: Callable,
        args: tuple,
        routing: _Routing,
        expert: int,
        kwargs: dict[str, object] | None = None,
    ) -> None:
        self.function = function
        self.args = args
        self.kwargs = kwargs or {}
        self.routing = routing
        self.expert = expert

    @classmethod
    def __torch_function__(
        cls,
        function: Callable,
        types: Sequence[type],
        args: tuple = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        name = _name(function)
        values = [arg for arg in args if isinstance(arg, _Value)]
        if not values or name not in _ELEMENTWISE | _PRODUCTS:
            raise Unknown(name)
        if name in _PRODUCTS and (args[0] is not values[0] or len(values) > 1):
            raise Unknown(name)
        return values[0].then(function, args, kwargs)

    def then(
        self, function: Callable, args: tuple, kwargs: dict[str, object] | None = None
    ) -> _Value:
        others = [arg for arg in args if isinstance(arg, _Value)]
        if any(other.expert != self.expert for other in others):
            raise Unknown("combining the rows of several experts")
        return _Value(function, args, self.routing, self.expert, kwargs)

    def reshape(self, *shape: int) -> _Value:
        return self.then(_reshaped, (self, shape))

    view = reshape

    def unsqueeze(self, dim: int) -> _Value:
        return self.then(_unsqueezed, (self, dim))

    def chunk(self, count: int, dim: int = 0) -> tuple[_Value, ...]:
        return tuple(self.then(_chunk, (self, count, dim, i)) for i in range(count))

    def __getitem__(self, index: object) -> _Value:
        return self.then(_columns, (self, index))

    def __getattr__(self, name: str) -> Callable[..., object]:
        if name not in _ELEMENTWISE | {"matmul", "mm"}:
            raise AttributeError(name) if name.startswith("__") else Unknown(name)
        function = getattr(Tensor, name)
        return lambda *args, **kwargs: self.then(function, (self, *args), kwargs)


def _operator(name: str) -> Callable[..., _Value]:
    function = getattr(Tensor, name)
    return lambda self, *args: self.then(function, (self, *args))


for _each in ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "neg", "pow", "matmul"):
    setattr(_Value, f"__{_each}__", _operator(f"__{_each}__"))


def _reshaped(_: _SortedRows, rows: Tensor, shape: tuple) -> Tensor:
    if len(shape) != 2 or shape != (-1, rows.shape[-1]) or rows.dim() != 2:
        raise Unknown("reshape")
    return rows


def _unsqueezed(_: _SortedRows, rows: Tensor, dim: int) -> Tensor:
    if dim not in (-1, rows.dim()):
        raise Unknown("unsqueeze")
    return rows.unsqueeze(dim)


def _chunk(_: _SortedRows, rows: Tensor, count: int, dim: int, part: int) -> Tensor:
    if rows.dim() != 2 or dim not in (-1, 1) or rows.shape[1] % count != 0:
        raise Unknown("chunk")
    return rows.chunk(count, dim)[part]


def _columns(_: _SortedRows, rows: Tensor, index: object) -> Tensor:
    if rows.dim() != 2 or not (
        isinstance(index, tuple)
        and len(index) == 2
        and index[0] in (Ellipsis, slice(None))
        and isinstance(index[1], slice)
    ):
        raise Unknown("indexing an expert's rows")
    return rows[index]


_OF_ROWS = {_tokens, _of_choices, _of_experts, _inserted, _reshaped, _unsqueezed, _chunk, _columns}


class _Routing:
    """A router's choices, and the experts' contributions to a block's result so far.

    Attributes:
        choices: [num_tokens, top_k], the experts.
        skips_last: whether the last class is no expert.
    """

    def __init__(self, choices: Tensor, num_classes: int, skips_last: bool) -> None:
        if choices.dim() != 2:
            raise Unknown("choices that are not [num_tokens, top_k]")
        self.choices = choices
        self.num_classes = num_classes
        self.skips_last = skips_last
        self.num_tokens = choices.shape[0]
        self._result: Tensor | None = None
        self._added: list[_Value] = []

    def add(self, result: Tensor, value: _Value) -> None:
        if result.shape[0] != self.num_tokens or not (
            self._result is None or self._result is result
        ):
            raise Unknown("adding the experts' results to several tensors")
        self._result = result
        self._added.append(value)

    def is_result(self, tensor: object) -> bool:
        return tensor is not None and tensor is self._result

    def finish(self) -> None:
        """Compute the experts' contributions, and add them to the result."""
        result, added = self._result, self._added
        self._result, self._added = None, []
        if not added:
            return
        if [value.expert for value in added] != list(range(len(added))):
            raise Unknown("a loop that skips experts")
        found = _SortedRows(self.choices, len(added)).of_tokens(added)
        if len(added) < self.num_classes:
            found = torch.where((self.choices < len(added))[..., None], found, 0)
        result.add_(found.sum(1).to(result.dtype))


class _SortedRows:
    """Evaluates the experts' recorded operations on the sorted rows of all experts.

    Attributes:
        choices: [num_tokens, top_k], the experts.
        order: int32 [num_rows], the choice of each row.
    """

    def __init__(self, choices: Tensor, num_experts: int) -> None:
        self.choices = choices
        self.top_k = choices.shape[1]
        flat = choices.flatten().int()
        self.order, self._position, self._ranges = ops.group_rows(flat, num_experts)
        # Rows without a group, which come last, use the last group's values.
        self._groups = flat.index_select(0, self.order).clamp(0, num_experts - 1)
        self._known: dict[int, tuple[list[_Value], Tensor]] = {}

    def of_tokens(self, values: list[_Value]) -> Tensor:
        """Return the experts' results for each choice, [num_tokens, top_k, width]."""
        rows = self._evaluate(values)
        if rows.dim() != 2:
            raise Unknown("a result that is not [num_rows, width]")
        return ops.gather_rows(rows, self._position, self.order).unflatten(0, (-1, self.top_k))

    def gather(self, tensor: Tensor, index: Tensor) -> Tensor:
        return ops.gather_rows(tensor, index, self._position)

    def _evaluate(self, values: list[_Value]) -> Tensor:
        """Evaluate one recorded operation for all experts, [num_rows, ...]."""
        first = values[0]
        known = self._known.get(id(first))
        if known is None:
            if any(
                value.function is not first.function
                or value.kwargs != first.kwargs
                or len(value.args) != len(first.args)
                for value in values
            ):
                raise Unknown("experts that differ from each other")
            columns = [_Column(column) for column in zip(*(v.args for v in values), strict=True)]
            self._known[id(first)] = known = values, self._apply(first, columns)
        if any(a is not b for a, b in zip(values, known[0], strict=True)):
            raise Unknown("experts that differ from each other")
        return known[1]

    def _apply(self, first: _Value, columns: list[_Column]) -> Tensor:
        function, name = first.function, _name(first.function)
        if function not in _OF_ROWS and name in _PRODUCTS:
            if first.kwargs:
                raise Unknown(name)
            return self._multiply(name, *columns)
        args = [
            self._evaluate(column.items) if isinstance(column.items[0], _Value) else column
            for column in columns
        ]
        if function in _OF_ROWS:
            args = [arg.shared() if isinstance(arg, _Column) else arg for arg in args]
            return function(self, *args)
        dim = max(arg.dim() for arg in args if isinstance(arg, Tensor))
        if any(isinstance(arg, Tensor) and arg.dim() != dim for arg in args):
            raise Unknown(name)
        args = [self._operand(arg, dim) if isinstance(arg, _Column) else arg for arg in args]
        result = function(*args, **first.kwargs)
        if not isinstance(result, Tensor):  # NotImplemented
            raise Unknown(name)
        return result

    def _operand(self, column: _Column, dim: int) -> object:
        """Return an operand of an elementwise operation with rows of `dim` dimensions."""
        first = column.items[0]
        if not isinstance(first, Tensor):
            return column.shared()
        if first.dim() >= dim:
            raise Unknown("an elementwise operand with too many dimensions")
        return first if column.is_shared() else self._of_rows(column)

    def _of_rows(self, column: _Column) -> Tensor:
        """Return, for each row, the value of its expert."""
        return ops.rows_of_groups(column.stack(1), self._groups, self._ranges)

    def _multiply(
        self, name: str, rows: _Column, weight: _Column, bias: _Column | None = None
    ) -> Tensor:
        x, stack = self._evaluate(rows.items), weight.stack(2)
        if x.dim() != 2:
            raise Unknown(name)
        if torch.is_autocast_enabled(x.device.type):
            dtype = torch.get_autocast_dtype(x.device.type)
            x, stack = x.to(dtype), stack.to(dtype)
        product = ops.grouped_linear if name == "linear" else ops.grouped_matmul
        result = product(x, stack, self._ranges)
        if bias is None or bias.items[0] is None:
            return result
        return result + self._of_rows(bias).to(result.dtype)


class _Column:
    """An argument of an operation, with one value for each expert."""

    def __init__(self, items: Iterable[object]) -> None:
        self.items = list(items)

    def is_shared(self) -> bool:
        return all(item is self.items[0] for item in self.items)

    def shared(self) -> object:
        """Return the value if it is equal for all experts."""
        first = self.items[0]
        if not self.is_shared():
            kinds = {type(item) for item in self.items}
            if kinds & {Tensor, torch.nn.Parameter} or any(item != first for item in self.items):
                raise Unknown("experts that differ from each other")
        return first

    def stack(self, dim: int) -> Tensor:
        if not all(isinstance(item, Tensor) and item.dim() == dim for item in self.items):
            raise Unknown("weights with an unsupported number of dimensions")
        parts = [getattr(item, _PART, None) for item in self.items]
        if all(part is not None and part[0] is parts[0][0] for part in parts):
            whole, count = parts[0][0], len(parts)
            if [number for _, number in parts] == list(range(count)):
                return whole if whole.shape[0] == count else whole[:count]
        return torch.stack(self.items)


class GroupedExperts(TorchFunctionMode):
    """A dispatch mode for one block, in which each expert computes its own tokens.

    Args:
        skips_last: whether the last class of the choices is no expert.
    """

    def __init__(self, skips_last: bool) -> None:
        self._skips_last = skips_last
        self._routing: _Routing | None = None

    def __torch_function__(
        self,
        function: Callable,
        types: Sequence[type],
        args: tuple = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        if function is torch.nn.functional.one_hot and args[0].device.type == "xla":
            self.finish()
            choices, count = args[0], kwargs.get("num_classes", args[1] if len(args) > 1 else -1)
            if len(args) + len(kwargs) != 2:
                raise Unknown("one_hot")
            if choices.numel() < count:
                raise FewRows
            self._routing = _Routing(choices, count, self._skips_last)
            return _Mask(self._routing)
        if function is Tensor.index_add_ and len(args) == 4 and isinstance(args[3], _Value):
            result, dim, rows, value = args
            if dim != 0 or kwargs or not isinstance(rows, _Rows) or rows.expert != value.expert:
                raise Unknown("index_add_")
            value.routing.add(result, value)
            return result
        is_read = function not in _OF_KIND
        if is_read and self._routing is not None and any(map(self._routing.is_result, args)):
            self.finish()
        result = function(*args, **kwargs)
        if function is Tensor.__getitem__ and type(args[1]) is int and result.dim() > 0:
            setattr(result, _PART, args)
        return result

    def finish(self) -> None:
        if self._routing is not None:
            self._routing.finish()
