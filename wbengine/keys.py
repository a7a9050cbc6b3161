"""Keys of a fleet: who signed a message or a record, and may this role say it.

A key file is small JSON that only its user can read (`wbengine keys new` writes one).  It holds the
keys that this process signs with, those that it trusts, the secret that guards records in stores,
and maybe one that hides the bodies of messages.  A keyring follows its file: what is written there
holds within `LOOK_PERIOD` seconds, in processes that run.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import logging
import os
import secrets
import stat
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from wbengine import exceptions as exc
from wbengine.types.schemas import Schema

__all__ = [
    "ANY", "ED25519", "ENGINE", "HMAC", "NONE", "OPERATOR", "ROLES", "VARIABLE", "WORKER",
    "Key", "Keyring", "keyring", "shared",
]  # fmt: skip

LOG = logging.getLogger(__name__)

#: It names the key file where nothing else does.
VARIABLE: Final = "WBENGINE_KEYS"
#: In place of a file: no keys, whatever the environment says.
NONE: Final = "none"

HMAC: Final = "hmac-sha256"
ED25519: Final = "ed25519"

ENGINE: Final = "engine"
WORKER: Final = "worker"
OPERATOR: Final = "operator"
#: The role of a shared key: whoever has it may say everything.
ANY: Final = "any"
ROLES: Final = (ENGINE, WORKER, OPERATOR)

#: A key file is looked at again after so many seconds, if it changed.
LOOK_PERIOD: Final = 5.0

_SIZE: Final = 32

_KEY_ID: Final = {"type": "string", "pattern": r"^[A-Za-z0-9_-]{1,64}\Z"}
_BYTES: Final = {"type": "string", "pattern": r"^[A-Za-z0-9_-]{43}=?\Z"}
_TIME: Final = {"type": "number"}
_SECRET: Final = {
    "type": "object",
    "properties": {"id": _KEY_ID, "secret": _BYTES, "since": _TIME, "until": _TIME},
    "required": ["id", "secret"],
    "additionalProperties": False,
}

#: Of a key file.
SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "version": {"enum": [1]},
        "role": {"enum": [*ROLES, ANY]},
        "keys": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "properties": {
                    "id": _KEY_ID,
                    "algorithm": {"enum": [HMAC, ED25519]},
                    "role": {"enum": [*ROLES, ANY]},
                    "secret": _BYTES,
                    "public": _BYTES,
                    "since": _TIME,
                    "until": _TIME,
                },
                "required": ["id", "algorithm", "role"],
                "additionalProperties": False,
            },
        },
        "store": {"type": "array", "items": _SECRET},
        "encrypt": {"type": "array", "items": _SECRET},
        "accept_unsigned_until": _TIME,
    },
    "required": ["version", "role", "keys"],
    "additionalProperties": False,
}
_FILE: Final = Schema(SCHEMA, "key file", secret=True)


def _derived(secret: bytes, purpose: str) -> bytes:
    """The key for one purpose: HKDF-Expand of RFC 5869, one block; our secrets are random bytes."""
    return hmac.digest(secret, b"wbengine/1 " + purpose.encode() + b"\x01", "sha256")


def _bytes(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


@dataclass(slots=True)
class _Secret:
    """It is used from `since`, and known until `until`."""

    id: str
    bytes: bytes = field(repr=False)
    since: float
    until: float | None


_Timed = TypeVar("_Timed", "Key", _Secret)


def _current(ordered: Sequence[_Timed], now: float) -> _Timed:
    """Of what is ordered by `since`: the latest that has begun and is not over."""
    valid = [each for each in ordered if each.until is None or now <= each.until] or ordered
    begun = [each for each in valid if each.since <= now] or valid[:1]
    return begun[-1]


def _valid(known: Iterable[_Secret], key_id: str, now: float) -> _Secret | None:
    valid = (each for each in known if each.until is None or now <= each.until)
    return next((each for each in valid if each.id == key_id), None)


def text_of(data: bytes) -> str:
    """Bytes as they stand in key files and signatures."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@dataclass(slots=True, eq=False)
