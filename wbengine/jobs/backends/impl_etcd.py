"""A job board in etcd."""

from __future__ import annotations

import base64
import contextlib
import json
import math
import time
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final, NamedTuple

from wbengine import _options, exceptions
from wbengine.jobs import base, stored
from wbengine.persistence import base as persistence_base

try:
    import etcd3gw
    import requests
    from etcd3gw import exceptions as errors
except ImportError as error:
    raise ImportError("a job board in etcd takes etcd3gw: pip install 'wbengine[etcd]'") from error

__all__ = ["EtcdJobBoard"]

#: Seconds to wait for an answer, unless told.
_TIMEOUT: Final = 5.0
#: So many digits has a sequence, so that keys are in its order.
_DIGITS: Final = 16

#: Options that are the client's, with what reads them.
_OF_CLIENT: Final[Mapping[str, _options.Reader]] = {
    **dict.fromkeys(
        ("host", "protocol", "ca_cert", "cert_key", "cert_cert", "api_path"), _options.text
    ),
    "port": _options.whole,
    "timeout": _options.number,
}

_Operation = dict[str, Any]


class _Entry(NamedTuple):
    """A key with its value; `made` is the revision at which it came, `changed` its last one."""

    key: str
    value: str
    made: int
    changed: int
    version: int

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> _Entry:
        return cls(
            _decoded(told["key"]),
            _decoded(told.get("value", "")),
            int(told["create_revision"]),
            int(told["mod_revision"]),
            int(told["version"]),
        )


