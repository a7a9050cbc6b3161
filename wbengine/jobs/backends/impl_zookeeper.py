"""A job board in ZooKeeper."""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Final, NamedTuple

from wbengine import exceptions
from wbengine._configuration import host_names, named_options
from wbengine._imports import installing
from wbengine.jobs import _stored, base
from wbengine.persistence import base as persistence_base

try:
    from kazoo import client as kazoo
    from kazoo import exceptions as errors
except ImportError as error:
    raise ImportError(installing.needs("a job board in ZooKeeper", "kazoo", "zookeeper")) from error

__all__ = ["CLIENT_OPTIONS", "ZookeeperJob", "ZookeeperJobBoard", "make_client"]

_MAX_PAGE_SIZE: Final = 256
#: Longer lists are cached for this time.
_MIN_CACHED_NAMES: Final = 1000
_LIST_CACHE_SECONDS: Final = 1.0
_TIMEOUT: Final = 10.0
_MAX_ATTEMPTS: Final = 20
#: ZooKeeper's limit also covers the rest of the message.
_MAX_NODE_BYTES: Final = 1_000_000
#: Name of a job's node: rank, uuid, and sequence number of ZooKeeper.
_JOB: Final = re.compile(r"([0-4])-(.+)-(\d{10,})")
_CLAIM: Final = ".lock"

_DEFAULT_HOSTS: Final = "localhost:2181"
_Step = Callable[[Any], Any]


class _Node(NamedTuple):
    rank: int
    sequence: int
    uuid: str

    @property
    def name(self) -> str:
        return f"{self.rank}-{urllib.parse.quote(self.uuid, safe='')}-{self.sequence:010}"

    @classmethod
    def of(cls, name: str) -> _Node | None:
        match = _JOB.fullmatch(name)
        return match and cls(int(match[1]), int(match[3]), urllib.parse.unquote(match[2]))


def _hosts(name: str, value: Any) -> str:
    if isinstance(value, Mapping):
        value = [f"{host}:{port}" for host, port in value.items()]
    return named_options.text(
        name, (value if isinstance(value, str) else ",".join(map(str, value))).strip()
    )


def _path(name: str, value: Any) -> str:
    path = named_options.text(name, value).rstrip("/")
    if not path.startswith("/") or "//" in path:
        raise ValueError(
            f"Option {name} must be a path of ZooKeeper that begins with '/', got {path!r}"
        )
    return path


CLIENT_OPTIONS: Final[Mapping[str, named_options.Reader]] = {
    **dict.fromkeys(("keyfile", "keyfile_password", "certfile", "ca"), named_options.text),
    **dict.fromkeys(
        ("read_only", "randomize_hosts", "use_ssl", "verify_certs"), named_options.flag
    ),
    **dict.fromkeys(("command_retry", "connection_retry", "handler"), named_options.anything),
    "hosts": _hosts,
    "timeout": _stored.check_expiry,
}


def make_client(options: Mapping[str, Any]) -> kazoo.KazooClient:
    """Create a client from `CLIENT_OPTIONS`; the caller starts it.

    :raises ValueError: if an option is unknown or has an invalid value.
    """
    client_options = named_options.read("A client of ZooKeeper", options, CLIENT_OPTIONS)
    return kazoo.KazooClient(
        **{"hosts": _DEFAULT_HOSTS, "randomize_hosts": False, **client_options}
    )


class ZookeeperJob(_stored.StoredJob):
    """A job of a `ZookeeperJobBoard`."""


