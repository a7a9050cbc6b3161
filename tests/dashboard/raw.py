"""Connections to a dashboard, byte by byte."""

from __future__ import annotations

import contextlib
import http.client
import select
import socket
import urllib.parse
from collections.abc import Iterator

from tests.dashboard import story
from tests.dashboard.site import PATIENCE
from wbengine.dashboard import Site

__all__ = ["answer", "bearer", "connected", "is_closed", "request", "status"]


def bearer(token: str = story.TOKEN) -> str:
    """Return the header of a program that authenticates with a token."""
    return f"authorization: Bearer {token}"


@contextlib.contextmanager
def connected(site: Site, source: str = "127.0.0.1", buffer: int = 0) -> Iterator[socket.socket]:
    """Open a connection from a local address; `buffer` is the size of its receive buffer."""
    where = urllib.parse.urlsplit(site.address)
    assert where.hostname is not None and where.port is not None
    with socket.socket() as connection:
        if buffer:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        connection.settimeout(PATIENCE)
        connection.bind((source, 0))
        connection.connect((where.hostname, where.port))
        yield connection
        with contextlib.suppress(OSError):  # an open response prevents a close
            connection.shutdown(socket.SHUT_RDWR)


def request(path: str, *headers: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "host: 127.0.0.1", *headers, "", ""]).encode()


def answer(connection: socket.socket) -> http.client.HTTPResponse:
    """Return the response to the one request that was sent; the caller reads its body."""
    response = http.client.HTTPResponse(connection)
    response.begin()
    return response


def status(site: Site, path: str, *headers: str, source: str = "127.0.0.1") -> int:
    """Return the status of a response after reading it completely."""
    with connected(site, source) as connection:
        connection.sendall(request(path, *headers, "connection: close"))
        with answer(connection) as response:
            response.read()
            return response.status


def is_closed(connection: socket.socket) -> bool:
    """Return whether the server has closed a connection on which it sent nothing."""
    poll = select.poll()
    poll.register(connection, select.POLLIN | select.POLLRDHUP)
    return bool(poll.poll(0))