class EtcdJobBoard(stored.StoredJobBoard):
    """Keeps jobs in an etcd, for processes of any host that reach it.

    Options:

    `path` ('jobboard'): boards of one path of an etcd are one board.
    `host` ('localhost'), `port` (2379), `protocol` ('http', 'https'), `ca_cert`, `cert_key`,
    `cert_cert`, `timeout` (seconds; 5), `api_path`.
    `ttl`: for how many seconds claims last that are made without an expiry.

    `client`: a client of etcd3gw, in place of one that is made of these options.

    Each step is one transaction.  A claim with an expiry is a lease of etcd: it lasts for whole
    seconds, and for two at least.  When jobs were posted is told by the clock of who posted them.

    :raises ValueError: an option is wrong.
    """

    KIND = "etcd"
    OPTIONS: ClassVar[Mapping[str, _options.Reader]] = {
        **_OF_CLIENT,
        "path": _options.text,
        "ttl": stored.check_expiry,
    }
    #: What the keys of all boards begin with.
    ROOT_PATH: Final = "/wbengine/jobs"

    def __init__(
        self,
        name: str,
        conf: Mapping[str, Any] | None = None,
        client: Any = None,
        persistence: persistence_base.Backend | None = None,
    ) -> None:
        super().__init__(name, conf, client, persistence)
        path = self._given.get("path", "jobboard").strip("/")
        # One name: the keys of a board at a/b are not among those of one at a.
        self._root = f"{self.ROOT_PATH}/{path.replace('%', '%25').replace('/', '%2F')}/"
        if client is None:
            told = {name: value for name, value in self._given.items() if name in _OF_CLIENT}
            self._client = etcd3gw.Etcd3Client(**{"timeout": _TIMEOUT, **told})
            host = stored.host_name(told.get("host", "localhost"))
            self.address = f"{host}:{told.get('port', 2379)}"

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
        # Of what is between it and us.
        return str(error) if isinstance(error, requests.RequestException | ValueError) else None

    # -- posting and listing --------------------------------------------------------------------

    def _identify(self, new: str) -> stored.Identity:
        key = self._root + "id"
        self._transact([_compare(key, "version", 0)], [_set(key, new)])
        [found] = self._read(_get(key))
        return stored.Identity(found[0].value)

    def _put(self, job: stored.NewJob) -> stored.Posting | None:
        uuid, rank, document = job.uuid, job.priority.rank, job.document
        last, index, trash = self._root + "sequence", self._index(uuid), self._trash(uuid)
        while True:
            found = self._read(_get(last), _get(index), _get(trash))
            if found[1] or found[2]:
                return None
            before = found[0][0] if found[0] else None
            sequence = 1 if before is None else int(before.value) + 1
            place = f"{rank}/{sequence:0{_DIGITS}}"
            now = time.time()
            done = self._transact(
                [
                    _compare(last, "mod", 0 if before is None else before.changed),
                    _compare(index, "version", 0),
                    _compare(trash, "version", 0),
                ],
                [
                    _set(last, str(sequence)),
                    _set(index, place),
                    _set(self._job(place), f"{now} {document}"),
                    _set(self._updated(place), str(now)),
                ],
            )
            if done:
                return stored.Posting.of(uuid, rank, sequence, document, now)

    def _rows(self, only_unclaimed: bool, ensure_fresh: bool) -> Iterator[tuple[str, Any]]:
        jobs, end = self._job(""), _end(self._job(""))
        after = jobs
        owned = _get(self._owner(""), _end(self._owner("")), keys_only=True)
        for limit in stored.page_sizes():
            asked = [_get(after, end, limit=limit), *([owned] if only_unclaimed else [])]
            found, *claimed = self._read(*asked)
            taken = {entry.key[len(self._owner("")) :] for entry in (claimed[0] if claimed else ())}
            for entry in found:
                place = entry.key[len(jobs) :]
                if place not in taken:
                    yield place, (place, entry)
            if len(found) < limit:
                return
            after = found[-1].key + "\0"

    def _parse(self, row: Any) -> stored.Posting:
        return _posting(*row)

    def _find(self, uuid: str) -> Any:
        place = self._place_of(uuid)
        if place is None:
            return None
        [found] = self._read(_get(self._job(place)))
        return (place, found[0]) if found else None

    @property
    def job_count(self) -> int:
        jobs = self._job("")
        answer = self._txn([], [_get(jobs, _end(jobs), count_only=True)])
        return int(answer["responses"][0]["response_range"].get("count", 0))

    def _is_trashed(self, uuid: str) -> bool:
        [found] = self._read(_get(self._trash(uuid)))
        return bool(found)

    def look(self, job: base.Job) -> stored.Status | None:
        place = self._place_of(job.uuid)
        found = None if place is None else self._looked(place)
        if found is None:
            return None
        status, owner, _ = found
        lease = _told(owner).get("lease")
        if lease is None:
            return status
        answer = self._ask("/kv/lease/timetolive", {"ID": lease})
        # One that has ended holds until etcd has removed the key, a moment later.
        return status._replace(remaining=max(int(answer.get("TTL", 0)), 0))

    def _looked(self, place: str) -> tuple[stored.Status, _Entry | None, _Entry] | None:
        """What becomes of a job, the key of its claim, and its own."""
        asked = (self._job(place), self._owner(place), self._updated(place))
        jobs, owners, updates = self._read(*map(_get, asked))
        if not jobs:
            return None
        [job], owner = jobs, owners[0] if owners else None
        updated = _number(updates[0].value) if updates else 0.0
        status = stored.Status(job.version - 1, updated, _told(owner).get("owner"))
        return status, owner, job

    # -- claims ---------------------------------------------------------------------------------

    def _claim(
        self, job: base.Job, who: str, expiry: float | None
    ) -> tuple[int, int] | stored.Status:
        seconds = self._given.get("ttl") if expiry is None else expiry
        lease = None if seconds is None else self._grant(seconds)
        told: dict[str, Any] = {"owner": who}
        if seconds is not None:
            told.update(lease=lease, ttl=_whole(seconds))
        place = stored.located(job, _place, self._place_of)
        key, owner = self._job(place), self._owner(place)
        try:
            while True:
                found = self._looked(place)
                if found is None:
                    raise stored.gone(job)
                status, held, entry = found
                if held is not None:
                    self._revoke(lease)
                    return self.look(job) or status
                done = self._transact(
                    [_compare(key, "mod", entry.changed), _compare(owner, "version", 0)],
                    [
                        _set(owner, json.dumps(told), lease),
                        # Its version counts the claims.
                        _set(key, entry.value),
                        _set(self._updated(place), str(time.time())),
                    ],
                )
                if done:
                    return done, status.claims + 1
        except BaseException:
            with contextlib.suppress(exceptions.JobFailure):  # then it ends by itself
                self._revoke(lease)
            raise

    def _end_claim(self, job: base.Job, who: str, how: str) -> stored.Status | None:
        place = stored.located(job, _place, self._place_of)
        claim = stored.claim_of(job)
        key, owner = self._job(place), self._owner(place)
        while True:
            found = self._looked(place)
            if found is None:
                raise stored.gone(job)
            status, held, entry = found
            if held is None or status.owner != who or claim not in (None, held.made):
                return status
            steps = [_delete(owner)]
            if how == "abandon":
                steps.append(_set(self._updated(place), str(time.time())))
            else:
                steps += map(_delete, (key, self._updated(place), self._index(job.uuid)))
                if how == "trash":
                    steps.append(_set(self._trash(job.uuid), entry.value))
            if self._transact([_compare(owner, "create", held.made)], steps):
                with contextlib.suppress(exceptions.JobFailure):  # it ends by itself
                    self._revoke(_told(held).get("lease"))
                return None

    def extend(self, job: stored.StoredJob, expiry: float) -> bool:
        place = self._place_of(job.uuid)
        found = None if place is None else self._looked(place)
        if place is None or found is None or found[1] is None:
            return False
        held, told = found[1], _told(found[1])
        if job.claim not in (None, held.made):
            return False
        lease, seconds = told.get("lease"), _whole(expiry)
        if lease is not None and told.get("ttl") == seconds:
            answer = self._ask("/lease/keepalive", {"ID": lease})
            return int(answer["result"].get("TTL", -1)) > 0
        # A lease is not to be had for another time.
        fresh = self._grant(expiry)
        told.update(lease=fresh, ttl=seconds)
        same = _compare(self._owner(place), "create", held.made)
        done = self._transact([same], [_set(self._owner(place), json.dumps(told), fresh)])
        self._revoke(lease if done else fresh)
        return bool(done)

    def _grant(self, seconds: float) -> str:
        return str(self._ask("/lease/grant", {"TTL": _whole(seconds), "ID": 0})["ID"])

    def _revoke(self, lease: str | None) -> None:
        if lease is not None:
            try:
                self._ask("/kv/lease/revoke", {"ID": lease})
            except exceptions.NotFound:
                pass  # it has ended

    # -- keys -----------------------------------------------------------------------------------

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
        """Where the job with this uuid is."""
        [found] = self._read(_get(self._index(uuid)))
        return found[0].value if found else None

    # -- asking ---------------------------------------------------------------------------------

    def _read(self, *ranges: _Operation) -> list[list[_Entry]]:
        """What is in these ranges, all at one time."""
        answer = self._txn([], list(ranges))
        return [
            [_Entry.read(each) for each in told["response_range"].get("kvs", ())]
            for told in answer["responses"]
        ]

    def _transact(self, compared: list[_Operation], steps: list[_Operation]) -> int:
        """Do all steps if everything is as compared: the revision of that; 0: it is not."""
        answer = self._txn(compared, steps)
        return int(answer["header"]["revision"]) if answer.get("succeeded") else 0

    def _txn(self, compared: list[_Operation], steps: list[_Operation]) -> Any:
        return self._ask("/kv/txn", {"compare": compared, "success": steps, "failure": []})

    def _ask(self, path: str, told: Mapping[str, Any]) -> Any:
        with self._asking(f"Asking {path}"):
            try:
                answer = self._client.post(self._client.get_url(path), json=told)
            except errors.Etcd3Exception as error:
                if "lease not found" in str(self._reason(error)):
                    raise exceptions.NotFound("The lease of a claim has ended") from error
                raise
            if not isinstance(answer, dict):
                raise ValueError(f"{answer!r:.80} is no answer of an etcd")
            return answer


