"""The dashboard as a server."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable, Collection, Mapping
from types import FrameType
from typing import Any, ClassVar, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from wbengine.dashboard import _asgi, _connection_limits, _http_headers
from wbengine.dashboard._sessions import new_token
from wbengine.dashboard._visitors import Visitor
from wbengine.persistence import base as persistence

__all__ = ["HOST", "PORT", "Site", "serve"]

HOST: Final = "127.0.0.1"
PORT: Final = 8585

_GRACE_SECONDS: Final = 2

#: Maximum number of connections that are accepted before their requests are read. With more,
#: `connections.Pool` would close connections whose requests have arrived.
_MAX_ACCEPTED: Final = 64
#: Maximum size of the further requests that a client sends while one is answered.
_MAX_BYTES_AHEAD: Final = 65_536
#: Maximum number of connections in the queue of the kernel, which has its own limit.
_BACKLOG: Final = 4096
#: Interval after which a rendering thread lets the event loop continue. The loop waits for it after
#: each system call, and a connection needs about ten calls.
_SWITCH_SECONDS: Final = 0.0005


class Site:
    """A dashboard that listens at a host and port.

    :param port: the port; 0 selects a free one.
    :param token: the token of a single administrator (default: a random one, unless `users`, `oidc`
        or `no_auth` is given).
    :param users: visitors by token, instead of `token`.
    :param oidc: settings of the sign-in with OpenID Connect.
    :param no_auth: no authentication; allowed only on a loopback address.
    :param allow_hosts: host names under which a proxy publishes the dashboard. A proxy on this host
        is then trusted to report the client (`X-Forwarded-For`) and TLS (`X-Forwarded-Proto`).
    :param options: arguments of `create_app`.
    :raises ValueError: as `create_app`, or if arguments exclude each other or a host name is not
        valid.
    :raises OSError: if the port is in use, or the address does not exist.
    """

    def __init__(
        self,
        backend: persistence.Backend,
        *,
        host: str = HOST,
        port: int = PORT,
        token: str | None = None,
        users: Mapping[str, Visitor] | None = None,
        oidc: Mapping[str, Any] | None = None,
        no_auth: bool = False,
        url_prefix: str = "",
        allow_hosts: Collection[str] = (),
        **options: Any,
    ) -> None:
        is_loopback = host in _http_headers.LOOPBACK
        for name, value in (("users", users), ("oidc", oidc)):
            if no_auth and value is not None:
                raise ValueError(f"no_auth cannot be used with {name}")
        if no_auth and not is_loopback:
            raise ValueError(f"no_auth can be used only with a loopback address, got host={host!r}")
        if no_auth and allow_hosts:
            raise ValueError(f"no_auth cannot be used with allow_hosts, got {min(allow_hosts)!r}")
        if no_auth or users is not None:
            token = None
        elif oidc is None:
            token = token or new_token()
        self._token = token
        hosts = {_http_headers.check_host(name) for name in allow_hosts}
        if is_loopback or hosts:
            options.setdefault("hosts", _http_headers.LOOPBACK | hosts | {host})
        closing = threading.Event()
        application = _asgi.create_app(
            backend,
            token=self._token,
            users=users,
            oidc=oidc,
            url_prefix=url_prefix,
            closing=closing,
            **options,
        )
        config = uvicorn.Config(
            application,
            access_log=False,  # Addresses may contain the token.
            log_config=None,
            http=type("Protocol", (_Protocol,), {"pools": _connection_limits.Pools()}),
            backlog=_connection_limits.scaled(_MAX_ACCEPTED),
            proxy_headers=bool(hosts),
            forwarded_allow_ips=sorted(_http_headers.LOOPBACK),
            server_header=False,
            timeout_graceful_shutdown=_GRACE_SECONDS,
            ws="none",
        )
        self._server = _Server(config, closing)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        named = f"[{host}]" if ":" in host else host
        self.address: Final = (
            f"http://{named}:{self._listener.getsockname()[1]}{url_prefix.rstrip('/')}/"
        )

    @property
    def login_url(self) -> str:
        """The address including the token, which logs a browser in."""
        return self.address if self._token is None else f"{self.address}?token={self._token}"

    def run(self, ready: Callable[[], None] | None = None) -> None:
        """Serve until `stop` or, in the main thread, SIGINT or SIGTERM.

        `ready` is called when the server accepts requests.
        """
        with self._listener, _connection_limits.rare_warnings("uvicorn.error"):
            self._server.on_started = ready
            self._server.run(sockets=[self._listener])

    def stop(self) -> None:
        """Stop `run`. Thread-safe."""
        self._server.end()


class _Protocol(H11Protocol):
    pools: ClassVar[_connection_limits.Pools]

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._limited = _connection_limits.OpenConnection(self.pools)
        state = _connection_limits.put_into_state(app_state, self._limited)
        super().__init__(config, server_state, state, _loop)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        # `send` then waits until the kernel has all sent data.
        transport.set_write_buffer_limits(0)
        super().connection_made(transport)
        self._limited.opened(transport)

    def handle_events(self) -> None:
        earlier = self.cycle
        super().handle_events()
        if self.cycle is not earlier:
            self._limited.requested()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # While an application waits for the client to disconnect, uvicorn buffers data without a
        # limit.
        if len(self.conn.trailing_data[0]) > _MAX_BYTES_AHEAD:
            self._limited.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._limited.closed()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._limited.writing_paused()

    def resume_writing(self) -> None:
        self._limited.writing_resumed()
        super().resume_writing()


class _Server(uvicorn.Server):
    on_started: Callable[[], None] | None = None

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
        asyncio.get_running_loop().set_exception_handler(_connection_limits.on_loop_error)
        for listener in sockets or ():
            listener.listen(_BACKLOG)  # uvicorn uses `_MAX_ACCEPTED` as the backlog
        if self.started and self.on_started is not None:
            self.on_started()


def serve(
    backend: persistence.Backend,
    *,
    open_browser: bool = False,
    ready: Callable[[str], None] | None = None,
    **options: Any,
) -> None:
    """Serve the dashboard until SIGINT or SIGTERM.

    :param open_browser: open the dashboard in a browser.
    :param ready: called with the login address when the server accepts requests (default: print it
        to standard error).
    :param options: arguments of `Site`.
    :raises ValueError, OSError: as `Site`.
    """
    site = Site(backend, **options)

    def on_started() -> None:
        (ready or _print)(site.login_url)
        if open_browser:
            webbrowser.open(site.login_url)

    switch_seconds = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        site.run(on_started)
    finally:
        sys.setswitchinterval(switch_seconds)


def _print(url: str) -> None:
    sys.stderr.write(f"Dashboard: {url}\n")
    sys.stderr.flush()
