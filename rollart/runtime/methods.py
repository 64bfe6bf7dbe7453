"""A worker class seen as an interface: which methods it has and how their values cross a border.

The types come from the annotations of the methods and of the constructor. They are read once a class and
checked when a worker is spawned, so that a missing annotation is an error at start-up with the method's
name and not a failed call an hour later. Caller and worker build the same table from the same class.

Arguments cross as a tuple in the order of the signature, keyword-only parameters last and defaults filled
in by the caller.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import Any, get_type_hints

import msgspec

from rollart.codec import decode, encode

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Method:
    """How one method is called across a border.

    Raises:
        TypeError: its signature has no types, or types that cannot cross; the message says where.
    """

    def __init__(self, owner: str, function: Callable[..., Any]) -> None:
        self.name = function.__name__
        self.where = f"{owner}.{self.name}"
        signature = inspect.signature(function)
        parameters = list(signature.parameters.values())[1:]
        hints = _hints(self.where, function, parameters)
        self._signature = signature.replace(parameters=parameters)
        self._names = [parameter.name for parameter in parameters]
        self._positional = sum(parameter.kind in _POSITIONAL for parameter in parameters)
        self._defaults = [parameter.default for parameter in parameters]
        empty = [default is inspect.Parameter.empty for default in self._defaults]
        self._required = len(empty) - empty[::-1].index(True) if True in empty else 0
        self._arguments = tuple[tuple(hints[name] for name in self._names)]  # type: ignore[misc]
        self._result = hints.get("return")
        self._check_types()

    def _check_types(self) -> None:
        for kind in (self._arguments, self._result):
            try:
                _probe(kind)
            except TypeError as error:
                raise TypeError(
                    f"{self.where}: a type of its signature cannot cross a process border: {error}"
                ) from error

    def bind(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The arguments as one tuple in the signature's order, defaults filled in.

        Raises:
            TypeError: they do not fit the signature.
        """
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.where}: {error}") from error
        bound.apply_defaults()
        return tuple(bound.arguments[name] for name in self._names)

    def position(self, name: str) -> int:
        """Where a parameter stands in the tuple that :meth:`bind` returns."""
        return self._names.index(name)

    def encode(self, args: tuple[Any, ...]) -> bytes:
        """Encode arguments given in the signature's order; trailing ones with a default may be left out.

        Raises:
            TypeError: their number does not fit, or one of them cannot cross a process border.
        """
        given = len(args)
        if not self._required <= given <= len(self._names):
            raise TypeError(f"{self.where} takes ({', '.join(self._names)}), but got {given} arguments")
        try:
            return encode((*args, *self._defaults[given:]))
        except TypeError as error:
            raise TypeError(f"{self.where}: an argument does not cross: {error}") from error

    def apply(self, function: Callable[..., Any], payload: bytes | memoryview) -> Any:
        """Call ``function`` with the decoded arguments.

        Raises:
            msgspec.ValidationError: an argument does not have its declared type.
        """
        values: tuple[Any, ...] = decode(payload, self._arguments)
        cut = self._positional
        return function(*values[:cut], **dict(zip(self._names[cut:], values[cut:], strict=True)))

    def encode_result(self, result: Any) -> bytes:
        """Encode what the method returned.

        Raises:
            TypeError: it cannot cross a process border.
        """
        try:
            return encode(result)
        except TypeError as error:
            raise TypeError(f"{self.where}: the result does not cross: {error}") from error

    def decode_result(self, data: bytes | memoryview) -> Any:
        """Decode and validate a result.

        Raises:
            TypeError: it does not have the declared type.
        """
        try:
            return decode(data, self._result)
        except msgspec.DecodeError as error:
            raise TypeError(f"{self.where}: the result is not what '->' declares: {error}") from error


class MethodTable:
    """All methods of a worker class that can be called from outside: the public ones, inherited ones included."""

    def __init__(self, worker_class: type) -> None:
        name = worker_class.__qualname__
        constructor = inspect.getattr_static(worker_class, "__init__")
        self.constructor = Method(name, constructor) if inspect.isfunction(constructor) else None
        self.methods: dict[str, Method] = {}
        self._name = name
        for attribute in dir(worker_class):
            function = inspect.getattr_static(worker_class, attribute)
            if not attribute.startswith("_") and inspect.isfunction(function):
                self.methods[attribute] = Method(name, function)

    def method(self, name: str) -> Method:
        """The method called ``name``.

        Raises:
            AttributeError: there is none; the message lists what there is.
        """
        try:
            return self.methods[name]
        except KeyError:
            known = ", ".join(self.methods) or "none"
            raise AttributeError(f"{self._name} has no public method {name!r}; its methods: {known}") from None

    def encode_constructor(self, args: tuple[Any, ...]) -> bytes:
        """Encode the constructor's arguments. Raises as :meth:`Method.encode`."""
        if self.constructor is not None:
            return self.constructor.encode(args)
        if args:
            raise TypeError(f"{self._name} has no constructor, but got {len(args)} arguments")
        return encode(())

    def construct(self, worker_class: type, payload: bytes | memoryview) -> Any:
        """Create the worker from encoded arguments."""
        return worker_class() if self.constructor is None else self.constructor.apply(worker_class, payload)


def method_table(worker_class: type) -> MethodTable:
    """The table of a class, read once.

    Raises:
        TypeError: a public method or the constructor lacks annotations that can cross.
    """
    return _cached_table(worker_class)


_cached_table = lru_cache(maxsize=256)(MethodTable)


def _hints(where: str, function: Callable[..., Any], parameters: list[inspect.Parameter]) -> dict[str, Any]:
    for parameter in parameters:
        if parameter.kind in _VARIADIC:
            raise TypeError(
                f"{where}: '{parameter}' cannot cross a process border; take a list or a dict, "
                "or start the method's name with '_' if it is not called from outside"
            )
        if parameter.annotation is inspect.Parameter.empty:
            raise TypeError(
                f"{where}: parameter '{parameter.name}' has no type annotation, and the types say how values cross "
                "to the worker's process: annotate it (or start the method's name with '_')"
            )
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        raise TypeError(
            f"{where}: its annotations cannot be read ({error}): import that name at module level, "
            "not under TYPE_CHECKING or inside a function"
        ) from error
    if "return" not in hints and function.__name__ != "__init__":
        raise TypeError(f"{where}: the result has no type annotation: add '-> ...' ('-> None' for nothing)")
    return hints


def _probe(kind: Any) -> None:
    """Build the decoder of a type, which refuses what no codec could read."""
    try:
        decode(b"\xc1", kind)  # a byte that no message starts with
    except msgspec.DecodeError:
        return
