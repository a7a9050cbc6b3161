"""The databases, brokers and other programs that tests want: where they are, how to get them.

Standard library only, and readable by Python 3.6, as what runs before there is a `.venv`.
"""

import glob
import os
import shutil
import subprocess

#: What to call them, and the Debian packages to install, the first of which that is known there.
SERVERS = {
    "postgresql": ("PostgreSQL", ("postgresql",)),
    # The core package is the programs alone, without a service.
    "mysql": ("MariaDB", ("mariadb-server-core", "mariadb-server")),
    "redis": ("Redis", ("redis-server",)),
    "rabbitmq": ("RabbitMQ", ("rabbitmq-server",)),
    # The libraries alone, without a service; they bring a Java along.
    "zookeeper": ("ZooKeeper", ("zookeeper",)),
    "etcd": ("etcd", ("etcd-server", "etcd")),
    "browser": ("Chromium", ("chromium",)),
    "strace": ("strace", ("strace",)),
    "graphviz": ("Graphviz", ("graphviz",)),
}
PROGRAMS = {
    "mysql": "mariadbd",
    "redis": "redis-server",
    "rabbitmq": "rabbitmq-server",
    "zookeeper": "java",
    "etcd": "etcd",
    "browser": "chromium",
    "strace": "strace",
    "graphviz": "dot",
}
#: What the Java of ZooKeeper is to run.
ZOOKEEPER = "/usr/share/java/zookeeper.jar"
#: Services of the packages are not to start: they are asked for by this name.
POLICY = "/usr/sbin/policy-rc.d"


def find(kind):
    """The program of a server, with its others beside it; None where there is none."""
    if kind == "postgresql":
        found = glob.glob("/usr/lib/postgresql/*/bin/postgres")
        newest = max(found, key=_version) if found else shutil.which("postgres")
        beside = newest and os.path.join(os.path.dirname(newest), "initdb")
        return newest if beside and os.path.exists(beside) else None
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    if kind == "rabbitmq":
        if not (shutil.which("erl") and shutil.which("epmd")):
            return None
        # Debian's in /usr/sbin changes the user first.
        path = os.pathsep.join(["/usr/lib/rabbitmq/bin", path])
    if kind == "zookeeper" and not os.path.exists(ZOOKEEPER):
        return None
    return shutil.which(PROGRAMS[kind], path=path)


def _version(path):
    return [int(part) for part in path.split("/")[4].split(".") if part.isdigit()]


def missing():
    """The kinds of servers that are not there."""
    return [kind for kind in SERVERS if find(kind) is None]


def reason(kinds):
    """What to tell who wants to run the tests on them."""
    names = " and ".join(SERVERS[kind][0] for kind in kinds)
    packages = " ".join(SERVERS[kind][1][-1] for kind in kinds)
    return f"{names} not found; on Debian, as root: apt-get install {packages}"


def ensure(say):
    """Install what is missing, as root on a Debian; else say so.  Never ends the process.

    Costs no time when they are there.
    """
    kinds = missing()
    if not kinds:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        say(reason(kinds))
        return
    names = " and ".join(SERVERS[kind][0] for kind in kinds)
    say(f"installing {names} for the tests (apt-get, once)")
    problem = _install(kinds)
    if problem:
        say(f"error: {names} cannot be installed: {problem}")


def _install(kinds):
    """None, or what went wrong."""
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive", LC_ALL="C")
    quiet = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=120"]
    problem = _run([*quiet, "update"], environment)
    packages = [_known(SERVERS[kind][1], environment) for kind in kinds]
    ours = _forbid_services()
    try:
        install = [*quiet, "install", "-y", "--no-install-recommends", *packages]
        failed = _run(install, environment)
    finally:
        if ours:
            os.unlink(POLICY)
    if failed:
        return "\n".join(filter(None, [problem, failed]))
    still = missing()
    return reason(still) if still else None


def _known(packages, environment):
    for package in packages:
        told = subprocess.run(
            ["apt-cache", "show", package],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        if told.returncode == 0:
            return package
    return packages[-1]


def _forbid_services():
    """Whether it was done: somebody's own policy stays."""
    try:
        number = os.open(POLICY, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o755)
    except OSError:
        return False
    with os.fdopen(number, "w") as file:
        file.write("#!/bin/sh\nexit 101\n")
    return True


def _run(command, environment):
    process = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,  # noqa: UP021  (the newer name is unknown to Python 3.6)
        errors="replace",
    )
    return "\n".join(process.stdout.strip().splitlines()[-10:]) if process.returncode else None
