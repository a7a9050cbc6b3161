"""A job board in etcd."""

from __future__ import annotations

import base64
import contextlib
import json
import math
import time
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final, NamedTuple

from wbengine import exceptions
from wbengine._configuration import host_names, named_options
from wbengine._imports import installing
from wbengine.jobs import _stored, base
from wbengine.persistence import base as persistence_base

try:
    import etcd3gw
    import requests
    from etcd3gw import exceptions as errors
except ImportError as error:
    raise ImportError(installing.needs("a job board in etcd", "etcd3gw", "etcd")) from error

__all__ = ["EtcdJob", "EtcdJobBoard"]

_TIMEOUT_SECONDS: Final = 5.0
#: Fixed, so that keys sort by their sequence.
_SEQUENCE_DIGITS: Final = 16

_CLIENT_OPTIONS: Final[Mapping[str, named_options.Reader]] = {
    **dict.fromkeys(
        ("host", "protocol", "ca_cert", "cert_key", "cert_cert", "api_path"), named_options.text
    ),
    "port": named_options.whole,
    "timeout": named_options.number,
}

_Operation = dict[str, Any]


class _Entry(NamedTuple):
    """A key with its value and the revisions of its creation and last change."""

    key: str
    value: str
    create_revision: int
    mod_revision: int
    version: int

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> _Entry:
        return cls(
            _decoded(data["key"]),
            _decoded(data.get("value", "")),
            int(data["create_revision"]),
            int(data["mod_revision"]),
            int(data["version"]),
        )


class EtcdJob(_stored.StoredJob):
    """A job of an `EtcdJobBoard`."""