class Key:
    """A key of a role: it signs from `since`, and verifies until `until` (unix seconds)."""

    id: str
    algorithm: str
    role: str
    secret: bytes | None = field(default=None, repr=False)
    public: bytes | None = None
    since: float = 0.0
    until: float | None = None
    _macs: dict[str, tuple[Any, Any]] = field(default_factory=dict, repr=False)
    _loaded: Any = field(default=None, repr=False)

    def is_over(self, now: float) -> bool:
        """Whether nobody believes any more what it signs."""
        return self.until is not None and now > self.until

    def sign(self, purpose: str, data: bytes) -> bytes:
        """What shows that a holder of this key said `data`, for this purpose."""
        assert self.secret is not None, "it only verifies"
        if self.algorithm == HMAC:
            return self._mac(purpose, data)
        if not isinstance(self._loaded, tuple):
            private = _ed25519().Ed25519PrivateKey.from_private_bytes(self.secret)
            self._loaded = (private, private.public_key())
        signature: bytes = self._loaded[0].sign(_tagged(purpose, data))
        return signature

    def verifies(self, purpose: str, data: bytes, signature: bytes) -> bool:
        if self.algorithm == HMAC:
            return hmac.compare_digest(self._mac(purpose, data), signature)
        if self._loaded is None:
            assert self.public is not None
            self._loaded = (None, _ed25519().Ed25519PublicKey.from_public_bytes(self.public))
        try:
            self._loaded[1].verify(signature, _tagged(purpose, data))
        except Exception as error:  # imported lazily, as all of it
            if type(error).__name__ == "InvalidSignature":
                return False
            raise
        return True

    def _mac(self, purpose: str, data: bytes) -> bytes:
        # HMAC-SHA256, of which all that depends on the key is done once: half of its time.
        begun = self._macs.get(purpose)
        if begun is None:
            assert self.secret is not None
            pads = _derived(self.secret, purpose).ljust(64, b"\0")
            begun = self._macs[purpose] = (
                hashlib.sha256(bytes(byte ^ 0x36 for byte in pads)),
                hashlib.sha256(bytes(byte ^ 0x5C for byte in pads)),
            )
        inner, outer = begun[0].copy(), begun[1].copy()
        inner.update(data)
        outer.update(inner.digest())
        return bytes(outer.digest())


def _tagged(purpose: str, data: bytes) -> bytes:
    return b"wbengine/1 " + purpose.encode() + b"\0" + data


def _ed25519() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise exc.InvalidFormat(
            "keys of kind ed25519 need cryptography: pip install 'wbengine[keys]'"
        ) from error
    return ed25519


def _aesgcm(secret: bytes) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise exc.InvalidFormat(
            "to encrypt needs cryptography: pip install 'wbengine[keys]'"
        ) from error
    return AESGCM(secret)


