"""What a worker is called, and how it introduces itself to people."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import socket
import uuid
from collections.abc import Iterable, Sequence
from typing import Final

from wbengine import __version__, _names

__all__ = ["banner", "identity", "queue_name", "topics"]

#: So much of its topic is in the name of a queue, which cannot be longer than a topic.
_TOPIC_SHOWN: Final = 100

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


def identity() -> str:
    """A name that no other worker process has, had, or will have."""
    host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())[:60] or "host"
    return f"{host}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


def queue_name(exchange: str, topic: str, names: Iterable[str]) -> str:
    """The queue of all workers that offer these tasks on this topic of this exchange.

    It begins with the topic, for people; other exchanges of the same broker have queues of theirs.
    """
    text = "\n".join((exchange, topic, *sorted(names)))
    return f"{topic[:_TOPIC_SHOWN]}.{hashlib.sha256(text.encode()).hexdigest()[:12]}"


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
    guests: Iterable[tuple[str, str]] = (),
) -> str:
    """Who this is, where it listens, and what it does; `guests` bring short names and texts."""
    left = len(tasks) - _TASKS_SHOWN
    met = tuple(guests)
    meeting = _MEETING.format(uri=uri, exchange=exchange, topics=", ".join(topics))
    return _BANNER.format(
        version=__version__,
        identity=identity,
        meeting=(meeting if topics or not met else "")
        + "".join(f"  {name:<9} {text}\n" for name, text in met),
        tasks=", ".join(tasks[:_TASKS_SHOWN]) + (f" and {left} more" if left > 0 else ""),
        slots=slots,
        pid=os.getpid(),
        host=socket.gethostname(),
        python=platform.python_version(),
    )