class ZookeeperJobBoard(_stored.StoredJobBoard):
    """A board in ZooKeeper, for processes on all hosts that reach it.

    Options:

    - `path` ('/wbengine/jobs'): boards of one path are one board.
    - `hosts` ('localhost:2181'): a str, a list, or a dict of ports.
    - `timeout` (seconds; 10): a session without contact expires after this time, with its claims.
    - `read_only`, `randomize_hosts`, `use_ssl`, `verify_certs`, `keyfile`, `keyfile_password`,
      `certfile`, `ca`, `command_retry`, `connection_retry`, `handler`: options of kazoo.
    - `client`: a client of kazoo that replaces the one made from these options. It stays open when
      the board is closed.

    Each step is one transaction. A claim lasts as long as the session of its board; ZooKeeper does
    not support an expiry. Releasing a claim does not change `last_modified`.

    :raises ValueError: if an option is invalid.
    """

    KIND = "ZooKeeper"
    JOB = ZookeeperJob
    OPTIONS: ClassVar[Mapping[str, named_options.Reader]] = {
        **CLIENT_OPTIONS,
        "path": _path,
        # TaskFlow's option for checking the version of the server; accepted without effect.
        "check_compatible": named_options.anything,
    }

    def __init__(
        self,
        name: str,
        conf: Mapping[str, Any] | None = None,
        client: Any = None,
        persistence: persistence_base.Backend | None = None,
    ) -> None:
        super().__init__(name, conf, client, persistence)
        self.path: Final[str] = self._settings.get("path", "/wbengine/jobs")
        above, _, last = self.path.rpartition("/")
        #: Paths of trashed jobs and of registered conductors.
        self.trash_path: Final = f"{above}/.trash"
        self.entity_path: Final = f"{above}/.entities"
        self._uuid_path = f"{above}/.uuids/{last}"
        self._id_path = f"{above}/.ids/{last}"
        if client is None:
            options = {
                name: self._settings[name] for name in CLIENT_OPTIONS if name in self._settings
            }
            self._client = make_client(options)
            self.address = _address(options.get("hosts", _DEFAULT_HOSTS))
        # Locks of this board whose creation or deletion failed, or got no answer.
        self._orphan_locks: dict[str, bytes] = {}
        # Time and contents of the cached list.
        self._names: tuple[float, list[str]] = (0.0, [])

    @property
    def place(self) -> str:
        return f"ZooKeeper path {self.path!r}"

    @property
    def connected(self) -> bool:
        return self._opened and bool(self._client.connected)

    def _open_client(self) -> None:
        self._client.start(timeout=_TIMEOUT)
        for path in (self.path, self.trash_path, self._uuid_path):
            self._client.ensure_path(path)

    def _close_client(self) -> None:
        self._client.stop()
        self._client.close()

    def _reason(self, error: BaseException) -> str | None:
        if isinstance(error, (errors.KazooException, self._client.handler.timeout_exception)):
            return str(error) or type(error).__name__
        return None

    def _identify(self, new: str) -> _stored.Identity:
        operation = "Reading the id of the job board"
        for _ in range(_MAX_ATTEMPTS):
            self._call_client(operation, lambda client: client.ensure_path_async(self._id_path))
            data, stat = self._get(self._id_path) or (b"", None)
            if data:
                return _stored.Identity(data.decode())
            if stat is not None:
                self._commit(operation, _set(self._id_path, new.encode(), stat.version))
        raise exceptions.JobFailure(
            f"{operation} failed: other processes keep changing {self._id_path}"
        )

    def _put(self, job: _stored.NewJob) -> _stored.Posting | None:
        uuid, rank, document = job.uuid, job.priority.rank, job.document
        data = document.encode()
        if len(data) > _MAX_NODE_BYTES:
            raise exceptions.JobFailure(
                f"Job must have at most {_MAX_NODE_BYTES} bytes in ZooKeeper, got {len(data)}"
            )
        prefix = _Node(rank, 0, uuid).name[:-10]
        trash = self._trash(uuid)
        # The first two steps check that the job is not in the trash.
        results = self._commit(
            f"Posting job {uuid}",
            _create(trash),
            _delete(trash),
            _create(self._index(uuid)),
            _create(f"{self.path}/{prefix}", data, sequence=True),
        )
        if any(isinstance(each, errors.NodeExistsError) for each in results):
            return None
        node = _Node.of(str(results[-1]).rpartition("/")[2])
        if node is None:
            raise exceptions.JobFailure(f"Posting job {uuid} failed: {results[-1]!r}")
        [row] = self._read_all([node])
        if row is not None:
            return self._parse(row)
        # Another process may already have completed the job.
        return _stored.Posting.of(uuid, rank, node.sequence, document, time.time())

    def _rows(self, only_unclaimed: bool, ensure_fresh: bool) -> Iterator[tuple[str, Any]]:
        self._delete_orphans()
        names = self._listed(ensure_fresh)
        claimed = {name.removesuffix(_CLAIM) for name in names if name.endswith(_CLAIM)}
        nodes = sorted(filter(None, map(_Node.of, names)))
        if only_unclaimed:
            nodes = [node for node in nodes if node.name not in claimed]
        sizes = _stored.page_sizes(_MAX_PAGE_SIZE)
        while nodes:
            size = next(sizes)
            for row in filter(None, self._read_all(nodes[:size])):
                yield row[0].uuid, row
            nodes = nodes[size:]

    def _listed(self, ensure_fresh: bool) -> list[str]:
        """Return the names of all jobs and claims; a long list may be cached."""
        at, names = self._names
        now = time.monotonic()
        if ensure_fresh or len(names) <= _MIN_CACHED_NAMES or now > at + _LIST_CACHE_SECONDS:
            names = self._call_client(
                "Listing jobs", lambda client: client.get_children_async(self.path)
            )
            self._names = (time.monotonic(), names)
        return names

    def _read_all(self, nodes: list[_Node]) -> list[tuple[_Node, Any] | None]:
        contents = self._get_all([f"{self.path}/{node.name}" for node in nodes])
        return [content and (node, content) for node, content in zip(nodes, contents, strict=True)]

    def _parse(self, row: Any) -> _stored.Posting:
        node, (data, stat) = row
        return _stored.Posting.of(
            *(node.uuid, node.rank, node.sequence, data.decode()),
            *(stat.ctime / 1000, stat.version),
        )

    def _find(self, uuid: str) -> Any:
        node = self._node_of(uuid)
        return None if node is None else self._read_all([node])[0]

    @property
    def job_count(self) -> int:
        return sum(_Node.of(name) is not None for name in self._listed(True))

    def _is_trashed(self, uuid: str) -> bool:
        return self._get(self._trash(uuid)) is not None

    def _delete_trashed(self, uuid: str) -> None:
        self._commit(f"Deleting trashed job {uuid}", _delete(self._trash(uuid)))

    def status_of(self, job: base.Job) -> _stored.Status | None:
        node = self._node_of(job.uuid) if not isinstance(job, _stored.StoredJob) else _node(job)
        state = None if node is None else self._state_of(node)
        return None if state is None else state[0]

    def _state_of(self, node: _Node) -> tuple[_stored.Status, Any, Any] | None:
        """Return the state of a job, its data and stat, and those of its lock."""
        path = f"{self.path}/{node.name}"
        job, lock = self._get_all([path, path + _CLAIM])
        if job is None:
            return None
        owner = None if lock is None else _lock_data(lock[0]).get("owner")
        return _stored.Status(job[1].version, job[1].mtime / 1000, owner), job, lock

    def _claim(
        self, job: base.Job, who: str, expiry: float | None
    ) -> tuple[bytes, int] | _stored.Status:
        self._delete_orphans()
        node = _stored.located(job, _node, self._node_of)
        path = f"{self.path}/{node.name}"
        value = json.dumps({"owner": who, "claim": secrets.token_hex(16)}).encode()
        for _ in range(_MAX_ATTEMPTS):
            state = self._state_of(node)
            if state is None:
                raise _stored.missing_job_error(job)
            status, (data, stat), lock = state
            if lock is not None:
                return status
            with self._tracking_orphan(path + _CLAIM, value):
                # The version of a job's node counts its claims.
                changed, created = self._commit(
                    f"Claiming {job}",
                    _set(path, data, stat.version),
                    _create(path + _CLAIM, value, ephemeral=True),
                )
            if not isinstance(created, Exception):
                return value, changed.version
        raise exceptions.JobFailure(f"Claiming {job} failed: too many other processes claim it")

    def _end_claim(self, job: base.Job, who: str, action: str) -> _stored.Status | None:
        node, claim = _stored.located(job, _node, self._node_of), _stored.claim_of(job)
        path, index, trash = (
            f"{self.path}/{node.name}",
            self._index(job.uuid),
            self._trash(job.uuid),
        )
        # Also if the state cannot be read, because the session and its locks continue.
        with self._tracking_orphan(path + _CLAIM, claim):
            for _ in range(_MAX_ATTEMPTS):
                state = self._state_of(node)
                if state is None:
                    raise _stored.missing_job_error(job)
                status, (data, stat), lock = state
                if lock is None or status.owner != who or claim not in (None, lock[0]):
                    return status
                steps: list[_Step] = [_delete(path + _CLAIM)]
                if action == "abandon":
                    steps.append(_check(path, stat.version))
                else:
                    steps += [_delete(path, stat.version), _delete(index)]
                if action == "trash":
                    steps.append(_create(trash, data))
                with self._tracking_orphan(path + _CLAIM, lock[0]):
                    results = self._commit(f"Releasing the claim on {job}", *steps)
                if not any(isinstance(each, Exception) for each in results):
                    return None
            raise exceptions.JobFailure(f"Releasing the claim on {job} failed: {results!r}")

    def extend(self, job: _stored.StoredJob, expiry: float) -> bool:
        self._delete_orphans()  # A conductor that takes no jobs only calls this.
        state = self._state_of(_node(job))
        lock = None if state is None else state[2]
        return lock is not None and job.claim in (None, lock[0])

    @contextlib.contextmanager
    def _tracking_orphan(self, lock: str, value: bytes | None) -> Iterator[None]:
        """Remember a lock for deletion if creating or deleting it failed, or got no answer.

        :param value: its contents; None: they are unknown, and it is not remembered.
        """
        try:
            yield
        except exceptions.JobFailure:
            if value is not None:
                self._orphan_locks[lock] = value
            raise

    def _delete_orphans(self) -> None:
        """Delete orphaned locks, which would otherwise last as long as the session."""
        if self._orphan_locks:
            # After a reconnection, the server may not have received their creation yet.
            self._call_client("Reading claims", lambda client: client.sync_async(self.path))
        for lock, value in tuple(self._orphan_locks.items()):
            lock_content = self._get(lock)
            if lock_content is not None and lock_content[0] == value:
                self._commit("Releasing a claim", _delete(lock))
            self._orphan_locks.pop(lock, None)

    def register_entity(self, entity: Any) -> None:
        """Register a conductor until the session ends.

        :raises NotImplementedError: if the entity is not a conductor.
        """
        if entity.kind != "conductor":
            raise exceptions.NotImplementedError(
                f"Entity kind must be 'conductor', got {entity.kind!r}"
            )
        above = f"{self.entity_path}/{entity.kind}"
        path = f"{above}/{urllib.parse.quote(entity.name, safe='@:')}"
        data = json.dumps(entity.to_dict()).encode()
        with self._accessing_store("Registering"):
            self._client.ensure_path(above)
        self._commit("Registering", _create(path, data, ephemeral=True))

    def _index(self, uuid: str) -> str:
        return f"{self._uuid_path}/{urllib.parse.quote(uuid, safe='')}"

    def _trash(self, uuid: str) -> str:
        last = self.path.rpartition("/")[2]
        return f"{self.trash_path}/{last}-{urllib.parse.quote(uuid, safe='')}"

    def _node_of(self, uuid: str) -> _Node | None:
        """Return the node of the job with this uuid. This reads the whole list."""
        if self._get(self._index(uuid)) is None:
            return None
        nodes = filter(None, map(_Node.of, self._listed(True)))
        return next((node for node in nodes if node.uuid == uuid), None)

    def _get(self, path: str) -> Any:
        return self._get_all([path])[0]

    def _get_all(self, paths: list[str]) -> list[Any]:
        contents: list[Any] = []
        with self._accessing_store("Reading"):
            for pending_read in [self._client.get_async(path) for path in paths]:
                try:
                    contents.append(pending_read.get(timeout=_TIMEOUT))
                except errors.NoNodeError:
                    contents.append(None)
        return contents

    def _commit(self, what: str, *steps: _Step) -> list[Any]:

        def ask(client: Any) -> Any:
            transaction = client.transaction()
            for step in steps:
                step(transaction)
            return transaction.commit_async()

        results: list[Any] = self._call_client(what, ask)
        for each in results:
            if isinstance(each, errors.NoAuthError):
                with self._failures(what):
                    raise each
        return results

    def _call_client(self, what: str, operation: Callable[[Any], Any]) -> Any:
        with self._accessing_store(what):
            return operation(self._client).get(timeout=_TIMEOUT)


def _create(
    path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False
) -> _Step:
    return lambda transaction: transaction.create(
        path, data, ephemeral=ephemeral, sequence=sequence
    )


def _set(path: str, data: bytes, version: int) -> _Step:
    return lambda transaction: transaction.set_data(path, data, version)


def _check(path: str, version: int) -> _Step:
    return lambda transaction: transaction.check(path, version)


def _delete(path: str, version: int = -1) -> _Step:
    return lambda transaction: transaction.delete(path, version)


def _address(hosts: str) -> str:
    """Return a normalized address, independent of the order of the hosts."""
    servers, slash, above = hosts.partition("/")
    parts = [each.strip().rpartition(":") for each in servers.split(",")]
    names = sorted(f"{host_names.host_name(host or port)}:{port}" for host, _, port in parts)
    return ",".join(names) + slash + above


def _node(job: _stored.StoredJob) -> _Node:
    return _Node(job.priority.rank, job.sequence, job.uuid)


def _lock_data(data: bytes) -> dict[str, Any]:
    parsed: Any = None
    with contextlib.suppress(ValueError, RecursionError):
        parsed = json.loads(data)
    return parsed if isinstance(parsed, dict) else {}
