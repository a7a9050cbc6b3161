"""Checks of installed packages, extras and plug-ins."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import Final

from wbengine._configuration import plugins as _plugins
from wbengine._imports import installing
from wbengine.diagnosis.findings import Finding, Place, bad, good, line, note
from wbengine.drawing import _graphviz

__all__ = ["extras", "graphs", "plugins", "python"]

#: Extra -> modules that it installs.
_EXTRAS: Final[Mapping[installing.Extra, tuple[str, ...]]] = {
    "redis": ("redis",),
    "mysql": ("pymysql",),
    "postgresql": ("psycopg",),
    "zookeeper": ("kazoo",),
    "etcd": ("etcd3gw",),
    "metrics": ("prometheus_client",),
    "otel": ("opentelemetry.trace",),
    "dashboard": ("starlette", "uvicorn", "jinja2", "sse_starlette"),
    "keys": ("cryptography",),
    "celery": ("celery",),
}
_EXTRA_OF_SCHEME: Final[Mapping[str, installing.Extra]] = {
    "redis": "redis", "rediss": "redis", "mysql": "mysql", "mariadb": "mysql",
    "postgresql": "postgresql", "postgres": "postgresql", "pgsql": "postgresql",
    "zookeeper": "zookeeper", "etcd": "etcd",
}  # fmt: skip
#: Extras in the order in which they are listed.
_OPTIONAL_EXTRAS: Final[tuple[installing.Extra, ...]] = (
    "dashboard", "metrics", "otel", "redis", "postgresql", "mysql", "zookeeper", "etcd", "keys",
    "celery",
)  # fmt: skip


def python() -> Iterator[Finding]:
    """Report the versions of Python and wbengine."""
    import wbengine

    version = ".".join(map(str, sys.version_info[:3]))
    yield good("wbengine", f"version {wbengine.__version__}, Python {version}")


def extras(place: Place) -> Iterator[Finding]:
    """Check the extras that the settings need, then list optional extras that are not installed."""
    services = {
        _EXTRA_OF_SCHEME[kind]: service
        for service, text in (
            ("the broker", place.url),
            ("the ledger", place.ledger),
            ("the store", place.persistence),
            ("the job board", place.board),
        )
        if text and (kind := text.partition(":")[0].partition("+")[0]) in _EXTRA_OF_SCHEME
    }
    for extra, service in services.items():
        missing = _missing(extra)
        if missing:
            yield bad(
                "extras",
                f"{service} needs packages that cannot be imported: {missing}",
                installing.advice(extra),
            )
        else:
            yield good("extras", f"the packages for {service} are installed ({extra})")
    without = [extra for extra in _OPTIONAL_EXTRAS if extra not in services and _missing(extra)]
    if without:
        text = ", ".join(without)
        advice = installing.advice(without[0])
        yield note("extras", f"optional extras not installed: {text} (to add one: {advice})")
    else:
        yield good("extras", f"optional extras installed: {', '.join(_OPTIONAL_EXTRAS)}")


def graphs() -> Iterator[Finding]:
    """Check whether the program that draws graphs is available."""
    if _graphviz.available():
        yield good("graphviz", "the program dot is available")
    else:
        yield note(
            "graphviz",
            f"the program dot is missing, so graphs cannot be SVG or PNG; {_graphviz.INSTALL}",
        )


def _missing(extra: installing.Extra) -> str:
    missing = []
    for name in _EXTRAS[extra]:
        try:
            importlib.import_module(name)
        except Exception as error:
            missing.append(f"{name} ({line(error)})")
    return ", ".join(missing)


def plugins() -> Iterator[Finding]:
    """Load the plug-ins of all packages. Plug-ins whose extra is not installed are ignored."""
    count = 0
    for group in _plugins.GROUPS:
        for point in metadata.entry_points(group=group):
            count += 1
            try:
                point.load()
            except (Exception, SystemExit) as error:  # SystemExit: the module is a script.
                if isinstance(error, ImportError) and point.extras:
                    continue
                owner = point.dist.name if point.dist is not None else point.value.partition(".")[0]
                yield bad(
                    "plugins",
                    f"cannot load {point.name!r} of {group} ({point.value}, package {owner}):"
                    f" {type(error).__name__}: {line(error)}",
                    f"install its dependencies ({installing.pip('install', '--upgrade', owner)}),"
                    f" or remove the package ({installing.pip('uninstall', owner)})",
                )
    yield good("plugins", f"{count} plug-ins checked")
