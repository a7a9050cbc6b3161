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

from wbengine import _options, exceptions
from wbengine.jobs import base, stored
from wbengine.persistence import base as persistence_base

try:
    from kazoo import client as kazoo
    from kazoo import exceptions as errors
except ImportError as error:
    raise ImportError(
        "a job board in ZooKeeper takes kazoo: pip install 'wbengine[zookeeper]'"
    ) from error

__all__ = ["ZookeeperJobBoard"]

#: So many jobs are read at most at a time.
_LARGEST_PAGE: Final = 256
#: A list of more names than these is kept for so many seconds, unless a fresh one is wanted.
_LONG: Final = 1000
_LIST_SECONDS: Final = 1.0
#: Seconds to wait for an answer.
_TIMEOUT: Final = 10.0
#: So many times a step is tried that others came before.
_ATTEMPTS: Final = 20
#: So many bytes are taken at a time, with what is around them.
_LARGEST: Final = 1_000_000
#: A job: its rank, the uuid, and the number that ZooKeeper gave it.
_JOB: Final = re.compile(r"([0-4])-(.+)-(\d{10,})")
_CLAIM: Final = ".lock"

#: Options that are the client's, with what reads them.
_OF_CLIENT: Final[Mapping[str, _options.Reader]] = {
    **dict.fromkeys(("keyfile", "keyfile_password", "certfile", "ca"), _options.text),
    **dict.fromkeys(("read_only", "randomize_hosts", "use_ssl", "verify_certs"), _options.flag),
    **dict.fromkeys(("command_retry", "connection_retry", "handler"), _options.anything),
    "timeout": stored.check_expiry,
}

#: A step of a transaction.
_Step = Callable[[Any], Any]


class _Node(NamedTuple):
    """A job as it is listed."""

    rank: int
    sequence: int
    uuid: str

    @property
    def name(self) -> str:
        return f"{self.rank}-{urllib.parse.quote(self.uuid, safe='')}-{self.sequence:010}"

    @classmethod
    def of(cls, name: str) -> _Node | None:
        found = _JOB.fullmatch(name)
        return found and cls(int(found[1]), int(found[3]), urllib.parse.unquote(found[2]))


def _hosts(name: str, value: Any) -> str:
    if isinstance(value, Mapping):
        value = [f"{host}:{port}" for host, port in value.items()]
    return _options.text(
        name, (value if isinstance(value, str) else ",".join(map(str, value))).strip()
    )


def _path(name: str, value: Any) -> str:
    found = _options.text(name, value).rstrip("/")
    if not found.startswith("/") or "//" in found:
        raise ValueError(f"Option {name}={found!r} is no path of ZooKeeper: it begins with a /")
    return found


