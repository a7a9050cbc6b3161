"""Error messages with commands that install packages into this process's environment."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Final, Literal
from urllib.parse import unquote, urlsplit

__all__ = ["Extra", "advice", "needs", "pip", "upgrade"]

Extra = Literal[
    "apprise", "arrow", "celery", "client", "dashboard", "django", "etcd", "keys", "mcp", "metrics",
    "mysql", "numpy", "oidc", "otel", "pandas", "payloads", "polars", "postgresql", "pydantic",
    "redis", "s3", "zookeeper",
]  # fmt: skip

#: The folder that contains the package: `site-packages`, or a checkout.
_FOLDER: Final = Path(__file__).resolve().parents[2]
_NAME: Final = "wbengine"


def advice(*extras: Extra, folder: Path = _FOLDER) -> str:
    """Return the command that adds extras to the wbengine in `folder`, from its original source."""
    return pip("install", *_arguments(extras, folder))


def needs(what: str, package: str, extra: Extra) -> str:
    """Return an error message: `what` needs a package that is not installed."""
    return f"{what} needs {package}: {advice(extra)}"


def upgrade(folder: Path = _FOLDER) -> str:
    """Return instructions to install another version of the wbengine in `folder`."""
    if _is_checkout(folder):
        return f"update the checkout {folder}"
    source = _source(folder)
    if source is None:
        return pip("install", "--upgrade", _NAME)
    return f"install it from {source}"


def pip(command: str, *arguments: str) -> str:
    """Return a pip command for the environment of this process, even if it is not active."""
    on_path = shutil.which("pip")
    if on_path is not None and Path(on_path).parent == Path(sysconfig.get_path("scripts")):
        words = ["pip", command]
    elif importlib.util.find_spec("pip") is None and shutil.which("uv") is not None:
        words = ["uv", "pip", command, "--python", sys.executable]
    else:
        words = [sys.executable, "-m", "pip", command]
    return shlex.join([*words, *arguments])


def _arguments(extras: tuple[str, ...], folder: Path) -> list[str]:
    names = ",".join(extras)
    if _is_checkout(folder):
        return ["-e", f"{folder}[{names}]"]
    source = _source(folder)
    if source is None:
        return [f"{_NAME}[{names}]"]
    if not source.startswith("/"):
        return [f"{_NAME}[{names}] @ {source}"]
    if Path(source).exists():
        return [f"{source}[{names}]"]
    return list(dict.fromkeys(_requirements(set(extras), folder)))


def _distribution(folder: Path) -> metadata.Distribution | None:
    return next(iter(metadata.distributions(name=_NAME, path=[str(folder)])), None)


def _is_checkout(folder: Path) -> bool:
    distribution = _distribution(folder)
    return (distribution is None or distribution.read_text("RECORD") is None) and (
        folder / "pyproject.toml"
    ).is_file()


def _source(folder: Path) -> str | None:
    """Return the path or URL from which a copy was installed (PEP 610), or None for an index."""
    distribution = _distribution(folder)
    origin_text = None if distribution is None else distribution.read_text("direct_url.json")
    if origin_text is None:
        return None
    origin = json.loads(origin_text)
    url = urlsplit(origin["url"])
    if url.scheme == "file":
        return unquote(url.path)
    revision = origin.get("vcs_info")
    place = (
        f"{revision['vcs']}+{origin['url']}@{revision['commit_id']}" if revision else origin["url"]
    )
    subdirectory = origin.get("subdirectory")
    return f"{place}#subdirectory={subdirectory}" if subdirectory else place


def _requirements(extras: set[str], folder: Path) -> Iterator[str]:
    """Yield the requirements of extras, for an installed copy without source files."""
    distribution = _distribution(folder)
    for line in (distribution and distribution.requires) or ():
        requirement, _, marker = line.partition(";")
        extra_match = re.search(r"extra == ['\"](.+?)['\"]", marker)
        if extra_match is None or extra_match[1] not in extras:
            continue
        own = re.fullmatch(rf"{_NAME}\[(.+)\]", requirement.strip())
        if own is None:
            yield requirement.strip()
        else:
            yield from _requirements(set(own[1].split(",")), folder)
