"""TLS in front of servers without TLS."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def wrapped(port: int, certificate: Path) -> Iterator[int]:
    """Yield a TLS port in front of a port without TLS.

    The certificate is a file of `receivers.make_certificate`.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    near, _ = server.accept()
                    threading.Thread(target=pass_on, args=(near,), daemon=True).start()

        def pass_on(near: socket.socket) -> None:
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", port)) as far,
                context.wrap_socket(near, server_side=True) as safe,
            ):
                threading.Thread(target=_copy, args=(far, safe), daemon=True).start()
                _copy(safe, far)

        threading.Thread(target=serve, daemon=True).start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)  # ends `accept`
