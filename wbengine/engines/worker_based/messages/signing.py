"""Who said a message: signed as it is encoded, verified before anything of it is read.

What is signed is one line of JSON, and the bytes of the body behind it: version, algorithm and id
of the key, type, correlation id, to whom it goes and in which exchange, when it was sent, a nonce,
who is to be answered, and all headers but the signature itself and those that brokers add.  Answers
may be passed on to whoever inherits a flow: to whom they go is not signed.
"""

from __future__ import annotations

import base64
import logging
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from wbengine import _clock, _json_text, keys
from wbengine import exceptions as exc
from wbengine._log_rate import RareWarnings
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based.messages import commands
from wbengine.engines.worker_based.messages import envelope as env

LOG = logging.getLogger(__name__)

#: Of what is signed, and how.
VERSION: Final = "1"

#: Seconds that a message which is about now may be on its way, and clocks may differ.
WINDOW: Final = 60

#: So many of those that came lately are remembered, so that none counts twice.
REMEMBERED: Final = 100_000

_PURPOSE: Final = "message"
#: The body of a question who is there; workers who answer, and say that they live, name themselves.
_QUESTION: Final = b"{}"
_ENGINES: Final = (keys.ENGINE, keys.OPERATOR)

#: Who may say what.  An engine ends requests of lost workers, in the ledger; people send requests
#: again that were put aside.
_MAY_SAY: Final[Mapping[str, Collection[str]]] = {
    pr.REQUEST: _ENGINES,
    pr.RESPONSE: (keys.WORKER, keys.ENGINE),
    pr.NOTIFY: (keys.WORKER,),
    commands.ASK: (keys.ENGINE,),
    commands.CANCEL: (keys.ENGINE,),
    commands.CONTROL: _ENGINES,
}
#: What is about now: said again later, it would be wrong.
_OF_NOW: Final = (pr.NOTIFY, commands.CONTROL)


#: The signature itself, and what brokers add.
_NOT_SIGNED: Final = frozenset((
    env.WBE_SIGNATURE, "x-death", "x-delivery-count", "x-acquired-count",
    "x-first-death-exchange", "x-first-death-queue", "x-first-death-reason",
    "x-last-death-exchange", "x-last-death-queue", "x-last-death-reason",
))  # fmt: skip

#: What holds values of users: encrypted, where the key file says so.
_HIDDEN: Final = (pr.REQUEST, pr.RESPONSE)


class Nonces:
    """Those of the last minutes, at most so many.  Thread-safe."""

    def __init__(self, most: int = REMEMBERED) -> None:
        self._most = most
        self._seen: OrderedDict[str, float] = OrderedDict()
        self._lock = threading.Lock()

    def is_new(self, nonce: str, now: float) -> bool:
        """Whether it was not seen yet; from now on it was."""
        with self._lock:
            while self._seen and next(iter(self._seen.values())) < now - 2 * WINDOW:
                self._seen.popitem(last=False)
            if nonce in self._seen:
                return False
            if len(self._seen) >= self._most:
                self._seen.popitem(last=False)
            self._seen[nonce] = now
            return True


