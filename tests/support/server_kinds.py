"""The kinds of private servers: how each is created, started and ended; see `server_keeper`.

Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import pwd
import random
import re
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PATIENCE = 100.0
ATTEMPTS = 3
#: Ports below the range for outgoing connections. Otherwise a client that retries while its
#: server is down could connect to itself and occupy the port.
PORTS = range(16_384, 32_768)

PR_SET_PDEATHSIG = 1


class NoServer(Exception):
    pass


class Keeper:
    """Common parts of all kinds."""

    #: The server runs as the first of these users that exists. This applies only to root.
    users: tuple[str, ...]
    #: Texts in the log when the server is ready, and when another process has its port.
    ready: str
    taken = "in use"
    #: Signal that ends the server at once, with nothing left outside its folder.
    ending = signal.SIGKILL

    def __init__(self, program: str, folder: Path, settings: Mapping[str, str]) -> None:
        self.program = program
        self.bin = Path(program).parent
        self.folder = folder
        self.settings = settings
        self.data = folder / "data"
        self.log = folder / "log"
        self.password = secrets.token_hex(8)
        self.user: dict[str, Any] = {}
        self.environment: dict[str, str] | None = None
        self.port = 0
        self.server: subprocess.Popen[bytes] | None = None
        if os.geteuid() == 0:
            account = next(filter(None, map(_account, self.users)))
            os.chown(folder, account.pw_uid, account.pw_gid)
            self.user = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}

    def make(self) -> None:
        """Prepare the data, once before the first start."""

    def command(self) -> list[str]:
        """Return the command of the server on `self.port`."""
        raise NotImplementedError

    def more(self) -> dict[str, Any]:
        """Return additional fields for the answer of `start`."""
        return {}

    def start(self) -> dict[str, Any]:
        """Start the server and return its address and version."""
        self.make()
        for attempt in range(ATTEMPTS):  # another process can take the port before the server does
            self.port = free_port()
            if self.serve():
                details = {"port": self.port, "password": self.password, "version": self.version()}
                return {**details, **self.pid(), **self.more()}
            text = self.log.read_text(errors="replace")
            if attempt + 1 == ATTEMPTS or self.taken not in text:
                raise NoServer("\n".join(text.splitlines()[-10:]))
        raise AssertionError("unreachable")

    def do(self, word: str) -> dict[str, Any]:
        """Execute a command of the standard input and return the answer."""
        assert self.server is not None
        if word == "kill":
            self.server.kill()
            self.server.wait()
        elif word == "start":
            if self.server.poll() is None:
                return {"error": "it runs"}
            if not self.serve():
                self.do("kill")  # it can be slow: the next `start` must find no running server
                return {"error": self.log.read_text(errors="replace")[-2000:]}
        elif word in ("pause", "resume"):
            self.server.send_signal(signal.SIGSTOP if word == "pause" else signal.SIGCONT)
        else:
            return {"error": f"what is {word!r}?"}
        return self.pid()

    def pid(self) -> dict[str, Any]:
        assert self.server is not None
        return {"pid": self.server.pid}

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.touch(0o600)
        path.write_text(text)
        if self.user:
            os.chown(path, self.user["user"], self.user["group"])
        return path

    def make_data(self) -> None:
        self.data.mkdir(mode=0o700)
        if self.user:
            os.chown(self.data, self.user["user"], self.user["group"])

    def call(self, command: list[str], said: bytes = b"") -> None:
        follow = functools.partial(self.follow, os.getpid())
        done = subprocess.run(
            command, input=said, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            cwd=self.folder, preexec_fn=follow, timeout=PATIENCE, env=self.environment,
            **self.user,
        )  # fmt: skip
        if done.returncode:
            raise NoServer("\n".join(done.stdout.decode(errors="replace").splitlines()[-10:]))

    def run(self, command: list[str], log: Any) -> subprocess.Popen[bytes]:
        follow = functools.partial(self.follow, os.getpid())
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder,
            preexec_fn=follow, env=self.environment, **self.user,
        )  # fmt: skip

    def serve(self) -> bool:
        """Start the server and return whether it became ready."""
        with open(self.log, "wb") as log:
            self.server = self.run(self.command(), log)
        deadline = time.monotonic() + PATIENCE
        while self.ready not in self.log.read_text(errors="replace"):
            if self.server.poll() is not None or time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        return True

    def follow(self, keeper: int) -> None:
        """In the child: end with the keeper if that is killed, or was killed before."""
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, self.ending)
        if os.getppid() != keeper:
            os._exit(1)

    def version(self) -> str:
        completed = subprocess.run(
            [self.program, "--version"], capture_output=True, text=True
        ).stdout
        match = re.search(r"\d+\.\d+(\.\d+)?", completed)
        return match[0] if match else completed.strip()

    def stop(self) -> None:
        if self.server is not None:
            end(self.server, self.ending)


class Postgresql(Keeper):
    users = ("postgres", "nobody")
    ready = "database system is ready to accept"
    ending = signal.SIGQUIT

    def make(self) -> None:
        secret = self.write("password", self.password)
        self.call(
            [str(self.bin / "initdb"), "-D", str(self.data), "--no-sync", "--encoding=UTF8",
             "--locale=C", "--username=wbe", "--auth=scram-sha-256", f"--pwfile={secret}"]
        )  # fmt: skip

    def command(self) -> list[str]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": "",
            "dynamic_shared_memory_type": "mmap",
            "max_connections": 200,
        }
        flags = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
        return [self.program, "-D", str(self.data), *flags]


class Pgbouncer(Keeper):
    """A pooler in transaction mode, for any database of the PostgreSQL server `upstream`."""

    users = ("postgres", "nobody")
    ready = "process up"

    def command(self) -> list[str]:
        lines = (
            "[databases]",
            f"* = {self.settings['upstream']}",
            "[pgbouncer]",
            "listen_addr = 127.0.0.1",
            f"listen_port = {self.port}",
            "unix_socket_dir =",
            "auth_type = any",
            "pool_mode = transaction",
        )
        return [self.program, str(self.write("pgbouncer.ini", "\n".join(lines)))]


class Mysql(Keeper):
    users = ("mysql", "nobody")
    ready = "ready for connections"

    def make(self) -> None:
        # The steps of `mariadb-install-db` without help texts and other slow parts.
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

    def command(self) -> list[str]:
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
            f"--port={self.port}",
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

    def version(self) -> str:
        return f"MariaDB {super().version()}"


class Redis(Keeper):
    """With an append-only file, so that a kill loses nothing. Settings are those of redis.conf."""

    users = ("redis", "nobody")
    ready = "Ready to accept connections"

    def make(self) -> None:
        self.make_data()

    def command(self) -> list[str]:
        settings = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "requirepass": self.password,
            "dir": str(self.data),
            "appendonly": "yes",
            # With fsync enabled, Redis delays all writes while the disk is busy.
            "appendfsync": "no",
            "save": '""',
            "databases": "4096",
            "set-proc-title": "no",  # processes are found by their folder
            **self.settings,
        }
        lines = "".join(f"{key} {value}\n" for key, value in settings.items())
        return [self.program, str(self.write("redis.conf", lines))]


class Rabbitmq(Keeper):
    """A node with its own cookie and port mapper. Settings are those of rabbitmq.conf.

    The management plugin creates and lists vhosts in a few milliseconds; `rabbitmqctl` starts an
    Erlang for each call.
    """

    users = ("rabbitmq", "nobody")
    ready = "Server startup complete"
    taken = "eaddrinuse"

    def make(self) -> None:
        self.make_data()
        self.write(".erlang.cookie", secrets.token_hex(16)).chmod(0o400)
        self.write("plugins", "[rabbitmq_management].")
        self.mapper: subprocess.Popen[bytes] | None = None
        self.pages = 0

    def command(self) -> list[str]:
        if self.mapper is None or self.mapper.poll() is not None or self.pages == 0:
            self.pages, mapped = free_port(), free_port()
            self.environment = self.words(mapped)
            # Without this, the node would start a mapper that runs forever; see ERL_ZFLAGS.
            mapper = [shutil.which("epmd") or "epmd", "-port", str(mapped), "-address", "127.0.0.1"]
            self.mapper = self.run(mapper, subprocess.DEVNULL)
        self.write("rabbitmq.conf", self.configuration())
        return [self.program]

    def configuration(self) -> str:
        settings = {
            "listeners.tcp.1": f"127.0.0.1:{self.port}",
            "num_acceptors.tcp": "4",
            "management.tcp.ip": "127.0.0.1",
            "management.tcp.port": str(self.pages),
            "management_agent.disable_metrics_collector": "true",
            "default_user": "wbe",
            "default_pass": self.password,
            "loopback_users.wbe": "true",
            "log.console": "true",
            "log.console.level": "info",
            "log.file": "false",
            "vm_memory_high_watermark.absolute": "1GB",
            "disk_free_limit.absolute": "1MB",
            **self.settings,
        }
        return "".join(f"{key} = {value}\n" for key, value in settings.items())

    def words(self, mapped: int) -> dict[str, str]:
        near = "-kernel inet_dist_use_interface {127,0,0,1}"
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "LANG": "C.UTF-8",
            "ERL_EPMD_PORT": str(mapped),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_ZFLAGS": "-start_epmd false",
            "ERL_CRASH_DUMP": os.devnull,
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
            "RABBITMQ_NODENAME": f"wbe-{os.getpid()}@localhost",
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(self.data),
            "RABBITMQ_LOG_BASE": str(self.data),
            "RABBITMQ_PID_FILE": str(self.data / "pid"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(self.data / "config"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(self.folder / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            # One scheduler needs less memory and less of the CPU time of the tested processes.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"+S 1:1 +SDio 4 +A 4 {near}",
            # The script becomes the server instead of its parent.
            "detached": "yes",
        }

    def do(self, word: str) -> dict[str, Any]:
        if word not in ("alarm", "calm"):
            return super().do(word)
        limit = "0" if word == "alarm" else "0.4"
        tool = Path(self.program).with_name("rabbitmqctl")
        node = self.environment["RABBITMQ_NODENAME"]
        self.call([str(tool), "--node", node, "set_vm_memory_high_watermark", limit])
        return self.pid()

    def more(self) -> dict[str, Any]:
        return {"pages": self.pages}

    def version(self) -> str:
        text = self.log.read_text(errors="replace")
        match = re.search(r"Starting RabbitMQ (\S+)", text)
        return match[1] if match else "?"

    def stop(self) -> None:
        super().stop()
        if self.mapper is not None:
            end(self.mapper, signal.SIGKILL)


class Zookeeper(Keeper):
    """A standalone server with its data in its folder."""

    users = ("zookeeper", "nobody")
    ready = "PrepRequestProcessor (sid:0) started"
    taken = "Address already in use"

    def make(self) -> None:
        self.make_data()

    def command(self) -> list[str]:
        settings = {
            "tickTime": 500,
            "minSessionTimeout": 1000,
            "dataDir": self.data,
            "clientPortAddress": "127.0.0.1",
            "clientPort": self.port,
            "admin.enableServer": "false",
            "maxClientCnxns": 0,
            "forceSync": "no",
            **self.settings,
        }
        lines = "".join(f"{key}={value}\n" for key, value in settings.items())
        jars = ":".join(f"/usr/share/java/{name}.jar" for name in ("zookeeper", "slf4j-simple"))
        # Options for little memory and a fast start.
        virtual = ["-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        return [self.program, *virtual, "-cp", jars, main, str(self.write("zoo.cfg", lines))]

    def version(self) -> str:
        text = self.log.read_text(errors="replace")
        match = re.search(r"zookeeper.version=(\d+\.\d+\.\d+)", text)
        return match[1] if match else "?"


class Etcd(Keeper):
    """A cluster of one member. Settings are its options."""

    users = ("etcd", "nobody")
    ready = "ready to serve client requests"

    def make(self) -> None:
        self.make_data()

    def command(self) -> list[str]:
        here, peers = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{free_port()}"
        settings = {
            "data-dir": self.data,
            "listen-client-urls": here,
            "advertise-client-urls": here,
            "listen-peer-urls": peers,
            "initial-advertise-peer-urls": peers,
            "initial-cluster": f"default={peers}",
            **self.settings,
        }
        return [self.program, *(f"--{key}={value}" for key, value in settings.items())]


KINDS: Mapping[str, type[Keeper]] = {
    "postgresql": Postgresql,
    "pgbouncer": Pgbouncer,
    "mysql": Mysql,
    "redis": Redis,
    "rabbitmq": Rabbitmq,
    "zookeeper": Zookeeper,
    "etcd": Etcd,
}


def _account(name: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None


def free_port() -> int:
    for port in random.SystemRandom().sample(PORTS, 100):
        with socket.socket() as connection, contextlib.suppress(OSError):
            connection.bind(("127.0.0.1", port))
            return port
    raise NoServer("there is no free port")


def end(process: subprocess.Popen[bytes], number: int) -> None:
    if process.poll() is None:
        process.send_signal(number)
        if number != signal.SIGKILL:
            process.send_signal(signal.SIGCONT)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