class EtcdJobBoard(_stored.StoredJobBoard):
    """A board in etcd, for processes on all hosts that reach it.

    Options:

    - `path` ('jobboard'): boards of one path of an etcd are one board.
    - `host` ('localhost'), `port` (2379), `protocol` ('http', 'https'), `ca_cert`, `cert_key`,
      `cert_cert`, `timeout` (seconds; 5), `api_path`.
    - `ttl`: seconds after which claims without an expiry expire.
    - `client`: a client of etcd3gw that replaces the one made from these options.

    Each step is one transaction. A claim with an expiry is a lease of etcd: it lasts for whole
    seconds and at least two. Times of posting are on the clock of the poster.

    :raises ValueError: if an option is invalid.
    """

    KIND = "etcd"
    JOB = EtcdJob
    OPTIONS: ClassVar[Mapping[str, named_options.Reader]] = {
        **_CLIENT_OPTIONS,
        "path": named_options.text,
        "ttl": _stored.check_expiry,
    }
    ROOT_PATH: Final = "/wbengine/jobs"

    def __init__(
        self,
        name: str,
        conf: Mapping[str, Any] | None = None,
        client: Any = None,
        persistence: persistence_base.Backend | None = None,
    ) -> None:
        super().__init__(name, conf, client, persistence)
        self.claim_seconds = self._settings.get("ttl")
        path = self._settings.get("path", "jobboard").strip("/")
        # Slashes are encoded, so that the keys of a board a/b are not among those of a board a.
        self._root = f"{self.ROOT_PATH}/{path.replace('%', '%25').replace('/', '%2F')}/"
        if client is None:
            client_options = {
                name: value for name, value in self._settings.items() if name in _CLIENT_OPTIONS
            }
            self._client = etcd3gw.Etcd3Client(**{"timeout": _TIMEOUT_SECONDS, **client_options})
            host = host_names.host_name(client_options.get("host", "localhost"))
            self.address = f"{host}:{client_options.get('port', 2379)}"

    @property
    def place(self) -> str:
        return f"etcd path {self._root!r}"

    def _open_client(self) -> None:
        self._client.status()

    def _reason(self, error: BaseException) -> str | None:
        if isinstance(error, errors.Etcd3Exception):
            text = error.detail_text or str(error) or type(error).__name__
            with contextlib.suppress(ValueError, LookupError, TypeError, RecursionError):
                return str(json.loads(text)["error"])
            return str(text).strip()
        # Errors of the connection or of a proxy.
        return str(error) if isinstance(error, requests.RequestException | ValueError) else None

    def _identify(self, new: str) -> _stored.Identity:
        key = self._root + "id"
        self._transact([_compare(key, "version", 0)], [_set(key, new)])
        [entries] = self._read(_get(key))
        return _stored.Identity(entries[0].value)

    def _put(self, job: _stored.NewJob) -> _stored.Posting | None:
        uuid, rank, document = job.uuid, job.priority.rank, job.document
        counter_key, index, trash = self._root + "sequence", self._index(uuid), self._trash(uuid)
        while True:
            entries = self._read(_get(counter_key), _get(index), _get(trash))
            if entries[1] or entries[2]:
                return None
            counter = entries[0][0] if entries[0] else None
            sequence = 1 if counter is None else int(counter.value) + 1
            place = f"{rank}/{sequence:0{_SEQUENCE_DIGITS}}"
            now = time.time()
            revision = self._transact(
                [
                    _compare(counter_key, "mod", 0 if counter is None else counter.mod_revision),
                    _compare(index, "version", 0),
                    _compare(trash, "version", 0),
                ],
                [
                    _set(counter_key, str(sequence)),
                    _set(index, place),
                    _set(self._job(place), f"{now} {document}"),
                    _set(self._updated(place), str(now)),
                ],
            )
            if revision:
                return _stored.Posting.of(uuid, rank, sequence, document, now)

    def _rows(self, only_unclaimed: bool, ensure_fresh: bool) -> Iterator[tuple[str, Any]]:
        jobs, end = self._job(""), _range_end(self._job(""))
        after = jobs
        owned = _get(self._owner(""), _range_end(self._owner("")), keys_only=True)
        for limit in _stored.page_sizes():
            ranges = [_get(after, end, limit=limit), *([owned] if only_unclaimed else [])]
            entries, *claimed = self._read(*ranges)
            claimed_places = {
                entry.key[len(self._owner("")) :] for entry in (claimed[0] if claimed else ())
            }
            for entry in entries:
                place = entry.key[len(jobs) :]
                if place not in claimed_places:
                    yield place, (place, entry)
            if len(entries) < limit:
                return
            after = entries[-1].key + "\0"

    def _parse(self, row: Any) -> _stored.Posting:
        return _posting(*row)

    def _find(self, uuid: str) -> Any:
        place = self._place_of(uuid)
        if place is None:
            return None
        [entries] = self._read(_get(self._job(place)))
        return (place, entries[0]) if entries else None

    @property
    def job_count(self) -> int:
        jobs = self._job("")
        answer = self._txn([], [_get(jobs, _range_end(jobs), count_only=True)])
        return int(answer["responses"][0]["response_range"].get("count", 0))

    def _is_trashed(self, uuid: str) -> bool:
        [entries] = self._read(_get(self._trash(uuid)))
        return bool(entries)

    def _delete_trashed(self, uuid: str) -> None:
        self._transact([], [_delete(self._trash(uuid))])

    def status_of(self, job: base.Job) -> _stored.Status | None:
        place = self._place_of(job.uuid)
        state = None if place is None else self._state_of(place)
        if state is None:
            return None
        status, owner, _ = state
        lease = _claim_data(owner).get("lease")
        if lease is None:
            return status
        answer = self._post("/kv/lease/timetolive", {"ID": lease})
        # An expired claim holds until etcd deletes the key, a moment later.
        return status._replace(remaining=max(int(answer.get("TTL", 0)), 0))

    def _state_of(self, place: str) -> tuple[_stored.Status, _Entry | None, _Entry] | None:
        """Return the state of a job, the entry of its claim, and its own entry."""
        keys = (self._job(place), self._owner(place), self._updated(place))
        jobs, owners, updates = self._read(*map(_get, keys))
        if not jobs:
            return None
        [job], owner = jobs, owners[0] if owners else None
        updated = _time_of(updates[0].value) if updates else 0.0
        status = _stored.Status(job.version - 1, updated, _claim_data(owner).get("owner"))
        return status, owner, job

    def _claim(
        self, job: base.Job, who: str, expiry: float | None
    ) -> tuple[int, int] | _stored.Status:
        lease = None if expiry is None else self._grant(expiry)
        claim_data: dict[str, Any] = {"owner": who}
        if expiry is not None:
            claim_data.update(lease=lease, ttl=_whole_seconds(expiry))
        place = _stored.located(job, _location, self._place_of)
        key, owner = self._job(place), self._owner(place)
        try:
            while True:
                state = self._state_of(place)
                if state is None:
                    raise _stored.missing_job_error(job)
                status, claim_entry, entry = state
                if claim_entry is not None:
                    self._revoke(lease)
                    return self.status_of(job) or status
                revision = self._transact(
                    [_compare(key, "mod", entry.mod_revision), _compare(owner, "version", 0)],
                    [
                        _set(owner, json.dumps(claim_data), lease),
                        # The version of this key counts the claims.
                        _set(key, entry.value),
                        _set(self._updated(place), str(time.time())),
                    ],
                )
                if revision:
                    return revision, status.claims + 1
        except BaseException:
            with contextlib.suppress(exceptions.JobFailure):  # If this fails, the lease expires.
                self._revoke(lease)
            raise

    def _end_claim(self, job: base.Job, who: str, action: str) -> _stored.Status | None:
        place = _stored.located(job, _location, self._place_of)
        claim = _stored.claim_of(job)
        key, owner = self._job(place), self._owner(place)
        while True:
            state = self._state_of(place)
            if state is None:
                raise _stored.missing_job_error(job)
            status, claim_entry, entry = state
            if (
                claim_entry is None
                or status.owner != who
                or claim not in (None, claim_entry.create_revision)
            ):
                return status
            steps = [_delete(owner)]
            if action == "abandon":
                steps.append(_set(self._updated(place), str(time.time())))
            else:
                steps += map(_delete, (key, self._updated(place), self._index(job.uuid)))
                if action == "trash":
                    steps.append(_set(self._trash(job.uuid), entry.value))
            if self._transact([_compare(owner, "create", claim_entry.create_revision)], steps):
                # If this fails, the lease expires.
                with contextlib.suppress(exceptions.JobFailure):
                    self._revoke(_claim_data(claim_entry).get("lease"))
                return None

    def extend(self, job: _stored.StoredJob, expiry: float) -> bool:
        place = self._place_of(job.uuid)
        state = None if place is None else self._state_of(place)
        if place is None or state is None or state[1] is None:
            return False
        claim_entry, claim_data = state[1], _claim_data(state[1])
        if job.claim not in (None, claim_entry.create_revision):
            return False
        lease, seconds = claim_data.get("lease"), _whole_seconds(expiry)
        if lease is not None and claim_data.get("ttl") == seconds:
            answer = self._post("/lease/keepalive", {"ID": lease})
            return int(answer["result"].get("TTL", -1)) > 0
        # The duration of an etcd lease cannot be changed.
        fresh = self._grant(expiry)
        claim_data.update(lease=fresh, ttl=seconds)
        is_same_claim = _compare(self._owner(place), "create", claim_entry.create_revision)
        revision = self._transact(
            [is_same_claim], [_set(self._owner(place), json.dumps(claim_data), fresh)]
        )
        self._revoke(lease if revision else fresh)
        return bool(revision)

    def _grant(self, seconds: float) -> str:
        return str(self._post("/lease/grant", {"TTL": _whole_seconds(seconds), "ID": 0})["ID"])

    def _revoke(self, lease: str | None) -> None:
        if lease is not None:
            try:
                self._post("/kv/lease/revoke", {"ID": lease})
            except exceptions.NotFound:
                pass  # The lease has expired.

    def _job(self, place: str) -> str:
        return f"{self._root}jobs/{place}"

    def _owner(self, place: str) -> str:
        return f"{self._root}owners/{place}"

    def _updated(self, place: str) -> str:
        return f"{self._root}updated/{place}"

    def _index(self, uuid: str) -> str:
        return f"{self._root}uuids/{uuid}"

    def _trash(self, uuid: str) -> str:
        return f"{self._root}trash/{uuid}"

    def _place_of(self, uuid: str) -> str | None:
        [entries] = self._read(_get(self._index(uuid)))
        return entries[0].value if entries else None

    def _read(self, *ranges: _Operation) -> list[list[_Entry]]:
        """Return the entries of these ranges at one revision."""
        answer = self._txn([], list(ranges))
        return [
            [_Entry.read(each) for each in response["response_range"].get("kvs", ())]
            for response in answer["responses"]
        ]

    def _transact(self, compared: list[_Operation], steps: list[_Operation]) -> int:
        """Execute all steps if all comparisons match. Return the revision, or 0 if they do not."""
        answer = self._txn(compared, steps)
        return int(answer["header"]["revision"]) if answer.get("succeeded") else 0

    def _txn(self, compared: list[_Operation], steps: list[_Operation]) -> Any:
        return self._post("/kv/txn", {"compare": compared, "success": steps, "failure": []})

    def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        with self._accessing_store(f"Request to {path}"):
            try:
                answer = self._client.post(self._client.get_url(path), json=body)
            except errors.Etcd3Exception as error:
                if "lease not found" in str(self._reason(error)):
                    raise exceptions.NotFound("The lease of the claim has expired") from error
                raise
            if not isinstance(answer, dict):
                raise ValueError(f"Response must be that of an etcd server, got {answer!r:.80}")
            return answer