class Signer:
    """Signs what one process says, and verifies what it is told.  Thread-safe."""

    def __init__(
        self,
        ring: keys.Keyring,
        clock: _clock.Clock = _clock.SYSTEM,
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
        """Add the header that shows who said this; it must not be changed any more."""
        now = self._clock.time()
        key = self.ring.signing_key(now)
        if key.is_over(now):
            self._warnings.tell(key.id, "nobody believes this process: its key %s is over", key.id)
        kind = envelope.type
        if kind in _HIDDEN and self.ring.encrypts and env.WBE_ENCRYPTED not in envelope.headers:
            self._encrypt(envelope)
        nonce = self._nonce() if kind in _OF_NOW else "-"
        to = "-" if kind == pr.RESPONSE else envelope.routing_key
        said = VERSION, key.id, str(int(now)), nonce, to
        data = self._signed(
            said, key.algorithm, kind, envelope.correlation_id, envelope.reply_to, envelope.headers
        )
        mac = key.sign(_PURPOSE, data + envelope.encoded)
        envelope.headers[env.WBE_SIGNATURE] = f"{' '.join(said)} {mac.hex()}"

    def verify(self, message: Any, audience: Collection[str]) -> bytes:
        """The body of a message that came: it was said by who may say it, to one of this
        `audience`.

        :raises NotTrusted: it was not; nothing of its body was looked at.
        """
        if getattr(message, "compressed", False):
            raise exc.NotTrusted("it is compressed")
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
        """The body of the outcome of a request, as a ledger keeps it: who may say it did.

        :raises NotTrusted: it was not.
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
        signature = headers.get(env.WBE_SIGNATURE)
        if signature is None and now < self.ring.accept_unsigned_until:
            return body
        if not isinstance(signature, str):
            raise exc.NotTrusted("it is not signed")
        roles = _MAY_SAY.get(kind) if isinstance(kind, str) else None
        if roles is None:
            raise exc.NotTrusted("nobody says messages of this type")
        if kind == pr.NOTIFY and env.WBE_WORKER not in headers:
            roles = _ENGINES if body == _QUESTION else ()
        *said, mac = signature.split(" ")
        if len(said) != 5 or said[0] != VERSION:
            raise exc.NotTrusted("it is signed in a way that is not known")
        _, key_id, sent, nonce, to = said
        key = self.ring.trusted(key_id, roles, now)
        try:
            data = self._signed(said, key.algorithm, kind, id, reply_to, headers)
            given = bytes.fromhex(mac)
            genuine = given.hex() == mac and key.verifies(_PURPOSE, data + body, given)
        except (TypeError, ValueError, RecursionError):
            genuine = False
        if not genuine:
            raise exc.NotTrusted(f"it does not have the signature of key {key_id}")
        if kind != pr.RESPONSE and to not in audience:
            raise exc.NotTrusted("it was said to others")
        if kind in _OF_NOW:
            if not abs(now - int(sent)) <= WINDOW:
                raise exc.NotTrusted("it is too old, or clocks differ")
            if kind == commands.CONTROL and int(sent) < self._began:
                raise exc.NotTrusted("it was said before this process began, or clocks differ")
            if not self._nonces.is_new(f"{key_id} {nonce}", now):
                raise exc.NotTrusted("it was said before")
        return self._opened(kind, id, headers, body)

    def _encrypt(self, envelope: env.Envelope) -> None:
        key_id, hidden = self.ring.seal(
            envelope.encoded, _bound(envelope.type, envelope.correlation_id)
        )
        envelope.headers[env.WBE_ENCRYPTED] = key_id
        envelope._encoded = b'"%b"' % base64.b64encode(hidden)

    def _opened(self, kind: str, id: Any, headers: Mapping[str, Any], body: bytes) -> bytes:
        key_id = headers.get(env.WBE_ENCRYPTED)
        if key_id is None:
            return body
        try:
            return self.ring.open(str(key_id), base64.b64decode(body[1:-1]), _bound(kind, id))
        except ValueError:
            raise exc.NotTrusted("its body is not encrypted as it says") from None

    def _signed(
        self,
        said: Collection[str],
        algorithm: str,
        kind: str,
        id: Any,
        reply_to: Any,
        headers: Mapping[str, Any],
    ) -> bytes:
        """What is signed, but for the body."""
        bound = headers
        if left_out := _NOT_SIGNED.intersection(headers):
            bound = dict(headers)
            for name in left_out:
                del bound[name]
        where = (None, None) if kind == pr.RESPONSE else (self._exchange, reply_to)
        return _json_text.canonical([*said, algorithm, kind, id, *where, bound]) + b"\n"


def _bound(kind: str, id: Any) -> bytes:
    """What an encrypted body belongs to."""
    return f"{kind} {id}".encode("utf-8", "surrogatepass")
