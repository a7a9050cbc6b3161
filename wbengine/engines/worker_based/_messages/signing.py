"""Sign messages when they are encoded, and verify them before any part of the body is read.

The signed data is one line of JSON followed by the bytes of the body. The line contains the
version, the algorithm and the id of the key, the type, the correlation id, the receiver, the
exchange, the time, a nonce, `reply_to`, and all headers except those that brokers add. The
signature of a reply does not cover receiver, exchange and `reply_to`, because a reply may be
forwarded to the engine that takes over a flow.
"""

from __future__ import annotations

import base64
import logging
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from wbengine import exceptions as exc
from wbengine._concurrency import clocks
from wbengine._logs.repeated_messages import RareWarnings
from wbengine._security import keys
from wbengine._text import data_formats, json_text
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based._messages import headers as hd
from wbengine.engines.worker_based._messages import worker_commands

LOG = logging.getLogger(__name__)

_VERSION: Final = str(data_formats.SIGNATURE.written)
_READ_VERSIONS: Final = tuple(map(str, data_formats.SIGNATURE.read))

#: Maximum age of a NOTIFY or control message in seconds, including the difference of the clocks.
MAX_AGE_SECONDS: Final = 60

#: Maximum number of stored nonces. They detect repeated messages.
MAX_NONCES: Final = 100_000

_PURPOSE: Final = "message"
_ENGINE_NOTIFY_BODY: Final = b"{}"
_ENGINES: Final = (keys.ENGINE, keys.OPERATOR)

#: Roles that may send each type. An engine writes replies for lost workers to the ledger; an
#: operator publishes dead letters again.
_SENDER_ROLES: Final[Mapping[str, Collection[str]]] = {
    pr.REQUEST: _ENGINES,
    pr.RESPONSE: (keys.WORKER, keys.ENGINE),
    pr.NOTIFY: (keys.WORKER,),
    worker_commands.ASK: (keys.ENGINE,),
    worker_commands.CANCEL: (keys.ENGINE,),
    worker_commands.CONTROL: _ENGINES,
}
#: Types that are valid only once, and for a short time.
_SHORT_LIVED_TYPES: Final = (pr.NOTIFY, worker_commands.CONTROL)


#: The signature itself, and headers that brokers add.
_NOT_SIGNED: Final = frozenset((hd.WBE_SIGNATURE, *hd.ADDED_BY_BROKERS))

#: Types that contain user values. Their bodies are encrypted if the key file requires that.
_ENCRYPTED_TYPES: Final = (pr.REQUEST, pr.RESPONSE)


class Nonces:
    """Nonces of recent messages, limited in number. Thread-safe."""

    def __init__(self, limit: int = MAX_NONCES) -> None:
        self._limit = limit
        self._seen: OrderedDict[str, float] = OrderedDict()
        self._lock = threading.Lock()

    def is_new(self, nonce: str, now: float) -> bool:
        with self._lock:
            while self._seen and next(iter(self._seen.values())) < now - 2 * MAX_AGE_SECONDS:
                self._seen.popitem(last=False)
            if nonce in self._seen:
                return False
            if len(self._seen) >= self._limit:
                self._seen.popitem(last=False)
            self._seen[nonce] = now
            return True