def _location(job: _stored.StoredJob) -> str:
    return f"{job.priority.rank}/{job.sequence:0{_SEQUENCE_DIGITS}}"


def _posting(place: str, entry: _Entry) -> _stored.Posting:
    rank, _, sequence = place.partition("/")
    created, _, document = entry.value.partition(" ")
    uuid = str(json.loads(document)["uuid"])
    return _stored.Posting.of(
        *(uuid, int(rank), int(sequence), document, float(created), entry.version - 1)
    )


def _time_of(text: str) -> float:
    """Return the time, which is only displayed, or 0 if it is damaged."""
    try:
        return float(text)
    except ValueError:
        return 0.0


def _claim_data(entry: _Entry | None) -> dict[str, Any]:
    parsed: Any = None
    if entry is not None:
        with contextlib.suppress(ValueError, RecursionError):
            parsed = json.loads(entry.value)
    return parsed if isinstance(parsed, dict) else {}


def _whole_seconds(seconds: float) -> int:
    return max(1, math.ceil(seconds))


def _range_end(prefix: str) -> str:
    """Return the end of the range of keys with this prefix, which ends in a slash."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


def _get(key: str, end: str | None = None, **options: Any) -> _Operation:
    range_end = {} if end is None else {"range_end": _encoded(end)}
    return {"request_range": {"key": _encoded(key), **range_end, **options}}


def _set(key: str, value: str, lease: str | None = None) -> _Operation:
    lease_field = {} if lease is None else {"lease": lease}
    return {"request_put": {"key": _encoded(key), "value": _encoded(value), **lease_field}}


def _delete(key: str) -> _Operation:
    return {"request_delete_range": {"key": _encoded(key)}}


def _compare(key: str, target: str, value: int) -> _Operation:
    field = target if target == "version" else f"{target}_revision"
    return {"key": _encoded(key), "result": "EQUAL", "target": target.upper(), field: value}


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode(errors="surrogateescape")).decode()


def _decoded(text: str) -> str:
    # Other programs may have stored invalid UTF-8.
    return base64.b64decode(text).decode(errors="surrogateescape")
