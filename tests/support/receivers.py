"""Servers that receive notifications: HTTP, with or without TLS, and SMTP."""

from __future__ import annotations

import contextlib
import datetime as dt
import http.server
import ipaddress
import json
import queue
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiosmtpd import controller, smtp
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.support.server_kinds import free_port


@dataclass
class Request:
    """A received request."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Receiver:
    """An HTTP server. `statuses` are those of the next responses; later ones are 200."""

    port: int = 0
    scheme: str = "http"
    requests: list[Request] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    #: Where redirects lead.
    location: str = "http://127.0.0.1:1/"
    #: While this is not set, requests are recorded and not answered.
    answers: threading.Event = field(default_factory=threading.Event)
    arrivals: queue.SimpleQueue[Request] = field(default_factory=queue.SimpleQueue)

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/hook/canary"

    @property
    def ids(self) -> list[str]:
        return [request.json["id"] for request in self.requests]


@contextlib.contextmanager
def receiver(certificate: Path | None = None) -> Iterator[Receiver]:
    """Run a server. `certificate` contains the certificate and its key."""
    site = Receiver(scheme="http" if certificate is None else "https")
    site.answers.set()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            request = Request(self.path, dict(self.headers), body)
            site.requests.append(request)
            site.arrivals.put(request)
            site.answers.wait(60)
            status = site.statuses.pop(0) if site.statuses else 200
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", site.location)
            self.send_header("Content-Length", "0")
            with contextlib.suppress(OSError):
                self.end_headers()

        do_GET = do_POST

        def log_message(self, *args: Any) -> None:
            pass

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True

        def get_request(self) -> tuple[socket.socket, Any]:
            accepted, address = super().get_request()
            if certificate is None:
                return accepted, address
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            try:
                return context.wrap_socket(
                    accepted, server_side=True, do_handshake_on_connect=False
                ), address
            except OSError:
                accepted.close()
                raise

        def handle_error(self, *args: Any) -> None:
            """Ignore clients that refuse the certificate or close their connection."""

    server = Server(("127.0.0.1", 0), Handler)
    site.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield site
    finally:
        site.answers.set()
        server.shutdown()
        server.server_close()
        thread.join()


def make_certificate(folder: Path, host: str = "127.0.0.1") -> Path:
    """Write a self-signed certificate with its key to a file, which is also its authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host)])
    now = dt.datetime.now(dt.UTC)
    alternative: x509.GeneralName = x509.DNSName(host)
    if host[0].isdigit():
        alternative = x509.IPAddress(ipaddress.ip_address(host))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([alternative]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / f"{host}.pem"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    return path


@dataclass
class Mailbox:
    """A server of SMTP, and the messages that it received."""

    port: int = 0
    messages: list[smtp.Envelope] = field(default_factory=list)
    #: Recipients that are refused.
    refused: set[str] = field(default_factory=set)

    async def handle_RCPT(  # noqa: N802  (a name of aiosmtpd)
        self, server: Any, session: Any, envelope: smtp.Envelope, address: str, options: Any
    ) -> str:
        if address in self.refused:
            return "550 unknown recipient"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(  # noqa: N802
        self, server: Any, session: Any, envelope: smtp.Envelope
    ) -> str:
        self.messages.append(envelope)
        return "250 OK"


@contextlib.contextmanager
def mailbox(
    certificate: Path | None = None, login: tuple[str, str] | None = None
) -> Iterator[Mailbox]:
    """Run a server. A certificate makes it require STARTTLS, and `login` user and password."""
    box = Mailbox()
    context = None
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)

    def authenticate(server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> Any:
        given = (data.login.decode(), data.password.decode())
        return smtp.AuthResult(success=given == login, handled=False)

    served = controller.Controller(
        box,
        hostname="127.0.0.1",
        port=free_port(),
        tls_context=context,
        require_starttls=context is not None,
        authenticator=authenticate if login else None,
        auth_required=login is not None,
    )
    served.start()
    box.port = served.port
    try:
        yield box
    finally:
        served.stop()
