"""Messages by e-mail."""

from __future__ import annotations

import email.message
import email.policy
import email.utils
import logging
import smtplib
import socket
import ssl
from collections.abc import Sequence
from typing import Final, Literal

from wbengine._configuration.named_secrets import Secret
from wbengine.notifications import _http
from wbengine.notifications._message import Message
from wbengine.notifications._sender import SendError

__all__ = ["TLS", "Email"]

LOG: Final = logging.getLogger(__name__)

#: How a connection is encrypted, with the usual port.
TLS: Final = {"starttls": 587, "tls": 465, "none": 25}


class Email:
    """Sends messages to a server of SMTP.

    :param tls: 'starttls', 'tls' (from the start) or 'none'.
    :param password: of `user`; not without encryption.
    """

    takes_all: Final = False

    def __init__(
        self,
        host: str,
        port: int | None,
        *,
        tls: Literal["starttls", "tls", "none"],
        user: str | None,
        password: Secret | None,
        sender: str,
        recipients: Sequence[str],
        timeout: float,
        ca_file: str | None,
    ) -> None:
        if (user is None) != (password is None):
            raise ValueError("user and password_file (or password_variable) belong together")
        if password is not None and tls == "none":
            raise ValueError("a password requires tls = 'starttls' or 'tls'")
        for address in (sender, *recipients):
            _check_address(address)
        if not recipients:
            raise ValueError("to must contain an address")
        self._host = host
        self._port = TLS[tls] if port is None else port
        self._tls = tls
        self._user = user
        self._password = password
        self._sender = sender
        self._recipients = tuple(recipients)
        self._timeout = timeout
        self._ca_file = ca_file

    @property
    def place(self) -> str:
        return f"{', '.join(self._recipients)} by {self._host}:{self._port}"

    def send(self, message: Message) -> None:
        mail = self._mail(message)
        context = _http.tls_context(self._ca_file)
        server: smtplib.SMTP
        if self._tls == "tls":
            server = smtplib.SMTP_SSL(timeout=self._timeout, context=context)
        else:
            server = smtplib.SMTP(timeout=self._timeout)
        # `connect` without a host in the constructor does not set it for the check of certificates.
        server._host = self._host  # type: ignore[attr-defined]
        try:
            with _http.limited(self._timeout, server):
                server.connect(self._host, self._port)
                if self._tls == "starttls":
                    server.starttls(context=context)
                if self._user is not None and self._password is not None:
                    server.login(self._user, self._password.read())
                refused = server.send_message(mail)
        except smtplib.SMTPResponseException as error:
            # The text of a response can contain what was sent, such as a password.
            raise SendError(f"SMTP status {error.smtp_code}") from None
        except (OSError, ssl.SSLError, smtplib.SMTPException) as error:
            reason = str(error) if isinstance(error, OSError) else type(error).__name__
            raise SendError(f"not sent: {reason or type(error).__name__}") from None
        finally:
            server.close()
        if refused:  # The others received it, so it is not sent again.
            LOG.warning("%s refused these recipients: %s", self._host, ", ".join(sorted(refused)))

    def _mail(self, message: Message) -> email.message.EmailMessage:
        mail = email.message.EmailMessage(policy=email.policy.SMTP)
        # Encoded words of RFC 2047 would be decoded here, and could contain line breaks.
        title = message.title.replace("=?", "= ?")
        mail["Subject"] = f"[wbengine] {title}"
        mail["From"] = self._sender
        mail["To"] = ", ".join(self._recipients)
        mail["Date"] = email.utils.formatdate(message.at)
        mail["Message-ID"] = f"<{message.id}@{socket.gethostname() or 'wbengine'}>"
        mail["Auto-Submitted"] = "auto-generated"
        mail["Wbengine-Id"] = message.id
        mail.set_content(message.text)
        return mail


def _check_address(address: str) -> None:
    _, parsed = email.utils.parseaddr(address)
    if "@" not in parsed or not address.isprintable():
        raise ValueError(f"e-mail address must have the form name@host, got {address!r:.100}")