class Keyring:
    """The keys of one process.  Thread-safe."""

    def __init__(self, content: Mapping[str, Any], path: Path | None = None) -> None:
        """
        :raises InvalidFormat: `content` is no key file.
        """
        self.path = path
        self._lock = threading.Lock()
        self._look_at = 0.0
        self._seen: Any = None
        self._use(content)

    def __repr__(self) -> str:
        return f"<Keyring of {self.role} {str(self.path or '')!r}>"

    def __str__(self) -> str:
        return f"{self._own[0].algorithm} of role {self.role!r}"

    def _use(self, content: Mapping[str, Any]) -> None:
        _FILE.check(content)
        found = [_key(each) for each in content["keys"]]
        by_id = {key.id: key for key in found}
        if len(by_id) < len(found):
            raise exc.InvalidFormat("key file is invalid: two keys have one id")
        own = [key for key in found if key.role == content["role"] and key.secret is not None]
        if not own:
            raise exc.InvalidFormat(f"key file is invalid: no key signs for {content['role']!r}")
        self.role: str = content["role"]
        #: All keys, by id.
        self.keys: Mapping[str, Key] = by_id
        self._own = sorted(own, key=lambda key: key.since)
        self._store = _secrets(content.get("store", ()))
        self._bodies = _secrets(content.get("encrypt", ()))
        self.accept_unsigned_until: float = content.get("accept_unsigned_until", 0.0)

    @classmethod
    def load(cls, path: str | Path) -> Keyring:
        """Read a key file.

        :raises InvalidFormat: there is none, it is damaged, or others can read or change it.
        """
        path = Path(path)
        content, seen = _read(path)
        try:
            made = cls(content, path)
        except exc.InvalidFormat as error:
            raise exc.InvalidFormat(f"{path}: {error}") from None
        made._seen = seen
        return made

    # Messages.

    @property
    def encrypts(self) -> bool:
        """Whether bodies of messages are hidden from who has not the key."""
        return bool(self._bodies)

    def signing_key(self, now: float) -> Key:
        """The key to sign with: of those that are not over the latest whose time has come."""
        self._follow(now)
        return _current(self._own, now)

    def trusted(self, key_id: str, roles: Collection[str], now: float) -> Key:
        """The key of that id, if one of `roles` may speak with it now.

        :raises NotTrusted: there is none, its time is over, or it is of another role.
        """
        self._follow(now)
        key = self.keys.get(key_id)
        if key is None:
            raise exc.NotTrusted("no key of that id is known")
        if key.is_over(now):
            raise exc.NotTrusted(f"key {key_id} is not valid any more")
        if key.role != ANY and key.role not in roles:
            raise exc.NotTrusted(f"key {key_id} of role {key.role!r} must not say this")
        return key

    def seal(self, data: bytes, bound: bytes) -> tuple[str, bytes]:
        """Hide `data`: the id of the key, and what is sent instead; it opens with `bound` only."""
        key = _current(self._bodies, time.time())
        nonce = secrets.token_bytes(12)
        return key.id, nonce + _aesgcm(_derived(key.bytes, "body")).encrypt(nonce, data, bound)

    def open(self, key_id: str, data: bytes, bound: bytes) -> bytes:
        """What `seal` hid.

        :raises NotTrusted: it was hidden with another key, or is damaged.
        """
        key = _valid(self._bodies, key_id, time.time())
        if key is None:
            raise exc.NotTrusted("no key of that id opens bodies")
        cipher = _aesgcm(_derived(key.bytes, "body"))
        try:
            opened: bytes = cipher.decrypt(data[:12], data[12:], bound)
        except Exception as error:
            raise exc.NotTrusted("the body cannot be decrypted") from error
        return opened

    # Records.

    def mac(self, purpose: str, data: bytes) -> str:
        """What shows, in a store, that a holder of the store's secret wrote `data`.

        :raises NotTrusted: this key file has no secret of stores.
        """
        if not self._store:
            raise exc.NotTrusted(f"the key file of {self.role!r} has no secret for stores")
        key = _current(self._store, time.time())
        return f"{key.id}.{text_of(hmac.digest(_derived(key.bytes, purpose), data, 'sha256'))}"

    def verify_mac(self, purpose: str, data: bytes, mac: str | None) -> None:
        """
        :raises NotTrusted: `mac` was not made by `mac` of these data, or is missing.
        """
        if not isinstance(mac, str):
            raise exc.NotTrusted("the record has no MAC")
        key_id, _, text = mac.partition(".")
        key = _valid(self._store, key_id, time.time())
        if key is None:
            raise exc.NotTrusted(
                "the MAC of the record was made with a key that is not known, or not valid any more"
            )
        found = text_of(hmac.digest(_derived(key.bytes, purpose), data, "sha256"))
        if not hmac.compare_digest(found.encode(), text.encode("utf-8", "replace")):
            raise exc.NotTrusted("the record does not have the MAC of what it holds")

    # The file.

    def _follow(self, now: float) -> None:
        """Take what the file says by now; what cannot be read changes nothing."""
        if self.path is None or abs(now - self._look_at) < LOOK_PERIOD:
            return
        with self._lock:
            if abs(now - self._look_at) < LOOK_PERIOD:
                return
            self._look_at = now
            try:
                if _identity(os.stat(self.path)) == self._seen:
                    return
                content, seen = _read(self.path)
                self._use(content)
                self._seen = seen
            except (OSError, exc.InvalidFormat) as error:
                LOG.warning("keys are used as they were: %s", error)
            else:
                LOG.info("keys were read again from %s", self.path)


