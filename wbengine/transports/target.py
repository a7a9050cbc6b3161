"""Where to connect: from URL, transport name and options to what kombu needs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

import kombu

from wbengine.transports import _base, _files, filesystem, memory

#: Names the broker of engines and workers that are told none.
URL_VARIABLE: Final = "WBENGINE_URL"

_OURS: Final[Mapping[str, type[_base.Transport]]] = {
    "filesystem": filesystem.Transport,
    "memory": memory.Transport,
}


@dataclass(frozen=True)
class Target:
    """A resolved broker address.

    `transport` is one of our classes (`ours`), else what kombu is to find by itself (an alias, or
    None: by the URL).
    """

    url: str | None
    transport: Any
    options: dict[str, Any] = field(default_factory=dict)
    ours: bool = False

    def connect(self, **kwargs: Any) -> kombu.Connection:
        """A kombu connection, not yet opened; `kwargs` go to `kombu.Connection`."""
        return kombu.Connection(
            self.url, transport=self.transport, transport_options=dict(self.options), **kwargs
        )

    @property
    def folders(self) -> tuple[str, str] | None:
        """(in, out) of our filesystem transport, else None."""
        if self.transport is not filesystem.Transport:
            return None
        return filesystem.folders(self.url, self.options)

    @property
    def broker(self) -> str | None:
        """The broker's name of our memory transport, else None."""
        return memory.broker_name(self.url) if self.transport is memory.Transport else None


def default_folder() -> str:
    """The folder of this user: made with mode 0700 when it is not there.

    `$XDG_RUNTIME_DIR/wbengine`, or `wbengine-<uid>` in the temporary folder.

    :raises TransportFailure: it belongs to somebody else, is open to others, or is a symlink.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.path.isdir(runtime):
        path = os.path.join(runtime, "wbengine")
    else:
        path = os.path.join(tempfile.gettempdir(), f"wbengine-{os.getuid()}")
    return _files.make_folder(path, private=True)


def resolve(
    url: str | None = None,
    transport: Any = None,
    transport_options: Mapping[str, Any] | None = None,
) -> Target:
    """Find out where to connect.

    `filesystem` and `memory` (as transport or scheme of the URL) are ours, anything else is
    kombu's.  Without URL and transport: `$WBENGINE_URL`, else the default folder.  Touches no
    broker; only the default folder is made.

    :raises TypeError: an argument is of a wrong type.
    :raises ValueError: an option makes no sense.
    :raises TransportFailure: the default folder is not safe to use.
    """
    if url is not None and not isinstance(url, str):
        raise TypeError(f"The url of a broker must be a str, not {url!r}")
    if transport_options is not None and not isinstance(transport_options, Mapping):
        raise TypeError(f"transport_options must be a dict, not {transport_options!r}")
    options = dict(transport_options or {})
    has_folder = bool(options.get("data_folder_in") or options.get("data_folder_out"))
    if url is None and transport is None:
        url = os.environ.get(URL_VARIABLE) or None
        if url is None or has_folder:
            url, transport = None, "filesystem"
    name = transport if transport is not None else (url or "").partition("://")[0]
    if isinstance(name, type):
        ours = next((cls for cls in _OURS.values() if issubclass(name, cls)), None)
        if ours is None:
            return Target(url, transport, options)
        cls: type[_base.Transport] = name
    elif name in _OURS:
        cls = ours = _OURS[name]
    else:
        return Target(url, transport, options)
    interval = options.get("polling_interval")
    if interval is not None and not (isinstance(interval, int | float) and interval > 0):
        raise ValueError(f"polling_interval is {interval!r}: it must be a number above 0")
    if ours is memory.Transport:
        return Target(f"memory://{memory.broker_name(url)}", cls, options, ours=True)
    if not has_folder and not filesystem.path_of(url or ""):
        url = _url(default_folder())
    folder_in, folder_out = filesystem.folders(url, options)
    if has_folder:
        options.update(data_folder_in=folder_in, data_folder_out=folder_out)
    return Target(_url(folder_in), cls, options, ours=True)


def _url(folder: str) -> str:
    # `;` separates alternates in kombu's URLs.
    return f"filesystem://{quote(folder)}"
