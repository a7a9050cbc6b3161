"""What is installed, and what is not."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import Final

from wbengine import _plugins
from wbengine.diagnosis.findings import Finding, Place, bad, good, line, note
from wbengine.drawing import graphviz

__all__ = ["extras", "pictures", "plugins", "python"]

#: What each extra brings along that is imported.
_EXTRAS: Final[Mapping[str, tuple[str, ...]]] = {
    "redis": ("redis",),
    "mysql": ("pymysql",),
    "postgresql": ("psycopg",),
    "zookeeper": ("kazoo",),
    "etcd": ("etcd3gw",),
    "metrics": ("prometheus_client",),
    "otel": ("opentelemetry.trace",),
    "dashboard": ("starlette", "uvicorn", "jinja2", "sse_starlette"),
}
#: Which extra a kind of place takes.
_OF_KIND: Final[Mapping[str, str]] = {
    "redis": "redis", "rediss": "redis", "mysql": "mysql", "mariadb": "mysql",
    "postgresql": "postgresql", "postgres": "postgresql", "pgsql": "postgresql",
    "zookeeper": "zookeeper", "etcd": "etcd",
}  # fmt: skip
#: Those without which everything else works.
_COMFORTS: Final = ("dashboard", "metrics", "otel")


def python() -> Iterator[Finding]:
    """The versions of Python and of wbengine."""
    import wbengine

    told = ".".join(map(str, sys.version_info[:3]))
    yield good("wbengine", f"version {wbengine.__version__}, Python {told}")


def extras(place: Place) -> Iterator[Finding]:
    """What the places that are set take; then what is optional: that it is missing is no fault."""
    wanted = {
        _OF_KIND[kind]: what
        for what, told in (
            ("the broker", place.url),
            ("the ledger", place.ledger),
            ("the store", place.persistence),
            ("the job board", place.board),
        )
        if told and (kind := told.partition(":")[0].partition("+")[0]) in _OF_KIND
    }
    for extra, what in wanted.items():
        missing = _missing(extra)
        if missing:
            yield bad(
                "extras",
                f"{what} takes packages that are not installed, or cannot be imported: {missing}",
                f"pip install 'wbengine[{extra}]'",
            )
        else:
            yield good("extras", f"what {what} takes is installed ({extra})")
    without = [extra for extra in _COMFORTS if extra not in wanted and _missing(extra)]
    if without:
        told = ", ".join(without)
        how = f"pip install 'wbengine[{','.join(without)}]'"
        yield note("extras", f"optional, and not installed: {told} (to have them: {how})")
    else:
        yield good("extras", f"what is optional is installed: {', '.join(_COMFORTS)}")


def pictures() -> Iterator[Finding]:
    """Whether there is a program that draws graphs."""
    if graphviz.available():
        yield good("graphviz", "graphs are drawn by dot")
    else:
        yield note(
            "graphviz", f"dot is not on the PATH, so no graphs as SVG and PNG: {graphviz.INSTALL}"
        )


def _missing(extra: str) -> str:
    missing = []
    for name in _EXTRAS[extra]:
        try:
            importlib.import_module(name)
        except Exception as error:
            missing.append(f"{name} ({line(error)})")
    return ", ".join(missing)


def plugins() -> Iterator[Finding]:
    """What packages offer to wbengine: each is loaded, unless it takes an extra that is missing."""
    count = 0
    for group in _plugins.GROUPS:
        for point in metadata.entry_points(group=group):
            count += 1
            try:
                point.load()
            except Exception as error:
                if isinstance(error, ImportError) and point.extras:
                    continue
                owner = point.dist.name if point.dist is not None else point.value.partition(".")[0]
                yield bad(
                    "plugins",
                    f"{point.name!r} of {group} ({point.value}, package {owner}) cannot be loaded:"
                    f" {type(error).__name__}: {line(error)}",
                    f"install what it needs (pip install --upgrade {owner}), or remove it"
                    f" (pip uninstall {owner})",
                )
    yield good("plugins", f"{count} looked at")