def keyring(value: str | Path | Keyring | None, *roles: str) -> Keyring | None:
    """The keyring of an option `keys`: that of a file, or itself; None: `WBENGINE_KEYS`, if set;
    `'none'`: there is none.  If `roles` are given, it has to be of one of these, or shared.

    :raises InvalidFormat: see `Keyring.load`.
    :raises ValueError: it is of another role.
    """
    path = os.environ.get(VARIABLE) if value is None else value
    if path is None or path == NONE:
        return None
    if path == "":
        where = f"${VARIABLE}" if value is None else "keys"
        raise exc.InvalidFormat(f"{where} is empty: name a key file, or '{NONE}' for no keys")
    found = path if isinstance(path, Keyring) else Keyring.load(path)
    if roles and found.role not in (*roles, ANY):
        raise ValueError(
            f"keys of role {found.role!r} do not speak for {roles[0]!r}: give the file of that role"
        )
    return found


def shared(value: str | Path | Keyring | None) -> Keyring | None:
    """The keyring of an option `keys`, if who has it may say everything: for who is engine and
    worker at once.

    :raises InvalidFormat: see `Keyring.load`.
    """
    found = keyring(value)
    return found if found is not None and found.role == ANY else None


def read(path: Path) -> dict[str, Any]:
    """The content of a key file.

    :raises InvalidFormat: see `Keyring.load`.
    """
    Keyring.load(path)
    content: dict[str, Any] = _read(path)[0]
    return content