class Signer:
    """Signs the messages of one process, and verifies those that it receives. Thread-safe."""

    def __init__(
        self,
        ring: keys.Keyring,
        clock: clocks.Clock = clocks.SYSTEM,
        nonce: Callable[[], str] = lambda: secrets.token_hex(12),
        *,
        exchange: str = "",
    ) -> None:
        self.ring = ring
        self._exchange = exchange
        self._clock = clock
        self._began = int(clock.time())
        self._warnings = RareWarnings(LOG)
        self._nonce = nonce
        self._nonces = Nonces()

    def sign(self, envelope: env.Envelope) -> None:
        """Add the signature header. The message must not change after that."""
        now = self._clock.time()
        key = self.ring.signing_key(now)
        if key.is_over(now):
            self._warnings.warn(
                key.id,
                "key %s of this process has expired: other processes reject its messages",
                key.id,
            )
        kind = envelope.type
        if (
            kind in _ENCRYPTED_TYPES
            and self.ring.encrypts
            and hd.WBE_ENCRYPTED not in envelope.headers
        ):
            self._encrypt(envelope)
        nonce = self._nonce() if kind in _SHORT_LIVED_TYPES else "-"
        to = "-" if kind == pr.RESPONSE else envelope.routing_key
        fields = _VERSION, key.id, str(int(now)), nonce, to
        data = self._signed(
            fields,
            key.algorithm,
            kind,
            envelope.correlation_id,
            envelope.reply_to,
            envelope.headers,
        )
        mac = key.sign(_PURPOSE, data + envelope.encoded)
        envelope.headers[hd.WBE_SIGNATURE] = f"{' '.join(fields)} {mac.hex()}"

    def verify(self, message: Any, audience: Collection[str]) -> bytes:
        """Verify a received message and return its body.

        :param audience: routing keys of this process, one of which must be the signed receiver.
        :raises NotTrusted: if the verification fails; no part of the body was parsed.
        """
        if getattr(message, "compressed", False):
            raise exc.NotTrusted("the message is compressed")
        find = message.properties.get
        body = message.body
        return self._verify(
            find("type", ""),
            find("correlation_id"),
            find("reply_to"),
            message.headers or {},
            body.encode("utf-8", "surrogatepass") if isinstance(body, str) else bytes(body),
            audience,
        )

    def verify_outcome(self, id: str, headers: Mapping[str, Any], body: bytes) -> bytes:
        """Verify a result that a ledger stored and return its body.

        :raises NotTrusted: if the verification fails.
        """
        return self._verify(pr.RESPONSE, id, None, headers, body, ())

    def _verify(
        self,
        kind: Any,
        id: Any,
        reply_to: Any,
        headers: Mapping[str, Any],
        body: bytes,
        audience: Collection[str],
    ) -> bytes:
        now = self._clock.time()
        signature = headers.get(hd.WBE_SIGNATURE)
        if signature is None and now < self.ring.accept_unsigned_until:
            return body
        if not isinstance(signature, str):
            raise exc.NotTrusted("the message is not signed")
        roles = _SENDER_ROLES.get(kind) if isinstance(kind, str) else None
        if roles is None:
            raise exc.NotTrusted("the type of the message is unknown")
        if kind == pr.NOTIFY and hd.WBE_WORKER not in headers:
            roles = _ENGINES if body == _ENGINE_NOTIFY_BODY else ()
        *fields, mac = signature.split(" ")
        if len(fields) != 5 or fields[0] not in _READ_VERSIONS:
            raise exc.NotTrusted("the format of the signature is unknown")
        _, key_id, sent, nonce, to = fields
        key = self.ring.trusted(key_id, roles, now)
        try:
            data = self._signed(fields, key.algorithm, kind, id, reply_to, headers)
            received_mac = bytes.fromhex(mac)
            is_genuine = received_mac.hex() == mac and key.verifies(
                _PURPOSE, data + body, received_mac
            )
        except (TypeError, ValueError, RecursionError):
            is_genuine = False
        if not is_genuine:
            raise exc.NotTrusted(f"the signature does not match key {key_id}")
        if kind != pr.RESPONSE and to not in audience:
            raise exc.NotTrusted("the message is addressed to another process")
        if kind in _SHORT_LIVED_TYPES:
            if not abs(now - int(sent)) <= MAX_AGE_SECONDS:
                raise exc.NotTrusted("the message is too old, or the clocks differ")
            if kind == worker_commands.CONTROL and int(sent) < self._began:
                raise exc.NotTrusted(
                    "the message was sent before this process started, or the clocks differ"
                )
            if not self._nonces.is_new(f"{key_id} {nonce}", now):
                raise exc.NotTrusted("the message was received before")
        return self._opened(kind, id, headers, body)

    def _encrypt(self, envelope: env.Envelope) -> None:
        key_id, hidden = self.ring.seal(
            envelope.encoded, _bound(envelope.type, envelope.correlation_id)
        )
        envelope.headers[hd.WBE_ENCRYPTED] = key_id
        envelope._encoded = b'"%b"' % base64.b64encode(hidden)

    def _opened(self, kind: str, id: Any, headers: Mapping[str, Any], body: bytes) -> bytes:
        key_id = headers.get(hd.WBE_ENCRYPTED)
        if key_id is None:
            return body
        try:
            return self.ring.open(str(key_id), base64.b64decode(body[1:-1]), _bound(kind, id))
        except ValueError:
            raise exc.NotTrusted("the body cannot be decrypted") from None

    def _signed(
        self,
        fields: Collection[str],
        algorithm: str,
        kind: str,
        id: Any,
        reply_to: Any,
        headers: Mapping[str, Any],
    ) -> bytes:
        bound = headers
        if unsigned := _NOT_SIGNED.intersection(headers):
            bound = dict(headers)
            for name in unsigned:
                del bound[name]
        where = (None, None) if kind == pr.RESPONSE else (self._exchange, reply_to)
        return json_text.canonical([*fields, algorithm, kind, id, *where, bound]) + b"\n"


def _bound(kind: str, id: Any) -> bytes:
    return f"{kind} {id}".encode("utf-8", "surrogatepass")
