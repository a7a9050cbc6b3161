"""Identity and startup banner of a worker."""

from __future__ import annotations

import os
import platform
import re
import socket
import uuid
from collections.abc import Sequence
from typing import Final

from wbengine import __version__
from wbengine._introspection import object_names
from wbengine._text.terminal_text import visible

#: Maximum length of a worker's name, which is the prefix of its identity.
_MAX_NAME_LENGTH: Final = 60
#: Identity of a worker: name, process id and a random part.
_IDENTITY: Final = re.compile(r"([A-Za-z0-9-]{1,60})-([0-9]{1,10})-[0-9a-f]{8}")
_NAME: Final = re.compile("[A-Za-z0-9-]+")

_TASKS_SHOWN: Final = 5


def identity(name: str | None = None) -> str:
    """Return a unique identity for a worker process.

    :param name: prefix instead of the host name. Several workers may have the same name.
    :raises ValueError: if `name` is not valid.
    """
    if name is not None and not _NAME.fullmatch(
        object_names.check_length("The name of a worker", name, _MAX_NAME_LENGTH)
    ):
        raise ValueError(
            f"name must be 1 to {_MAX_NAME_LENGTH} characters of A-Z a-z 0-9 -, got {name!r}"
        )
    first = host_name(socket.gethostname()) if name is None else name
    return f"{first}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


def host_name(name: str) -> str:
    """Return a host name with the characters that identities may contain."""
    return re.sub(r"[^A-Za-z0-9-]", "-", name)[:_MAX_NAME_LENGTH] or "host"


def host_and_pid(identity: str) -> tuple[str, int] | tuple[None, None]:
    """Return host and process id from an identity, or (None, None) if it has another form."""
    match = _IDENTITY.fullmatch(identity)
    return (match[1], int(match[2])) if match is not None else (None, None)


def topics(named: str | Sequence[str]) -> tuple[str, ...]:
    """Return the topics of a worker as a tuple.

    :raises ValueError: if a name is not valid.
    """
    names = (named,) if isinstance(named, str) else named
    return tuple(object_names.check_label("topic", name) for name in names)


def banner(
    identity: str,
    uri: str,
    exchange: str,
    topics: Sequence[str],
    tasks: Sequence[str],
    slots: str,
    sources: Sequence[tuple[str, str]] = (),
) -> str:
    """Return the startup banner.

    :param sources: short names and texts of additional task sources.
    """
    hidden_count = len(tasks) - _TASKS_SHOWN
    more = f" and {hidden_count} more" if hidden_count > 0 else ""
    process = f"{os.getpid()} on {socket.gethostname()}, Python {platform.python_version()}"
    broker = (("broker", uri), ("exchange", exchange), ("topics", ", ".join(topics)))
    lines = (
        *(broker if topics or not sources else ()),
        *sources,
        ("tasks", ", ".join(tasks[:_TASKS_SHOWN]) + more),
        ("slots", slots),
        ("process", process),
    )
    return f"wbengine {__version__}, worker {visible(identity)}\n" + "".join(
        f"  {name:<9} {visible(text)}\n" for name, text in lines
    )