def _place(job: stored.StoredJob) -> str:
    """The end of the keys of a job."""
    return f"{job.priority.rank}/{job.sequence:0{_DIGITS}}"


def _posting(place: str, entry: _Entry) -> stored.Posting:
    rank, _, sequence = place.partition("/")
    created, _, document = entry.value.partition(" ")
    uuid = str(json.loads(document)["uuid"])
    return stored.Posting.of(
        *(uuid, int(rank), int(sequence), document, float(created), entry.version - 1)
    )


def _number(text: str) -> float:
    """A time that is told, and nothing more; 0: it is damaged."""
    try:
        return float(text)
    except ValueError:
        return 0.0


def _told(entry: _Entry | None) -> dict[str, Any]:
    """What the key of a claim says."""
    found: Any = None
    if entry is not None:
        with contextlib.suppress(ValueError, RecursionError):
            found = json.loads(entry.value)
    return found if isinstance(found, dict) else {}


def _whole(seconds: float) -> int:
    return max(1, math.ceil(seconds))


def _end(prefix: str) -> str:
    """What comes after all keys with this prefix, which ends in a slash."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


def _get(key: str, end: str | None = None, **options: Any) -> _Operation:
    more = {} if end is None else {"range_end": _encoded(end)}
    return {"request_range": {"key": _encoded(key), **more, **options}}


def _set(key: str, value: str, lease: str | None = None) -> _Operation:
    more = {} if lease is None else {"lease": lease}
    return {"request_put": {"key": _encoded(key), "value": _encoded(value), **more}}


def _delete(key: str) -> _Operation:
    return {"request_delete_range": {"key": _encoded(key)}}


def _compare(key: str, what: str, value: int) -> _Operation:
    field = what if what == "version" else f"{what}_revision"
    return {"key": _encoded(key), "result": "EQUAL", "target": what.upper(), field: value}


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode(errors="surrogateescape")).decode()


def _decoded(text: str) -> str:
    # Others may have put there what is no text.
    return base64.b64decode(text).decode(errors="surrogateescape")