class ZookeeperJobBoard(stored.StoredJobBoard):
    """Keeps jobs in a ZooKeeper, for processes of any host that reach it.

    Options:

    `path` ('/wbengine/jobs'): boards of one path are one board.
    `hosts` ('localhost:2181'): a text, a list, or a dict of ports.
    `timeout` (seconds; 10): after so long a silence a session ends, and its claims with it.
    `read_only`, `randomize_hosts`, `use_ssl`, `verify_certs`, `keyfile`, `keyfile_password`,
    `certfile`, `ca`, `command_retry`, `connection_retry`, `handler`: as kazoo takes them.

    `client`: a client of kazoo, in place of one that is made of these options; it stays open when
    the board is closed.

    Each step is one transaction.  A claim lasts as long as the session of its board, whatever its
    expiry, of which ZooKeeper knows nothing.  Giving a claim up does not change `last_modified`.

    :raises ValueError: an option is wrong.
    """

    KIND = "ZooKeeper"
    OPTIONS: ClassVar[Mapping[str, _options.Reader]] = {
        **_OF_CLIENT,
        "hosts": _hosts,
        "path": _path,
        # TaskFlow's boards ask the server for its version, unless told not to.
        "check_compatible": _options.anything,
    }

    def __init__(
        self,
        name: str,
        conf: Mapping[str, Any] | None = None,
        client: Any = None,
        persistence: persistence_base.Backend | None = None,
    ) -> None:
        super().__init__(name, conf, client, persistence)
        self.path: Final[str] = self._given.get("path", "/wbengine/jobs")
        above, _, last = self.path.rpartition("/")
        #: Where trashed jobs are, and who works on the board.
        self.trash_path: Final = f"{above}/.trash"
        self.entity_path: Final = f"{above}/.entities"
        self._uuid_path = f"{above}/.uuids/{last}"
        self._id_path = f"{above}/.ids/{last}"
        if client is None:
            hosts = self._given.get("hosts", "localhost:2181")
            told = {name: value for name, value in self._given.items() if name in _OF_CLIENT}
            self._client = kazoo.KazooClient(hosts, **{"randomize_hosts": False, **told})
            self.address = _address(hosts)
        # Locks of ours that nobody has: what took them, or let them go, got no answer.
        self._orphan_locks: dict[str, bytes] = {}
        # The list that was read last, and when.
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

    # -- posting and listing --------------------------------------------------------------------

    def _identify(self, new: str) -> stored.Identity:
        what = "Looking for the id of the board"
        for _ in range(_ATTEMPTS):
            self._ask(what, lambda client: client.ensure_path_async(self._id_path))
            data, stat = self._get(self._id_path) or (b"", None)
            if data:
                return stored.Identity(data.decode())
            if stat is not None:
                self._commit(what, _set(self._id_path, new.encode(), stat.version))
        raise exceptions.JobFailure(f"{what} failed: {self._id_path} is written by others")

    def _put(self, job: stored.NewJob) -> stored.Posting | None:
        uuid, rank, document = job.uuid, job.priority.rank, job.document
        data = document.encode()
        if len(data) > _LARGEST:
            raise exceptions.JobFailure(
                f"A job of {len(data)} bytes is too large for ZooKeeper, which takes {_LARGEST}"
            )
        if self._get(self._trash(uuid)) is not None:
            return None
        before = _Node(rank, 0, uuid).name[:-10]
        made, index = self._commit(
            f"Posting job {uuid}",
            _create(f"{self.path}/{before}", data, sequence=True),
            _create(self._index(uuid)),
        )
        if isinstance(index, errors.NodeExistsError):
            return None
        node = _Node.of(str(made).rpartition("/")[2])
        if node is None:
            raise exceptions.JobFailure(f"Posting job {uuid} failed: {made!r}")
        [row] = self._read_all([node])
        if row is not None:
            return self._parse(row)
        # It may be done already.
        return stored.Posting.of(uuid, rank, node.sequence, document, time.time())

    def _rows(self, only_unclaimed: bool, ensure_fresh: bool) -> Iterator[tuple[str, Any]]:
        self._delete_orphans()
        names = self._listed(ensure_fresh)
        claimed = {name.removesuffix(_CLAIM) for name in names if name.endswith(_CLAIM)}
        found = sorted(filter(None, map(_Node.of, names)))
        if only_unclaimed:
            found = [node for node in found if node.name not in claimed]
        sizes = stored.page_sizes(_LARGEST_PAGE)
        while found:
            size = next(sizes)
            for row in filter(None, self._read_all(found[:size])):
                yield row[0].uuid, row
            found = found[size:]

    def _listed(self, ensure_fresh: bool) -> list[str]:
        """The names of all jobs and claims; of very many, those of a moment ago."""
        at, names = self._names
        now = time.monotonic()
        if ensure_fresh or len(names) <= _LONG or now > at + _LIST_SECONDS:
            names = self._ask("Listing jobs", lambda client: client.get_children_async(self.path))
            self._names = (time.monotonic(), names)
        return names

    def _read_all(self, nodes: list[_Node]) -> list[tuple[_Node, Any] | None]:
        """Jobs that are listed, each with its data and state; None: it is gone."""
        found = self._get_all([f"{self.path}/{node.name}" for node in nodes])
        return [got and (node, got) for node, got in zip(nodes, found, strict=True)]

    def _parse(self, row: Any) -> stored.Posting:
        node, (data, stat) = row
        return stored.Posting.of(
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

    def look(self, job: base.Job) -> stored.Status | None:
        node = self._node_of(job.uuid) if not isinstance(job, stored.StoredJob) else _node(job)
        found = None if node is None else self._looked(node)
        return None if found is None else found[0]

    def _looked(self, node: _Node) -> tuple[stored.Status, Any, Any] | None:
        """What becomes of a job, its data and state, and those of its lock."""
        path = f"{self.path}/{node.name}"
        job, lock = self._get_all([path, path + _CLAIM])
        if job is None:
            return None
        owner = None if lock is None else _told(lock[0]).get("owner")
        return stored.Status(job[1].version, job[1].mtime / 1000, owner), job, lock

    # -- claims ---------------------------------------------------------------------------------

    def _claim(
        self, job: base.Job, who: str, expiry: float | None
    ) -> tuple[int, int] | stored.Status:
        self._delete_orphans()
        node = stored.located(job, _node, self._node_of)
        path = f"{self.path}/{node.name}"
        value = json.dumps({"owner": who, "claim": secrets.token_hex(16)}).encode()
        for _ in range(_ATTEMPTS):
            found = self._looked(node)
            if found is None:
                raise stored.gone(job)
            status, (data, stat), lock = found
            if lock is not None:
                return status
            with self._noting_orphan(path + _CLAIM, value):
                # The version of a job counts its claims.
                changed, made = self._commit(
                    f"Claiming {job}",
                    _set(path, data, stat.version),
                    _create(path + _CLAIM, value, ephemeral=True),
                )
            if not isinstance(made, Exception):
                return changed.version, changed.version
        raise exceptions.JobFailure(f"Claiming {job} failed: too many others claim it")

    def _end_claim(self, job: base.Job, who: str, how: str) -> stored.Status | None:
        node, claim = stored.located(job, _node, self._node_of), stored.claim_of(job)
        path, index, trash = (
            f"{self.path}/{node.name}",
            self._index(job.uuid),
            self._trash(job.uuid),
        )
        for _ in range(_ATTEMPTS):
            found = self._looked(node)
            if found is None:
                raise stored.gone(job)
            status, (data, stat), lock = found
            if lock is None or status.owner != who or claim not in (None, stat.version):
                return status
            steps: list[_Step] = [_delete(path + _CLAIM)]
            if how == "abandon":
                steps.append(_check(path, stat.version))
            else:
                steps += [_delete(path, stat.version), _delete(index)]
            if how == "trash":
                steps.append(_create(trash, data))
            with self._noting_orphan(path + _CLAIM, lock[0]):
                results = self._commit(f"Ending the claim on {job}", *steps)
            if not any(isinstance(each, Exception) for each in results):
                return None
        raise exceptions.JobFailure(f"Ending the claim on {job} failed: {results!r}")

    def extend(self, job: stored.StoredJob, expiry: float) -> bool:
        found = self._looked(_node(job))
        return (
            found is not None
            and found[0].owner is not None
            and job.claim in (None, found[0].claims)
        )

    @contextlib.contextmanager
    def _noting_orphan(self, lock: str, value: bytes) -> Iterator[None]:
        """Delete a lock later if nobody knows what became of a step that takes it, or ends it."""
        try:
            yield
        except exceptions.JobFailure:
            self._orphan_locks[lock] = value
            raise

    def _delete_orphans(self) -> None:
        """Delete locks that nobody has: they are held as long as our session."""
        for lock, value in tuple(self._orphan_locks.items()):
            found = self._get(lock)
            if found is not None and found[0] == value:
                self._commit("Ending a claim", _delete(lock))
            self._orphan_locks.pop(lock, None)

    def register_entity(self, entity: Any) -> None:
        """Note who works on the board, until our session ends; only conductors are noted.

        :raises NotImplementedError: it is no conductor.
        """
        if entity.kind != "conductor":
            raise exceptions.NotImplementedError(f"{entity.kind!r} is no kind that is registered")
        above = f"{self.entity_path}/{entity.kind}"
        path = f"{above}/{urllib.parse.quote(entity.name, safe='@:')}"
        data = json.dumps(entity.to_dict()).encode()
        with self._asking("Registering"):
            self._client.ensure_path(above)
        self._commit("Registering", _create(path, data, ephemeral=True))

    # -- paths ----------------------------------------------------------------------------------

    def _index(self, uuid: str) -> str:
        return f"{self._uuid_path}/{urllib.parse.quote(uuid, safe='')}"

    def _trash(self, uuid: str) -> str:
        last = self.path.rpartition("/")[2]
        return f"{self.trash_path}/{last}-{urllib.parse.quote(uuid, safe='')}"

    def _node_of(self, uuid: str) -> _Node | None:
        """Where the job with this uuid is; reads the whole list."""
        if self._get(self._index(uuid)) is None:
            return None
        nodes = filter(None, map(_Node.of, self._listed(True)))
        return next((node for node in nodes if node.uuid == uuid), None)

    # -- asking ---------------------------------------------------------------------------------

    def _get(self, path: str) -> Any:
        return self._get_all([path])[0]

    def _get_all(self, paths: list[str]) -> list[Any]:
        """What is there, with its state; None: nothing."""
        found: list[Any] = []
        with self._asking("Reading"):
            for asked in [self._client.get_async(path) for path in paths]:
                try:
                    found.append(asked.get(timeout=_TIMEOUT))
                except errors.NoNodeError:
                    found.append(None)
        return found

    def _commit(self, what: str, *steps: _Step) -> list[Any]:
        """Do all steps in one transaction, or none: what came of each."""

        def ask(client: Any) -> Any:
            made = client.transaction()
            for step in steps:
                step(made)
            return made.commit_async()

        found: list[Any] = self._ask(what, ask)
        for each in found:
            if isinstance(each, errors.NoAuthError):
                with self._failures(what):
                    raise each
        return found

    def _ask(self, what: str, ask: Callable[[Any], Any]) -> Any:
        with self._asking(what):
            return ask(self._client).get(timeout=_TIMEOUT)


def _create(
    path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False
) -> _Step:
    return lambda made: made.create(path, data, ephemeral=ephemeral, sequence=sequence)


def _set(path: str, data: bytes, version: int) -> _Step:
    return lambda made: made.set_data(path, data, version)


def _check(path: str, version: int) -> _Step:
    return lambda made: made.check(path, version)


def _delete(path: str, version: int = -1) -> _Step:
    return lambda made: made.delete(path, version)


def _address(hosts: str) -> str:
    """Where the ZooKeeper is that is at these hosts, in whatever order."""
    servers, slash, above = hosts.partition("/")
    found = [each.strip().rpartition(":") for each in servers.split(",")]
    names = sorted(f"{stored.host_name(host or port)}:{port}" for host, _, port in found)
    return ",".join(names) + slash + above


def _node(job: stored.StoredJob) -> _Node:
    return _Node(job.priority.rank, job.sequence, job.uuid)


def _told(data: bytes) -> dict[str, Any]:
    """What a lock says."""
    found: Any = None
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(data)
    return found if isinstance(found, dict) else {}
