"""A webhook that receives the notifications of a store."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from tests.support import notified, receivers
from wbengine import states
from wbengine.notifications import _service
from wbengine.persistence import base as persistence


class Destination:
    """The destination `ops` of a store, its service, and the site that receives its messages."""

    service: _service.DestinationService

    def __init__(self, store: persistence.Backend, site: receivers.Receiver, folder: Path) -> None:
        self.store, self.site, self.folder = store, site, folder
        self.failed = functools.partial(notified.failed, store)
        self.repaired = functools.partial(notified.repaired, store)
        self.execute = functools.partial(notified.execute, store)
        self.progress = functools.partial(notified.progress, store)
        self.change = functools.partial(notified.change, store)
        self.pass_time = functools.partial(notified.pass_time, store)

    def begin(self, **rules: Any) -> Destination:
        """Begin to send events; earlier events are not sent."""
        settings = notified.webhook(self.site, self.folder, **rules)
        self.service = notified.begun(self.store, settings)
        return self

    def run(self) -> None:
        notified.run(self.service)

    def succeeded(self, name: str = "order", **meta: Any) -> str:
        return self.failed(name, None, states.SUCCESS, **meta)

    @property
    def requests(self) -> list[receivers.Request]:
        return self.site.requests

    @property
    def kinds(self) -> list[tuple[str, str | None, int]]:
        return notified.kinds(self.site)

    @property
    def groups(self) -> list[dict[str, Any]]:
        return [group for request in self.requests for group in request.json["groups"]]

    @property
    def events(self) -> list[dict[str, Any]]:
        return [event for group in self.groups for event in group["events"]]
