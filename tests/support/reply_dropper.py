"""A proxy that drops the reply to a request that the server executes.

with contextlib.closing(ReplyDropper(server.port)) as dropper:
    dropper.drop_reply_to = b"some bytes of the request"
"""

from __future__ import annotations

import select
import socket
import threading


class ReplyDropper:
    """A proxy that can drop one reply and then closes the connection."""

    def __init__(self, port: int) -> None:
        self._server = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.drop_reply_to = b""
        self.dropped = threading.Event()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            near, _ = self._listening.accept()
            if not self.port:
                near.close()
                return
            thread = threading.Thread(target=self._serve, args=(near,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, near: socket.socket) -> None:
        with near:
            try:
                far = socket.create_connection(("127.0.0.1", self._server))
            except OSError:  # the server does not run
                return
            with far:
                self._move(near, far)

    def _move(self, near: socket.socket, far: socket.socket) -> None:
        request = b""
        while True:
            ready, _, _ = select.select([near, far], [], [])
            for source in ready:
                try:
                    data = source.recv(65536)
                except OSError:
                    return
                if not data:
                    return
                if source is near:
                    request = data
                elif self.drop_reply_to and self.drop_reply_to in request:
                    self.drop_reply_to = b""
                    self.dropped.set()
                    return
                (far if source is near else near).sendall(data)

    def close(self) -> None:
        port, self.port = self.port, 0
        socket.create_connection(("127.0.0.1", port)).close()
        for thread in self._threads:
            thread.join()
        self._listening.close()
