"""Serverless functions: a URL becomes an awaitable call. What ``@register_serverless`` sets on a worker.

A provider makes the callable for the URLs of its scheme. ``inline://module:function`` imports the function
and runs it in the worker's own process (off the event loop if it is not ``async``); it is the provider of
tests and of small runs. Others register under their scheme and are used by nothing but their URLs.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from rollart.registry import Registry, import_path
from rollart.runtime.offload import offload

RemoteFunction = Callable[..., Awaitable[Any]]
Provider = Callable[[str], RemoteFunction]
"""Takes the whole URL."""


class ServerlessError(ValueError):
    """A URL that no provider can serve; the message names those that exist."""


def inline(url: str) -> RemoteFunction:
    """The provider of ``inline://module:function``.

    Raises:
        LookupError: there is no such module or function.
        ServerlessError: the URL has another form, or names something that cannot be called.
    """
    path = url.partition("://")[2]
    if ":" not in path:
        raise ServerlessError(f"{url!r}: write inline://module:function, e.g. inline://my_package.rewards:score")
    function: Any = import_path(path, "serverless function")
    if not callable(function):
        raise ServerlessError(f"{url!r} is not a function")

    async def call(*args: Any, **kwargs: Any) -> Any:
        if inspect.iscoroutinefunction(function):
            return await function(*args, **kwargs)
        return await offload(function, *args, **kwargs)

    return call


providers: Registry[Provider] = Registry("serverless provider", {"inline": inline})
"""Providers by URL scheme."""


def check_url(url: str) -> None:
    """Refuse a URL that cannot be served.

    Raises:
        ServerlessError: its scheme has no provider.
    """
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in providers:
        supported = ", ".join(f"{name}://" for name in providers)
        raise ServerlessError(
            f"{url!r}: there is no serverless provider for this scheme; supported: {supported} "
            "(inline://module:function runs the function in the worker's own process)"
        )


def connect(url: str) -> RemoteFunction:
    """The callable for a URL.

    Raises:
        ServerlessError: its scheme has no provider, or the provider refuses the URL.
    """
    check_url(url)
    return providers.get(url.partition("://")[0])(url)
