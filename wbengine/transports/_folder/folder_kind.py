"""The kind of the transport through folders: `filesystem:///PATH`."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, unquote

from wbengine._configuration import named_options
from wbengine._introspection import object_names
from wbengine.transports._broker import Broker
from wbengine.transports._folder import files
from wbengine.transports._kinds import BrokerKind, Target, check_options


@dataclass(frozen=True)
class FolderOptions:
    """Options of the transport."""

    data_folder_in: str | None = named_options.option(None, "Consume from this folder.")
    data_folder_out: str | None = named_options.option(None, "Publish into this folder.")
    polling_interval: float = named_options.option(
        1.0, "Seconds between two polls of an idle queue."
    )
    inotify: bool = named_options.option(
        True, "False: poll 10 times a second instead of a notification through FIFOs."
    )


class FolderKind(BrokerKind):
    """Queues in the file of a folder. The place is the pair of folders (in, out)."""

    name = "filesystem"
    options = FolderOptions
    is_local = True
    ledger = "wbengine.transports._folder.folder_ledger:of_broker"
    has_rows = True
    diagnosis = "wbengine.diagnosis._folder_checks"

    def resolve(
        self, url: str | None, transport: Any, options: dict[str, Any], exchange: str | None
    ) -> Target:
        check_options(self, options)
        for name in ("data_folder_in", "data_folder_out"):
            folder = options.get(name)
            if folder is not None and not isinstance(folder, str | os.PathLike):
                raise ValueError(f"{name} must be the path of a folder, got {folder!r}")
        if "inotify" in options:
            options["inotify"] = named_options.flag("inotify", options["inotify"])
        has_folder = bool(options.get("data_folder_in") or options.get("data_folder_out"))
        if not has_folder and not path_of(url or ""):
            url = _url(default_folder())
        folder_in, folder_out = folders(url, options)
        if has_folder:
            options.update(data_folder_in=folder_in, data_folder_out=folder_out)
        return Target(_url(folder_in), self.name, self, options)

    def place(self, target: Target) -> tuple[str, str]:
        return folders(target.url, target.options)

    def open(self, target: Target) -> Broker:
        settings = target.options
        broker: Broker = object_names.load("wbengine.transports._folder.folder_broker:FileBroker")(
            *self.place(target),
            settings.get("polling_interval"),
            settings.get("inotify", True),
            target.rows,
        )
        return broker


def default_folder() -> str:
    """Return the default folder of this user, created with mode 0700 if needed.

    It is `$XDG_RUNTIME_DIR/wbengine`, or `wbengine-<uid>` in the temporary folder.

    :raises TransportFailure: if it belongs to another user, is accessible to others, or is a
        symlink.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.path.isdir(runtime):
        path = os.path.join(runtime, "wbengine")
    else:
        path = os.path.join(tempfile.gettempdir(), f"wbengine-{os.getuid()}")
    return files.make_folder(path, private=True)


def folders(url: str | None, options: dict[str, Any]) -> tuple[str, str]:
    """Return the folders (in, out) of the options, or of the URL.

    :raises ValueError: if there is none.
    """
    folder_in = options.get("data_folder_in") or options.get("data_folder_out")
    folder_out = options.get("data_folder_out") or folder_in
    if not folder_in:
        folder_in = folder_out = path_of(url or "")
    if not folder_in or not folder_out:
        raise ValueError(
            "The folder is missing: use the URL filesystem:///PATH, or `data_folder_in` in the"
            f" transport options, got {url or 'no URL'!r}"
        )
    return os.path.abspath(folder_in), os.path.abspath(folder_out)


def path_of(url: str) -> str:
    """Return the folder of `filesystem://PATH`, or ''.

    :raises ValueError: if a query follows the path.
    """
    scheme, mark, rest = url.partition("://")
    if not mark or scheme != "filesystem" or rest.strip("/") in ("", "localhost"):
        return ""
    if "?" in rest:
        raise ValueError(
            f"The URL of a folder must be filesystem:///PATH, got {url!r}: pass options as"
            " transport options, and write '?' in a path as %3F"
        )
    return unquote(rest)


def _url(folder: str) -> str:
    # `;` separates alternatives in kombu's URLs.
    return f"filesystem://{quote(folder)}"


KIND: Final = FolderKind()