def _identity(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_mtime_ns, found.st_ino, found.st_size


def _read(path: Path) -> tuple[Any, Any]:
    try:
        # What is no file, such as a pipe that nobody writes to, is not waited for.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            found = os.fstat(file.fileno())
            _check_access(path, found)
            return json.loads(file.read()), _identity(found)
    except OSError as error:
        raise exc.InvalidFormat(f"key file {path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError):  # which hold what was read
        raise exc.InvalidFormat(f"key file {path} is no JSON") from None


def _check_access(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise exc.InvalidFormat(f"key file {path} is no file")
    mode = stat.S_IMODE(found.st_mode)
    # What Kubernetes mounts belongs to root, and its group is that of the pod.
    allowed = 0o640 if found.st_uid == 0 and os.geteuid() != 0 else 0o600
    if found.st_uid not in (os.geteuid(), 0):
        raise exc.InvalidFormat(f"key file {path} belongs to another user")
    if mode & 0o077 & ~allowed:
        raise exc.InvalidFormat(
            f"key file {path} can be read or changed by others (mode {mode:04o}): chmod 600 it"
        )


def _key(data: Mapping[str, Any]) -> Key:
    secret, public = data.get("secret"), data.get("public")
    known = secret if data["algorithm"] == HMAC else secret or public
    if known is None:
        raise exc.InvalidFormat(f"key file is invalid: key {data['id']} has no secret")
    if data["algorithm"] == HMAC and data["role"] != ANY:
        raise exc.InvalidFormat(f"key file is invalid: shared key {data['id']} has a role")
    if data["algorithm"] == ED25519 and data["role"] == ANY:
        raise exc.InvalidFormat(f"key file is invalid: key {data['id']} has no role")
    return Key(
        data["id"],
        data["algorithm"],
        data["role"],
        None if secret is None else _secret_of(secret),
        None if public is None else _secret_of(public),
        data.get("since", 0.0),
        data.get("until"),
    )


def _secret_of(text: str) -> bytes:
    try:
        found = _bytes(text)
    except binascii.Error:
        found = b""
    if len(found) != _SIZE:
        raise exc.InvalidFormat(f"key file is invalid: a key is not of {_SIZE} bytes")
    return found


def _secrets(data: Iterable[Mapping[str, Any]]) -> list[_Secret]:
    made = [
        _Secret(each["id"], _secret_of(each["secret"]), each.get("since", 0.0), each.get("until"))
        for each in data
    ]
    return sorted(made, key=lambda each: each.since)


# Making them. ------------------------------------------------------------------------------------


def _new_id() -> str:
    return secrets.token_hex(4)


def _new_secret() -> dict[str, Any]:
    return {"id": _new_id(), "secret": text_of(secrets.token_bytes(_SIZE))}


def _new_key(role: str, since: float) -> dict[str, Any]:
    made: dict[str, Any] = {"role": role, **_new_secret(), "since": since}
    if role == ANY:
        return {**made, "algorithm": HMAC}
    private = _ed25519().Ed25519PrivateKey.from_private_bytes(_bytes(made["secret"]))
    public = text_of(private.public_key().public_bytes_raw())
    return {**made, "algorithm": ED25519, "public": public}


def new(*, per_role: bool = False, encrypt: bool = False) -> dict[str, dict[str, Any]]:
    """The contents of new key files, by role: of one that all share, or of one for each role."""
    common: dict[str, Any] = {"version": 1}
    if encrypt:
        common["encrypt"] = [_new_secret()]
    store = [_new_secret()]
    if not per_role:
        return {ANY: {**common, "role": ANY, "keys": [_new_key(ANY, 0.0)], "store": store}}
    made = [_new_key(role, 0.0) for role in ROLES]
    return {
        role: {
            **common,
            "role": role,
            "keys": [_seen_by(role, key) for key in made],
            # Workers neither read nor write flows.
            **({} if role == WORKER else {"store": store}),
        }
        for role in ROLES
    }


def _seen_by(role: str, key: Mapping[str, Any]) -> dict[str, Any]:
    """A key, without its secret in the files of other roles."""
    return {k: v for k, v in key.items() if k != "secret" or key["role"] in (role, ANY)}


def rotated(
    files: Mapping[str, Mapping[str, Any]], since: float, until: float, now: float
) -> dict[str, dict[str, Any]]:
    """The contents of all key files of a fleet (by role), each role with a new key to sign with,
    and with new secrets of stores and bodies.

    They are used from `since`; those before them only verify (or open) then, until `until`.  Those
    whose time is over are left out, and those that would begin after them.  Each file gets what
    only some have: an earlier rotation broke off.
    """

    def kept(name: str, content: Mapping[str, Any]) -> list[dict[str, Any]]:
        others = (each for other in files.values() for each in other.get(name, ()))
        found = {each["id"]: each for each in (*others, *content[name])}
        return [
            {**each, "until": min(each.get("until", until), until)}
            if each.get("role") in (None, *files)
            else each
            for each in found.values()
            if each.get("until", now) >= now and each.get("since", 0.0) <= since
        ]

    made = [_new_key(role, since) for role in files]
    fresh = {name: {**_new_secret(), "since": since} for name in ("store", "encrypt")}
    return {
        role: {
            **content,
            **{name: [*kept(name, content), fresh[name]] for name in fresh if content.get(name)},
            "keys": [_seen_by(role, each) for each in (*kept("keys", content), *made)],
        }
        for role, content in files.items()
    }


def write(path: Path, content: Mapping[str, Any], *, replace: bool = False) -> None:
    """Write a key file that only this user can read, all or nothing.

    :raises FileExistsError: it is there, and is not to be replaced.
    """
    if replace:
        replace_all({path: content})
        return
    Keyring(content)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(file, "w", encoding="utf-8") as stream:
        stream.write(json.dumps(content, indent=2) + "\n")
        stream.flush()
        os.fsync(stream.fileno())


def replace_all(contents: Mapping[Path, Mapping[str, Any]]) -> None:
    """Replace key files (of a link, what it leads to): none, if one of them cannot be written."""
    written: dict[Path, Path] = {}
    try:
        for path, content in contents.items():
            path = path.resolve()
            written[path] = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
            write(written[path], content)
        for path, file in written.items():
            os.replace(file, path)
    finally:
        for file in written.values():
            file.unlink(missing_ok=True)
