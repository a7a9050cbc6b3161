"""The keeper of one private database server: a process that starts it, and ends it for certain.

    python tests/server_keeper.py KIND PROGRAM

It tells in one line of JSON where the server is, or why there is none.  It ends the server, and
removes its folder, when it is told to (a byte on its standard input, or SIGTERM), and when the
process that started it is gone, however that ended.  Standard library only.
"""

from __future__ import annotations

import ctypes
import json
import os
import pwd
import re
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NoReturn

PATIENCE = 60.0
#: The server runs as the first of these that there is; only root has to choose.
USERS = {"postgresql": ("postgres", "nobody"), "mysql": ("mysql", "nobody")}
READY = {"postgresql": "database system is ready to accept", "mysql": "ready for connections"}
#: What makes a server go at once and leave nothing outside its folder.
ENDING = {"postgresql": signal.SIGQUIT, "mysql": signal.SIGKILL}
ATTEMPTS = 3

PR_SET_PDEATHSIG = 1


class NoServer(Exception):
    pass


class Keeper:
    def __init__(self, kind: str, program: str, folder: Path) -> None:
        self.kind = kind
        self.program = program
        self.bin = Path(program).parent
        self.folder = folder
        self.data = folder / "data"
        self.log = folder / "log"
        self.password = secrets.token_hex(8)
        self.user: dict[str, Any] = {}
        self.server: subprocess.Popen[bytes] | None = None
        if os.geteuid() == 0:
            found = next(filter(None, map(_account, USERS[kind])))
            os.chown(folder, found.pw_uid, found.pw_gid)
            self.user = {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": []}

    def start(self) -> dict[str, Any]:
        """What is to be told."""
        make, arguments = {
            "postgresql": (self.make_postgresql, self.postgresql),
            "mysql": (self.make_mysql, self.mysql),
        }[self.kind]
        make()
        for attempt in range(ATTEMPTS):  # somebody else may take the port before the server does
            port = _free_port()
            if self.serve(arguments(port)):
                return {"port": port, "password": self.password, "version": self.version()}
            said = self.log.read_text(errors="replace")
            if attempt + 1 == ATTEMPTS or "in use" not in said:
                raise NoServer("\n".join(said.splitlines()[-10:]))
        raise AssertionError("unreachable")

    def make_postgresql(self) -> None:
        secret = self.write("password", self.password)
        self.call(
            [str(self.bin / "initdb"), "-D", str(self.data), "--no-sync", "--encoding=UTF8",
             "--locale=C", "--username=wbe", "--auth=scram-sha-256", f"--pwfile={secret}"]
        )  # fmt: skip

    def postgresql(self, port: int) -> list[str]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": port,
            "unix_socket_directories": "",
            "dynamic_shared_memory_type": "mmap",
            "max_connections": 200,
        }
        flags = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
        return [self.program, "-D", str(self.data), *flags]

    def make_mysql(self) -> None:
        # What `mariadb-install-db` does, without the help texts and the rest that takes long.
        scripts = self.bin.parent / "share" / "mysql"
        parts = ["create database mysql;\nuse mysql;\nset @auth_root_socket=null;\n"]
        for name in ("tables", "tables_data"):
            parts.append((scripts / f"mysql_system_{name}.sql").read_text())
            if name == "tables":
                parts.append((scripts / "mysql_performance_tables.sql").read_text())
        self.make_data()
        self.call(
            [*self.common(), "--bootstrap", "--log-warnings=0", "--enforce-storage-engine=",
             "--innodb-flush-log-at-trx-commit=0"],
            "".join(parts).encode(),
        )  # fmt: skip

    def mysql(self, port: int) -> list[str]:
        # One statement per line.
        first = self.write(
            "first.sql",
            "DELETE FROM mysql.global_priv WHERE User IN ('', 'root');\n"
            "FLUSH PRIVILEGES;\n"
            f"CREATE OR REPLACE USER wbe@'127.0.0.1' IDENTIFIED BY '{self.password}';\n"
            "GRANT ALL ON *.* TO wbe@'127.0.0.1' WITH GRANT OPTION;\n",
        )
        return [
            *self.common(),
            f"--port={port}",
            "--bind-address=127.0.0.1",
            f"--socket={self.folder}/socket",
            f"--init-file={first}",
            "--skip-name-resolve",
            "--max-allowed-packet=64M",
            "--max-connections=200",
        ]

    def common(self) -> list[str]:
        return [self.program, "--no-defaults", f"--datadir={self.data}", f"--tmpdir={self.data}",
                "--innodb-log-file-size=64M", "--performance-schema=0"]  # fmt: skip

    def make_data(self) -> None:
        self.data.mkdir(mode=0o700)
        if self.user:
            os.chown(self.data, self.user["user"], self.user["group"])

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        if self.user:
            os.chown(path, self.user["user"], self.user["group"])
        path.chmod(0o600)
        return path

    def call(self, command: list[str], said: bytes = b"") -> None:
        done = subprocess.run(
            command, input=said, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            cwd=self.folder, preexec_fn=self.follow, timeout=PATIENCE, **self.user,
        )  # fmt: skip
        if done.returncode:
            raise NoServer("\n".join(done.stdout.decode(errors="replace").splitlines()[-10:]))

    def serve(self, command: list[str]) -> bool:
        with open(self.log, "wb") as log:
            self.server = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                cwd=self.folder, preexec_fn=self.follow, **self.user,
            )  # fmt: skip
        deadline = time.monotonic() + PATIENCE
        while READY[self.kind] not in self.log.read_text(errors="replace"):
            if self.server.poll() is not None or time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        return True

    def follow(self) -> None:
        """In the child: end with the keeper, should somebody kill that."""
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ENDING[self.kind])

    def version(self) -> str:
        told = subprocess.run([self.program, "--version"], capture_output=True, text=True).stdout
        found = re.search(r"\d+\.\d+(\.\d+)?", told)
        number = found[0] if found else told.strip()
        return f"MariaDB {number}" if self.kind == "mysql" else number

    def stop(self) -> None:
        if self.server is not None and self.server.poll() is None:
            self.server.send_signal(ENDING[self.kind])
            try:
                self.server.wait(10)
            except subprocess.TimeoutExpired:
                self.server.kill()
                self.server.wait()


def _account(name: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def _wait(parent: int, server: subprocess.Popen[bytes]) -> None:
    """Until there is no more need for the server, or no server."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    poll.register(parent, select.POLLIN)
    poll.register(os.pidfd_open(server.pid), select.POLLIN)
    poll.poll()


def _end(number: int, frame: object) -> NoReturn:
    sys.exit(0)


def main(kind: str, program: str) -> None:
    parent = os.pidfd_open(os.getppid())
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, _end)
    folder = Path(tempfile.mkdtemp(prefix=f"wbengine-{kind}-"))
    keeper = Keeper(kind, program, folder)
    try:
        told = keeper.start()
        print(json.dumps(told), flush=True)
        assert keeper.server is not None
        _wait(parent, keeper.server)
    except (NoServer, OSError, subprocess.SubprocessError) as error:
        print(json.dumps({"error": str(error)}), flush=True)
    finally:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        keeper.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
