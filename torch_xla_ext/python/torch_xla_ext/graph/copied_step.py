"""Let captured steps be methods, be copied and be pickled."""

import copy
import sys
from collections.abc import Callable
from typing import Any, Self


class CopiedStep:
    """A captured step; each bound method and each copy of it has its own replays.

    Attributes:
        _function: the captured function.
        _name: its qualified name.
        _attribute: its name as a method.
        _unbound: the class's step, if this is the step of one object.
    """

    _function: Callable[..., Any]
    _name: str
    _attribute: str
    _unbound: Self | None

    def _arguments(self) -> tuple:
        """Return the constructor's arguments after the function."""
        raise NotImplementedError

    def __set_name__(self, owner: type, name: str) -> None:
        self._attribute = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Return the step for one object, with replays of its own."""
        if instance is None:
            return self
        attributes, name = instance.__dict__, self._attribute
        bound = attributes.get(name)
        made = isinstance(bound, type(self)) and bound._unbound is self
        if bound is None or (made and bound._function.__self__ is not instance):
            # Otherwise it is a step of the object that copy.copy() copied.
            function = self._function.__get__(instance, owner)
            bound = attributes[name] = type(self)(function, *self._arguments())
            bound._unbound, bound._attribute = self, name
        return bound

    def __set__(self, instance: Any, value: Any) -> None:
        """Define __set__, so that __get__ takes precedence over the object's attributes."""
        instance.__dict__[self._attribute] = value

    def __delete__(self, instance: Any) -> None:
        try:
            del instance.__dict__[self._attribute]
        except KeyError:
            raise AttributeError(self._attribute) from None

    def __copy__(self) -> Self:
        return type(self)(self._function, *self._arguments())

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return a step of the copied function, without replays."""
        step = type(self)(copy.deepcopy(self._function, memo), *self._arguments())
        step._unbound, step._attribute = self._unbound, self._attribute
        return step

    def __reduce_ex__(self, _protocol: int) -> Any:
        """Pickle a step without its replays; pickle a decorated global by its name."""
        function = self._function
        if self._unbound is not None:
            return getattr, (function.__self__, self._attribute)
        found: Any = sys.modules.get(getattr(function, "__module__", None) or "")
        for name in self._name.split("."):
            found = getattr(found, name, None)
        return self._name if found is self else (type(self), (function, *self._arguments()))
