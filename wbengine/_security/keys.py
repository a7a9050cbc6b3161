"""Keys of a fleet. They sign messages and records, and define what each role may send.

A key file is a small JSON file that only its user can read (`wbengine keys new` writes one). It
contains the signing keys of this process, the trusted keys, the secret that authenticates records
in stores, and optionally a secret that encrypts the bodies of messages. Running processes apply a
change of the file within `CHECK_SECONDS`.
"""

from __future__ import annotations

import base64
import binascii
import functools
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
from wbengine._imports import installing
from wbengine._security import NONE, VARIABLE
from wbengine.types._schema_validation import Schema

__all__ = [
    "ANY", "ED25519", "ENGINE", "HMAC", "NONE", "OPERATOR", "ROLES", "VARIABLE", "WORKER",
    "Key", "Keyring", "keyring", "shared",
]  # fmt: skip

LOG = logging.getLogger(__name__)

HMAC: Final = "hmac-sha256"
ED25519: Final = "ed25519"

ENGINE: Final = "engine"
WORKER: Final = "worker"
OPERATOR: Final = "operator"
#: The role of a shared key, whose owner may send all messages.
ANY: Final = "any"
ROLES: Final = (ENGINE, WORKER, OPERATOR)

#: Interval between two checks of a key file for changes.
CHECK_SECONDS: Final = 5.0

_SECRET_BYTES: Final = 32

_KEY_ID: Final = {"type": "string", "pattern": r"^[A-Za-z0-9_-]{1,64}\Z"}
_BYTES: Final = {"type": "string", "pattern": r"^[A-Za-z0-9_-]{43}=?\Z"}
_TIME: Final = {"type": "number"}
_SECRET: Final = {
    "type": "object",
    "properties": {"id": _KEY_ID, "secret": _BYTES, "since": _TIME, "until": _TIME},
    "required": ["id", "secret"],
    "additionalProperties": False,
}

#: The JSON Schema of a key file.
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


def _derive_key(secret: bytes, purpose: str) -> bytes:
    """Return the key for one purpose: HKDF-Expand of RFC 5869, one block.

    HKDF-Extract is not needed, because the secrets are random bytes.
    """
    return hmac.digest(secret, b"wbengine/1 " + purpose.encode() + b"\x01", "sha256")


