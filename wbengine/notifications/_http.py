"""HTTP requests to configured URLs: with a time limit, and without redirects."""

from __future__ import annotations

import base64
import contextlib
import http.client
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from typing import Final
from urllib import parse

import wbengine
from wbengine._configuration.named_secrets import Secret
from wbengine.notifications._sender import SendError

__all__ = ["Endpoint", "check_url", "limited", "post", "shown_url", "tls_context"]

_SCHEMES: Final = ("http", "https")
_MASKED_PATH: Final = "/***"


def check_url(url: str) -> str:
    """Return a URL.

    :raises ValueError: if it is not a URL of HTTP; the message does not contain it.
    """
    try:
        parts = parse.urlsplit(url)
        is_valid = parts.scheme in _SCHEMES and parts.hostname and (parts.port or 1) > 0
        is_valid = is_valid and f"{parts.path}{parts.query}".isascii()  # HTTP cannot send others.
    except ValueError:
        is_valid = False
    if not is_valid or not url.isprintable() or " " in url:
        raise ValueError("url must be a URL of http or https")
    return url


def shown_url(url: str) -> str:
    """Return a URL for logs, without the parts that can be secret."""
    parts = parse.urlsplit(url)
    port = "" if parts.port is None else f":{parts.port}"
    return f"{parts.scheme}://{parts.hostname}{port}{_MASKED_PATH}"


class Endpoint:
    """A URL, which may be a secret, that receives JSON.

    :param timeout: seconds for one request.
    :param ca_file: file of certificate authorities; None: those of the host.
    :raises ValueError: if it is not a URL of HTTP, or cannot be read.
    """

    def __init__(self, url: Secret, *, timeout: float, ca_file: str | None) -> None:
        check_url(url.read())
        self._url = url
        self._timeout = timeout
        self._ca_file = ca_file

    @property
    def place(self) -> str:
        """The URL for logs."""
        return shown_url(self._url.read())

    def post(self, body: bytes, headers: Mapping[str, str]) -> None:
        """Send JSON.

        :raises SendError: see `post`.
        """
        post(
            check_url(self._url.read()),
            body,
            {"Content-Type": "application/json", **headers},
            timeout=self._timeout,
            ca_file=self._ca_file,
        )


def tls_context(ca_file: str | None) -> ssl.SSLContext:
    """Return a context that checks certificates and host names."""
    return ssl.create_default_context(cafile=ca_file)


@contextlib.contextmanager
def limited(seconds: float, connection: object) -> Iterator[None]:
    """Shut down the socket of a connection (its attribute `sock`) after a number of seconds.

    The time limit of a socket applies to each read, so a server that sends single bytes would not
    exceed it.

    :raises TimeoutError: if the time is over, also instead of another error.
    """
    expired = False

    def shut_down() -> None:
        nonlocal expired
        expired = True
        opened: socket.socket | None = getattr(connection, "sock", None)
        if opened is not None:
            with contextlib.suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, shut_down)
    timer.daemon = True
    timer.start()
    try:
        yield
    except Exception:
        if not expired:
            raise
    finally:
        timer.cancel()
    if expired:
        raise TimeoutError("timed out")


def post(
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    *,
    timeout: float,
    ca_file: str | None = None,
) -> None:
    """Send a body. A redirect is an error, and the body of the response is not read.

    :raises SendError: if the response has another status than 2xx, or there is none in time.
    """
    parts = parse.urlsplit(url)
    assert parts.hostname is not None
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        connection = http.client.HTTPSConnection(
            parts.hostname, parts.port, timeout=timeout, context=tls_context(ca_file)
        )
    else:
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)
    target = parse.urlunsplit(("", "", parts.path or "/", parts.query, ""))
    sent = {"User-Agent": f"wbengine/{wbengine.__version__}", **headers, **_authorization(parts)}
    try:
        with limited(timeout, connection):
            connection.request("POST", target, body, sent)
            status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        # Not `str(error)`: errors of `http.client` can contain the path.
        reason = str(error) if isinstance(error, OSError) else type(error).__name__
        raise SendError(f"no response: {reason or type(error).__name__}") from None
    finally:
        connection.close()
    if 300 <= status < 400:
        raise SendError(f"HTTP status {status}: redirects are not followed")
    if not 200 <= status < 300:
        raise SendError(f"HTTP status {status}")


def _authorization(parts: parse.SplitResult) -> dict[str, str]:
    if parts.username is None:
        return {}
    user, password = parse.unquote(parts.username), parse.unquote(parts.password or "")
    return {"Authorization": f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"}
