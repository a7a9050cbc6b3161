"""A client of etcd for the job board, whose server is a dict in this process."""

from __future__ import annotations

import base64
import itertools
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

Fields = Mapping[str, Any]


class Server:
    """The keys and leases of a server. Values stay encoded."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._revision = 1
        self._keys: dict[bytes, dict[str, Any]] = {}
        self._leases: dict[str, tuple[int, float]] = {}
        self._numbers = itertools.count(1)
        self._handlers: dict[str, Callable[[Fields], dict[str, Any]]] = {
            "/kv/txn": self._transact,
            "/lease/grant": self._grant,
            "/lease/keepalive": lambda body: {"result": self._renew(body["ID"])},
            "/kv/lease/revoke": self._revoke,
            "/kv/lease/timetolive": self._remaining,
        }

    def clear(self) -> None:
        """Delete all keys."""
        with self._lock:
            self._keys.clear()

    def post(self, path: str, body: Fields) -> dict[str, Any]:
        with self._lock:
            for lease, (_, until) in tuple(self._leases.items()):
                if until <= time.monotonic():
                    self._revoke({"ID": lease})
            return self._handlers[path](body)

    def _grant(self, body: Fields) -> dict[str, Any]:
        lease = str(next(self._numbers))
        self._leases[lease] = body["TTL"], time.monotonic() + body["TTL"]
        return {"ID": lease}

    def _renew(self, lease: str) -> dict[str, Any]:
        if lease not in self._leases:
            return {}
        seconds, _ = self._leases[lease]
        self._leases[lease] = seconds, time.monotonic() + seconds
        return {"TTL": str(seconds)}

    def _revoke(self, body: Fields) -> dict[str, Any]:
        self._leases.pop(body["ID"], None)
        self._keys = {k: v for k, v in self._keys.items() if v.get("lease") != body["ID"]}
        return {}

    def _remaining(self, body: Fields) -> dict[str, Any]:
        _, until = self._leases.get(body["ID"], (0, time.monotonic()))
        return {"TTL": str(int(until - time.monotonic()))}

    def _transact(self, body: Fields) -> dict[str, Any]:
        responses: list[dict[str, Any]] = []
        succeeded = all(map(self._matches, body["compare"]))
        steps = body["success"] if succeeded else body["failure"]
        if any("request_range" not in step for step in steps):
            self._revision += 1
        for step in steps:
            ((kind, fields),) = step.items()
            if kind == "request_range":
                responses.append({"response_range": self._range(fields)})
                continue
            responses.append({})
            key = _decoded(fields["key"])
            old = self._keys.pop(key, None)
            if kind == "request_put":
                self._keys[key] = {
                    "key": fields["key"],
                    "value": fields["value"],
                    "create_revision": self._revision if old is None else old["create_revision"],
                    "mod_revision": self._revision,
                    "version": 1 if old is None else old["version"] + 1,
                    "lease": fields.get("lease"),
                }
        header = {"revision": str(self._revision)}
        return {"header": header, "succeeded": succeeded, "responses": responses}

    def _matches(self, compare: Fields) -> bool:
        stored = self._keys.get(_decoded(compare["key"]), {})
        target = compare["target"].lower()
        field = target if target == "version" else f"{target}_revision"
        return bool(stored.get(field, 0) == compare[field])

    def _range(self, fields: Fields) -> dict[str, Any]:
        first = _decoded(fields["key"])
        end = _decoded(fields["range_end"]) if "range_end" in fields else first + b"\0"
        found = [self._keys[key] for key in sorted(self._keys) if first <= key < end]
        if fields.get("count_only"):
            return {"count": str(len(found))}
        return {"kvs": found[: fields.get("limit") or len(found)]}


class Client:
    """The part of `etcd3gw.Etcd3Client` that the board uses.

    :ivar error: raised by each request, if it is set.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self.error: Exception | None = None

    def status(self) -> dict[str, Any]:
        return {}

    def get_url(self, path: str) -> str:
        return path

    def post(self, url: str, json: Fields) -> dict[str, Any]:
        if self.error is not None:
            raise self.error
        return self._server.post(url, json)


def _decoded(text: str) -> bytes:
    return base64.b64decode(text)