def _bytes(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


@dataclass(slots=True)
class _Secret:
    id: str
    bytes: bytes = field(repr=False)
    since: float
    until: float | None


_Timed = TypeVar("_Timed", "Key", _Secret)


def _current(ordered: Sequence[_Timed], now: float) -> _Timed:
    """Return the latest item that is valid now. The items are ordered by `since`."""
    valid = [item for item in ordered if item.until is None or now <= item.until] or ordered
    begun = [item for item in valid if item.since <= now] or valid[:1]
    return begun[-1]


def _valid_secret(known: Iterable[_Secret], key_id: str, now: float) -> _Secret | None:
    valid = (secret for secret in known if secret.until is None or now <= secret.until)
    return next((secret for secret in valid if secret.id == key_id), None)


def _data_secret(known: Sequence[_Secret], key_id: str | None) -> _Secret | None:
    if key_id is not None:
        return next((each for each in known if each.id == key_id), None)
    return _current(known, time.time()) if known else None


def _data_key(
    known: Sequence[_Secret], purpose: str, key_id: str | None
) -> tuple[str, bytes] | None:
    secret = _data_secret(known, key_id)
    return None if secret is None else (secret.id, _derive_key(secret.bytes, purpose))


@functools.lru_cache(maxsize=8)  # They are needed for each record.
def _record_keys(secret: bytes) -> tuple[bytes, bytes]:
    return _derive_key(secret, "stored text"), _derive_key(secret, "nonce of stored text")


def text_of(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@dataclass(slots=True, eq=False)
class Key:
    """A key of a role. It signs from `since` and verifies until `until`, in Unix seconds."""

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
        """Return True if signatures of this key are no longer trusted."""
        return self.until is not None and now > self.until

    def sign(self, purpose: str, data: bytes) -> bytes:
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
        except Exception as error:  # The exception class belongs to a lazily imported library.
            if type(error).__name__ == "InvalidSignature":
                return False
            raise
        return True

    def _mac(self, purpose: str, data: bytes) -> bytes:
        # HMAC-SHA256 with a precomputed key state, which halves its time.
        hash_states = self._macs.get(purpose)
        if hash_states is None:
            assert self.secret is not None
            pads = _derive_key(self.secret, purpose).ljust(64, b"\0")
            hash_states = self._macs[purpose] = (
                hashlib.sha256(bytes(byte ^ 0x36 for byte in pads)),
                hashlib.sha256(bytes(byte ^ 0x5C for byte in pads)),
            )
        inner, outer = hash_states[0].copy(), hash_states[1].copy()
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
            installing.needs("a key of kind ed25519", "cryptography", "keys")
        ) from error
    return ed25519


def _aesgcm(secret: bytes) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise exc.InvalidFormat(installing.needs("encryption", "cryptography", "keys")) from error
    return AESGCM(secret)


class Keyring:
    """The keys of one process. Thread-safe."""

    def __init__(self, content: Mapping[str, Any], path: Path | None = None) -> None:
        """Create a keyring from the content of a key file.

        :raises InvalidFormat: if `content` is not valid for a key file.
        """
        self.path = path
        self._lock = threading.Lock()
        self._checked_at = 0.0
        self._file_identity: Any = None
        self._apply(content)

    def __repr__(self) -> str:
        return f"<Keyring of {self.role} {str(self.path or '')!r}>"

    def __str__(self) -> str:
        return f"{self._own[0].algorithm} of role {self.role!r}"

    def _apply(self, content: Mapping[str, Any]) -> None:
        _FILE.check(content)
        keys = [_key(entry) for entry in content["keys"]]
        by_id = {key.id: key for key in keys}
        if len(by_id) < len(keys):
            raise exc.InvalidFormat("key file is invalid: two keys have the same id")
        own = [key for key in keys if key.role == content["role"] and key.secret is not None]
        if not own:
            raise exc.InvalidFormat(
                f"key file is invalid: no signing key of role {content['role']!r}"
            )
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

        :raises InvalidFormat: if the file does not exist or is damaged, or if other users can read
            or change it.
        """
        path = Path(path)
        content, seen = _read(path)
        try:
            ring = cls(content, path)
        except exc.InvalidFormat as error:
            raise exc.InvalidFormat(f"{path}: {error}") from None
        ring._file_identity = seen
        return ring

    @property
    def encrypts(self) -> bool:
        """Whether bodies of messages, records and payloads are encrypted now."""
        return self.encrypts_from is not None and self.encrypts_from <= time.time()

    @property
    def encrypts_from(self) -> float | None:
        """The time from which this file encrypts, in Unix seconds; None: it only signs."""
        return self._bodies[0].since if self._bodies else None

    @staticmethod
    def cipher(key: bytes) -> Any:
        """Return the cipher AES-GCM with a key of `content_key` or `record_keys`.

        :raises InvalidFormat: if the library is not installed.
        """
        return _aesgcm(key)

    def signing_key(self, now: float) -> Key:
        """Return the latest signing key that is valid now."""
        self._reload_if_changed(now)
        return _current(self._own, now)

    def trusted(self, key_id: str, roles: Collection[str], now: float) -> Key:
        """Return the key of this id if it is valid now and its role is one of `roles` or `ANY`.

        :raises NotTrusted: if the key is unknown, has expired, or has another role.
        """
        self._reload_if_changed(now)
        key = self.keys.get(key_id)
        if key is None:
            raise exc.NotTrusted("unknown key id")
        if key.is_over(now):
            raise exc.NotTrusted(f"key {key_id} has expired")
        if key.role != ANY and key.role not in roles:
            raise exc.NotTrusted(f"key {key_id} of role {key.role!r} must not sign this message")
        return key

    def seal(self, data: bytes, bound: bytes) -> tuple[str, bytes]:
        """Encrypt `data`. Return the id of the key and the ciphertext.

        Decryption requires the same `bound` (associated data).
        """
        key = _current(self._bodies, time.time())
        nonce = secrets.token_bytes(12)
        return key.id, nonce + _aesgcm(_derive_key(key.bytes, "body")).encrypt(nonce, data, bound)

    def open(self, key_id: str, data: bytes, bound: bytes) -> bytes:
        """Decrypt the result of `seal`.

        :raises NotTrusted: if the key is unknown, or the ciphertext or `bound` does not match it.
        """
        key = _valid_secret(self._bodies, key_id, time.time())
        if key is None:
            raise exc.NotTrusted("unknown encryption key id")
        cipher = _aesgcm(_derive_key(key.bytes, "body"))
        try:
            opened: bytes = cipher.decrypt(data[:12], data[12:], bound)
        except Exception as error:
            raise exc.NotTrusted("cannot decrypt the body") from error
        return opened

    def digest_key(self, key_id: str | None = None) -> tuple[str, bytes] | None:
        """Return the id of a secret that all processes have, and its key for addresses of values.

        A fleet whose roles have different keys has such a secret only if it encrypts messages.

        :param key_id: id of the secret, also of an expired one; None: the latest one.
        """
        self._reload_if_changed(time.time())
        store = self._store if self.role == ANY else []
        if key_id is None:
            return _data_key(self._bodies if self.encrypts else store, "payload", None)
        return _data_key([*self._bodies, *store], "payload", key_id)

    def content_key(self, purpose: str, key_id: str | None = None) -> tuple[str, bytes] | None:
        """Return the id and a key of a secret that encrypts data of all processes, or None.

        :param key_id: id of the secret, also of an expired one; None: the latest one.
        """
        self._reload_if_changed(time.time())
        if key_id is None and not self.encrypts:
            return None
        return _data_key(self._bodies, purpose, key_id)

    def record_keys(self, key_id: str | None = None) -> tuple[str, bytes, bytes] | None:
        """Return the id of a secret that encrypts records in stores, and two keys, or None.

        The first key encrypts, the second one is the key of nonces.

        :param key_id: id of the secret, also of an expired one; None: the latest one, if this key
            file encrypts.
        :raises NotTrusted: if this key file encrypts, but has no secret for stores.
        """
        self._reload_if_changed(time.time())
        if key_id is None and not self.encrypts:
            return None
        if key_id is None:
            self._check_store()
        secret = _data_secret(self._store, key_id)
        return None if secret is None else (secret.id, *_record_keys(secret.bytes))

    def mac(self, purpose: str, data: bytes) -> str:
        """Return a MAC that proves that an owner of the store's secret wrote `data`.

        :raises NotTrusted: if this key file has no secret for stores.
        """
        now = time.time()
        self._reload_if_changed(now)
        self._check_store()
        key = _current(self._store, now)
        return f"{key.id}.{text_of(hmac.digest(_derive_key(key.bytes, purpose), data, 'sha256'))}"

    def verify_mac(self, purpose: str, data: bytes, mac: str | None) -> None:
        """Verify the MAC of data from a store.

        :raises NotTrusted: if `mac` is missing or is not the MAC of this data.
        """
        if not isinstance(mac, str):
            raise exc.NotTrusted(
                "the record is not signed: it was written without keys "
                "(see `wbengine keys new --accept-unsigned`)"
            )
        now = time.time()
        self._reload_if_changed(now)
        key_id, _, text = mac.partition(".")
        key = _valid_secret(self._store, key_id, now)
        if key is None:
            raise exc.NotTrusted("the key of the record's MAC is unknown or has expired")
        expected = text_of(hmac.digest(_derive_key(key.bytes, purpose), data, "sha256"))
        if not hmac.compare_digest(expected.encode(), text.encode("utf-8", "replace")):
            raise exc.NotTrusted("the MAC does not match the content of the record")

    def _check_store(self) -> None:
        if not self._store:
            raise exc.NotTrusted(f"key file of role {self.role!r} must contain a secret for stores")

    def _reload_if_changed(self, now: float) -> None:
        """Reload the file if it has changed. If that fails, the old keys remain in use."""
        if self.path is None or abs(now - self._checked_at) < CHECK_SECONDS:
            return
        with self._lock:
            if abs(now - self._checked_at) < CHECK_SECONDS:
                return
            self._checked_at = now
            try:
                if _identity(os.stat(self.path)) == self._file_identity:
                    return
                content, seen = _read(self.path)
                self._apply(content)
                self._file_identity = seen
            except (OSError, exc.InvalidFormat) as error:
                LOG.warning("cannot read the key file again; using the previous keys: %s", error)
            else:
                LOG.info("read new keys from %s", self.path)


def keyring(value: str | Path | Keyring | None, *roles: str) -> Keyring | None:
    """Return the keyring of an option `keys`, or None.

    :param value: a key file, a keyring, or `'none'`. None means the file that `WBENGINE_KEYS`
        names, if any.
    :param roles: if given, the role of the keyring must be one of these or `'any'`.
    :raises InvalidFormat: see `Keyring.load`.
    :raises ValueError: if it has another role.
    """
    path = os.environ.get(VARIABLE) if value is None else value
    if path is None or path == NONE:
        return None
    if path == "":
        where = f"${VARIABLE}" if value is None else "keys"
        raise exc.InvalidFormat(f"{where} must be a key file, or '{NONE}' for no keys, got ''")
    ring = path if isinstance(path, Keyring) else Keyring.load(path)
    if roles and ring.role not in (*roles, ANY):
        raise ValueError(f"key file must be of role {roles[0]!r}, got role {ring.role!r}")
    return ring


def shared(value: str | Path | Keyring | None) -> Keyring | None:
    """Return the keyring of an option `keys` if its role is `'any'`, otherwise None.

    Only such a keyring can serve a process that is both engine and worker.

    :raises InvalidFormat: see `Keyring.load`.
    """
    ring = keyring(value)
    return ring if ring is not None and ring.role == ANY else None


def read(path: Path) -> dict[str, Any]:
    """Return the content of a key file.

    :raises InvalidFormat: see `Keyring.load`.
    """
    Keyring.load(path)
    content: dict[str, Any] = _read(path)[0]
    return content


def _identity(file_status: os.stat_result) -> tuple[int, int, int]:
    return file_status.st_mtime_ns, file_status.st_ino, file_status.st_size


def _read(path: Path) -> tuple[Any, Any]:
    try:
        # Without O_NONBLOCK, opening a pipe that has no writer would block.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            file_status = os.fstat(file.fileno())
            _check_access(path, file_status)
            return json.loads(file.read()), _identity(file_status)
    except OSError as error:
        raise exc.InvalidFormat(f"cannot read key file {path}: {error.strerror}") from error
    except (ValueError, RecursionError):  # The text of the error contains the file's content.
        raise exc.InvalidFormat(f"key file {path} must contain JSON") from None


def _check_access(path: Path, file_status: os.stat_result) -> None:
    if not stat.S_ISREG(file_status.st_mode):
        raise exc.InvalidFormat(f"key file {path} must be a regular file")
    mode = stat.S_IMODE(file_status.st_mode)
    # Kubernetes mounts files as root, with the group of the pod.
    allowed = 0o640 if file_status.st_uid == 0 and os.geteuid() != 0 else 0o600
    if file_status.st_uid not in (os.geteuid(), 0):
        raise exc.InvalidFormat(f"key file {path} must belong to you or root")
    if mode & 0o077 & ~allowed:
        raise exc.InvalidFormat(
            f"other users can read or change key file {path} (mode {mode:04o}); run chmod 600 on it"
        )


def _key(data: Mapping[str, Any]) -> Key:
    secret, public = data.get("secret"), data.get("public")
    material = secret if data["algorithm"] == HMAC else secret or public
    if material is None:
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
        secret = _bytes(text)
    except binascii.Error:
        secret = b""
    if len(secret) != _SECRET_BYTES:
        raise exc.InvalidFormat(f"key file is invalid: a key must have {_SECRET_BYTES} bytes")
    return secret


def _secrets(data: Iterable[Mapping[str, Any]]) -> list[_Secret]:
    secrets = [
        _Secret(each["id"], _secret_of(each["secret"]), each.get("since", 0.0), each.get("until"))
        for each in data
    ]
    return sorted(secrets, key=lambda each: each.since)


# Creation of key files.


def _new_id() -> str:
    return secrets.token_hex(4)


def _new_secret() -> dict[str, Any]:
    return {"id": _new_id(), "secret": text_of(secrets.token_bytes(_SECRET_BYTES))}


def _new_key(role: str, since: float) -> dict[str, Any]:
    key: dict[str, Any] = {"role": role, **_new_secret(), "since": since}
    if role == ANY:
        return {**key, "algorithm": HMAC}
    private = _ed25519().Ed25519PrivateKey.from_private_bytes(_bytes(key["secret"]))
    public = text_of(private.public_key().public_bytes_raw())
    return {**key, "algorithm": ED25519, "public": public}


def new(*, per_role: bool = False, encrypt: bool = False) -> dict[str, dict[str, Any]]:
    """Return the contents of new key files by role: one shared file, or one for each role."""
    common: dict[str, Any] = {"version": 1}
    if encrypt:
        common["encrypt"] = [_new_secret()]
    store = [_new_secret()]
    if not per_role:
        return {ANY: {**common, "role": ANY, "keys": [_new_key(ANY, 0.0)], "store": store}}
    keys = [_new_key(role, 0.0) for role in ROLES]
    return {
        role: {
            **common,
            "role": role,
            "keys": [_visible_to(role, key) for key in keys],
            # Workers neither read nor write flows.
            **({} if role == WORKER else {"store": store}),
        }
        for role in ROLES
    }


def _visible_to(role: str, key: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in key.items() if k != "secret" or key["role"] in (role, ANY)}


def rotated(
    files: Mapping[str, Mapping[str, Any]],
    since: float,
    until: float,
    now: float,
    *,
    encrypt: bool = False,
    remove_expired: bool = False,
) -> dict[str, dict[str, Any]]:
    """Return the rotated contents of all key files of a fleet, by role.

    Each role gets a new signing key, and stores and bodies get new secrets. They are used from
    `since`. Until `until`, old keys and secrets still verify, and decrypt messages. Keys that have
    expired, or that are not yet in use at `since`, are removed. Expired secrets still decrypt what
    stores contain. Secrets that only some files contain (after an interrupted rotation) are added
    to all files.

    :param encrypt: encrypt from `since`, also if the files contain no secret for it yet.
    :param remove_expired: remove expired secrets, too.
    """

    def retained(name: str, content: Mapping[str, Any]) -> list[dict[str, Any]]:
        others = (each for other in files.values() for each in other.get(name, ()))
        all_by_id = {each["id"]: each for each in (*others, *content.get(name, ()))}
        return [
            {**each, "until": min(each.get("until", until), until)}
            if each.get("role") in (None, *files)
            else each
            for each in all_by_id.values()
            if (each.get("until", now) >= now or (name != "keys" and not remove_expired))
            and each.get("since", 0.0) <= since
        ]

    new_keys = [_new_key(role, since) for role in files]
    fresh = {name: {**_new_secret(), "since": since} for name in ("store", "encrypt")}
    return {
        role: {
            **content,
            **{
                name: [*retained(name, content), secret]
                for name, secret in fresh.items()
                if content.get(name) or (encrypt and name == "encrypt")
            },
            "keys": [_visible_to(role, each) for each in (*retained("keys", content), *new_keys)],
        }
        for role, content in files.items()
    }


def write(path: Path, content: Mapping[str, Any], *, replace: bool = False) -> None:
    """Write a key file that only this user can read, completely or not at all.

    :raises FileExistsError: if it exists and `replace` is False.
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
    """Replace key files (or the targets of links). If one cannot be written, replace none."""
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
