"""What a worker is called, and how it introduces itself to people."""

from __future__ import annotations

import os
import platform
import re
import socket
import uuid
from collections.abc import Iterable, Sequence
from typing import Final

from wbengine import __version__, _names
from wbengine._terminal import visible

#: The name of a worker: host, process, and what makes it another one each time.
_IDENTITY: Final = re.compile(r"([A-Za-z0-9-]{1,60})-([0-9]{1,10})-[0-9a-f]{8}")
#: What it may begin with.
_NAME: Final = re.compile("[A-Za-z0-9-]{1,60}")

#: So many tasks are named.
_TASKS_SHOWN: Final = 5

_MEETING: Final = """\
  broker    {uri}
  exchange  {exchange}
  topics    {topics}
"""

_BANNER: Final = """\
wbengine {version}, worker {identity}
{meeting}  tasks     {tasks}
  slots     {slots}
  process   {pid} on {host}, Python {python}
"""


def identity(name: str | None = None) -> str:
    """A name that no other worker process has, had, or will have.

    :param name: what it begins with, in place of the host's; more than one worker may have it.
    :raises ValueError: it cannot begin so.
    """
    if name is not None and not _NAME.fullmatch(name):
        raise ValueError(f"name={name!r} is not 1 to 60 of A-Z a-z 0-9 -")
    first = host_name(socket.gethostname()) if name is None else name
    return f"{first}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


def host_name(name: str) -> str:
    """What a host of this name is called in the names of its workers."""
    return re.sub(r"[^A-Za-z0-9-]", "-", name)[:60] or "host"


def host_and_pid(identity: str) -> tuple[str, int] | tuple[None, None]:
    """What the name of a worker says of where it runs; of other names nothing is known."""
    found = _IDENTITY.fullmatch(identity)
    return (found[1], int(found[2])) if found is not None else (None, None)


def topics(named: str | Sequence[str]) -> tuple[str, ...]:
    """The topics that a worker is told to serve.

    :raises ValueError: one cannot be the name of a topic.
    """
    names = (named,) if isinstance(named, str) else named
    return tuple(_names.check_label("topic", name) for name in names)


def banner(
    identity: str,
    uri: str,
    exchange: str,
    topics: Sequence[str],
    tasks: Sequence[str],
    slots: str,
    sources: Iterable[tuple[str, str]] = (),
) -> str:
    """Who this is, where it listens, and what it does; `sources` bring short names and texts."""
    left = len(tasks) - _TASKS_SHOWN
    met = tuple(sources)
    meeting = _MEETING.format(
        uri=visible(uri), exchange=visible(exchange), topics=visible(", ".join(topics))
    )
    return _BANNER.format(
        version=__version__,
        identity=visible(identity),
        meeting=(meeting if topics or not met else "")
        + "".join(f"  {name:<9} {visible(text)}\n" for name, text in met),
        tasks=visible(", ".join(tasks[:_TASKS_SHOWN])) + (f" and {left} more" if left > 0 else ""),
        slots=slots,
        pid=os.getpid(),
        host=socket.gethostname(),
        python=platform.python_version(),
    )
