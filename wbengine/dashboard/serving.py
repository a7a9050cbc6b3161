"""The dashboard as a server of its own."""

from __future__ import annotations

import socket
import sys
import threading
import webbrowser
from collections.abc import Callable, Collection, Mapping
from types import FrameType
from typing import Any, Final

import uvicorn

from wbengine.dashboard import app, policy
from wbengine.dashboard.sessions import new_token
from wbengine.dashboard.visitors import Visitor
from wbengine.persistence import base as persistence

__all__ = ["HOST", "PORT", "Site", "serve"]

HOST: Final = "127.0.0.1"
PORT: Final = 8585

#: Seconds that open streams are waited for when the server ends.
_GRACE: Final = 2


class Site:
    """A dashboard that listens at an address of its own.

    Without a `token` or `users` one is made up, and with `no_auth` there is none.  `port` 0 is any
    free one.  `allow_hosts` are the names under which a proxy in front makes it known; one on this
    host is then believed who asked it, and whether by TLS (`X-Forwarded-For`, `X-Forwarded-Proto`).
    `options` are those of `create_app`.

    :raises ValueError: others could come in without a token, or it can be guessed; or a name is
        none.
    :raises OSError: the port is taken, or there is no such address.
    """

    def __init__(
        self,
        backend: persistence.Backend,
        *,
        host: str = HOST,
        port: int = PORT,
        token: str | None = None,
        users: Mapping[str, Visitor] | None = None,
        no_auth: bool = False,
        url_prefix: str = "",
        allow_hosts: Collection[str] = (),
        **options: Any,
    ) -> None:
        at_home = host in policy.LOOPBACK
        if no_auth and users is not None:
            raise ValueError("no_auth lets everybody in: leave out the users")
        if no_auth and not at_home:
            raise ValueError(f"host={host!r} can be reached by others: that takes a token")
        if no_auth and allow_hosts:
            raise ValueError(f"{min(allow_hosts)!r} can be reached by others: that takes a token")
        self._token = None if no_auth or users is not None else token or new_token()
        hosts = {policy.check_host(name) for name in allow_hosts}
        if at_home or hosts:
            options.setdefault("hosts", policy.LOOPBACK | hosts | {host})
        closing = threading.Event()
        made = app.create_app(
            backend,
            token=self._token,
            users=users,
            url_prefix=url_prefix,
            closing=closing,
            **options,
        )
        config = uvicorn.Config(
            made,
            access_log=False,  # addresses may hold the token
            log_config=None,
            proxy_headers=bool(hosts),
            forwarded_allow_ips=sorted(policy.LOOPBACK),
            server_header=False,
            timeout_graceful_shutdown=_GRACE,
            ws="none",
        )
        self._server = _Server(config, closing)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=128)
        named = f"[{host}]" if ":" in host else host
        #: Where it is.
        self.address: Final = (
            f"http://{named}:{self._listener.getsockname()[1]}{url_prefix.rstrip('/')}/"
        )

    @property
    def login_url(self) -> str:
        """The address with the token in it: what lets a browser in."""
        return self.address if self._token is None else f"{self.address}?token={self._token}"

    def run(self, ready: Callable[[], None] | None = None) -> None:
        """Serve until `stop`, or, in the main thread, SIGINT or SIGTERM.

        `ready` is called once it can be used.
        """
        with self._listener:
            self._server.begun = ready
            self._server.run(sockets=[self._listener])

    def stop(self) -> None:
        """Have `run` return.  From any thread."""
        self._server.end()


class _Server(uvicorn.Server):
    """Says when it can be used, and when it is about to end."""

    begun: Callable[[], None] | None = None

    def __init__(self, config: uvicorn.Config, closing: threading.Event) -> None:
        super().__init__(config)
        self._closing = closing

    def end(self) -> None:
        self._closing.set()
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._closing.set()
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and self.begun is not None:
            self.begun()


def serve(
    backend: persistence.Backend,
    *,
    open_browser: bool = False,
    ready: Callable[[str], None] | None = None,
    **options: Any,
) -> None:
    """Serve the dashboard until SIGINT or SIGTERM.

    `ready` is called once it can be used, with the address that lets a browser in; by default it is
    printed to the standard error.  `options` are those of `Site`, and it raises what that raises.
    """
    site = Site(backend, **options)

    def begun() -> None:
        (ready or _print)(site.login_url)
        if open_browser:
            webbrowser.open(site.login_url)

    site.run(begun)


def _print(url: str) -> None:
    sys.stderr.write(f"Dashboard: {url}\n")
    sys.stderr.flush()
