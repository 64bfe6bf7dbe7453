"""Method-level declarations of a worker class: how a Cluster dispatches calls of that method.

``@register(mode="execute_all")``
    The call goes to every worker, the results come back as a list in the workers' order.
``@hw_mapping(hw_affinity={domain: class, ..., "default": class})``
    The method takes the domain as ``tag_name``; the call goes to one worker of the class that the domain
    maps to (an unknown domain maps to ``default``), or of a class that may stand in for it.
``@register_serverless(attribute=..., serverless_url=...)``
    Before the first call, the attribute is set on every worker to an awaitable function that invokes the
    URL; the call itself goes to the least loaded worker.

They only name candidates and change nothing about the method; a class is checked when it is created. An
override of a declared method that has no declaration of its own keeps that of the base class.
"""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from rollart.resource_plane.hardware import CATALOGUE, LOCAL, unknown_class

F = TypeVar("F", bound=Callable[..., Any])

_ATTRIBUTE = "__rollart_declaration__"
EXECUTE_ALL = "execute_all"
TAG_NAME = "tag_name"
DEFAULT = "default"


class DeclarationError(TypeError):
    """A declaration makes no sense; the message names the class, the method and the remedy."""


class ExecuteAll(msgspec.Struct, frozen=True):
    """Broadcast and gather."""


class HardwareMapping(msgspec.Struct, frozen=True):
    """One worker by the domain's hardware class; ``default`` is always a key."""

    hw_affinity: dict[str, str]


class Serverless(msgspec.Struct, frozen=True):
    """One worker, whose ``attribute`` invokes ``url``."""

    attribute: str
    url: str


Declaration = ExecuteAll | HardwareMapping | Serverless


def register(mode: str) -> Callable[[F], F]:
    """Declare how a method's calls spread over the workers; ``execute_all`` is the only mode.

    Raises:
        DeclarationError: another mode.
    """
    if callable(mode):
        raise DeclarationError('@register needs its mode: write @register(mode="execute_all")')
    if mode != EXECUTE_ALL:
        raise DeclarationError(f"@register(mode={mode!r}): the only mode is {EXECUTE_ALL!r}")
    return _declare(ExecuteAll())


def hw_mapping(hw_affinity: Mapping[str, str]) -> Callable[[F], F]:
    """Declare which hardware class each domain's calls prefer.

    Raises:
        DeclarationError: no ``default``, or a class that is not in the hardware catalogue.
    """
    if callable(hw_affinity):
        raise DeclarationError('@hw_mapping needs its mapping: write @hw_mapping(hw_affinity={"default": "H20"})')
    if DEFAULT not in hw_affinity:
        raise DeclarationError(
            f"@hw_mapping(hw_affinity={dict(hw_affinity)!r}): add the key 'default' for all other domains"
        )
    for domain, name in hw_affinity.items():
        if name not in CATALOGUE and name != LOCAL:
            raise DeclarationError(f"@hw_mapping, domain {domain!r}: {unknown_class(name)}")
    return _declare(HardwareMapping(dict(hw_affinity)))


def register_serverless(attribute: str, serverless_url: str) -> Callable[[F], F]:
    """Declare that ``self.<attribute>`` is a remote function, awaitable, at ``serverless_url``.

    Raises:
        DeclarationError: the attribute is not a name, or the URL has no scheme.
    """
    if callable(attribute):
        raise DeclarationError(
            '@register_serverless needs arguments: write @register_serverless(attribute="...", serverless_url="...")'
        )
    if not attribute.isidentifier() or keyword.iskeyword(attribute):
        raise DeclarationError(f"@register_serverless(attribute={attribute!r}): not the name of an attribute")
    if "://" not in serverless_url:
        raise DeclarationError(
            f"@register_serverless(serverless_url={serverless_url!r}): a URL has a scheme, e.g. 'inline://module:function'"
        )
    return _declare(Serverless(attribute, serverless_url))


def _declare(declaration: Declaration) -> Callable[[F], F]:
    def mark(method: F) -> F:
        if not inspect.isfunction(method):
            raise DeclarationError(f"{_spell(declaration)} stands on {method!r}, which is not a method")
        if (other := getattr(method, _ATTRIBUTE, None)) is not None:
            raise DeclarationError(
                f"{method.__qualname__} has two declarations ({_spell(declaration)} and {_spell(other)}): keep one"
            )
        setattr(method, _ATTRIBUTE, declaration)
        return method

    return mark


def _spell(declaration: Declaration) -> str:
    names = {ExecuteAll: "@register", HardwareMapping: "@hw_mapping", Serverless: "@register_serverless"}
    return names[type(declaration)]


def declarations(worker_class: type) -> dict[str, Declaration]:
    """The declarations of a class by method name, inherited ones included."""
    found: dict[str, Declaration] = {}
    for base in reversed(worker_class.__mro__):
        for name, member in vars(base).items():
            declaration = getattr(member, _ATTRIBUTE, None)
            if declaration is not None:
                found[name] = declaration
    return found


def check_declarations(worker_class: type) -> None:
    """Check a class when it is created.

    Raises:
        DeclarationError: a declared method is private, is no method any more, lacks ``tag_name`` or is not
            ``async`` where it must be; or an attribute has two URLs or is a method of the class.
    """
    urls: dict[str, str] = {}
    for name, declaration in declarations(worker_class).items():
        where = f"{worker_class.__qualname__}.{name}"
        method = inspect.getattr_static(worker_class, name)
        if not inspect.isfunction(method):
            raise DeclarationError(f"{where}: {_spell(declaration)} is inherited, but {name!r} is no method any more")
        if name.startswith("_"):
            raise DeclarationError(f"{where}: a private method cannot be called through a Cluster; drop the underscore")
        if isinstance(declaration, HardwareMapping):
            _check_tag_name(where, method)
        if isinstance(declaration, Serverless):
            _check_serverless(where, worker_class, method, declaration, urls)


def _check_tag_name(where: str, method: Callable[..., Any]) -> None:
    parameter = inspect.signature(method).parameters.get(TAG_NAME)
    if parameter is None:
        raise DeclarationError(
            f"{where}: @hw_mapping routes by the domain, which the method takes as 'tag_name': "
            f"add the parameter tag_name: str = {DEFAULT!r}"
        )
    if not isinstance(parameter.default, str):
        raise DeclarationError(f"{where}: 'tag_name' needs a default: tag_name: str = {DEFAULT!r}")


def _check_serverless(
    where: str, worker_class: type, method: Callable[..., Any], declaration: Serverless, urls: dict[str, str]
) -> None:
    if not inspect.iscoroutinefunction(method):
        raise DeclarationError(f"{where}: @register_serverless awaits a remote function: write 'async def'")
    if inspect.isfunction(inspect.getattr_static(worker_class, declaration.attribute, None)):
        raise DeclarationError(
            f"{where}: the attribute {declaration.attribute!r} is a method of the class: choose another name"
        )
    if urls.setdefault(declaration.attribute, declaration.url) != declaration.url:
        raise DeclarationError(
            f"{where}: the attribute {declaration.attribute!r} has two URLs "
            f"({urls[declaration.attribute]} and {declaration.url}): choose another name for one"
        )
