"""The databases, brokers and other programs of the tests: where they are and how to install them.

The module uses only the standard library and is valid for Python 3.6, because it runs before
`.venv` exists.
"""

import glob
import os
import shutil
import subprocess

#: Kind -> display name and Debian packages, of which the first known one is installed.
SERVERS = {
    "postgresql": ("PostgreSQL", ("postgresql",)),
    # The core package contains only the programs, without a service.
    "mysql": ("MariaDB", ("mariadb-server-core", "mariadb-server")),
    "pgbouncer": ("PgBouncer", ("pgbouncer",)),
    "redis": ("Redis", ("redis-server",)),
    "rabbitmq": ("RabbitMQ", ("rabbitmq-server",)),
    # Only the libraries, without a service; they depend on a Java.
    "zookeeper": ("ZooKeeper", ("zookeeper",)),
    "etcd": ("etcd", ("etcd-server", "etcd")),
    "browser": ("Chromium", ("chromium",)),
    "nginx": ("nginx", ("nginx-light", "nginx")),
    "strace": ("strace", ("strace",)),
    "graphviz": ("Graphviz", ("graphviz",)),
    "prometheus": ("Prometheus", ("prometheus",)),
}
PROGRAMS = {
    "mysql": "mariadbd",
    "pgbouncer": "pgbouncer",
    "redis": "redis-server",
    "rabbitmq": "rabbitmq-server",
    "zookeeper": "java",
    "etcd": "etcd",
    "browser": "chromium",
    "nginx": "nginx",
    "strace": "strace",
    "graphviz": "dot",
    "prometheus": "prometheus",
}
#: Archive that the Java of ZooKeeper runs.
ZOOKEEPER_JAR = "/usr/share/java/zookeeper.jar"
#: A program with this path prevents packages from starting their services.
POLICY_PATH = "/usr/sbin/policy-rc.d"


def find(kind):
    """Return the path of a server's program, or None if a required program is missing."""
    if kind == "postgresql":
        programs = glob.glob("/usr/lib/postgresql/*/bin/postgres")
        newest = max(programs, key=_version) if programs else shutil.which("postgres")
        beside = newest and os.path.join(os.path.dirname(newest), "initdb")
        return newest if beside and os.path.exists(beside) else None
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    if kind == "rabbitmq":
        if not (shutil.which("erl") and shutil.which("epmd")):
            return None
        # Debian's program in /usr/sbin changes the user first.
        path = os.pathsep.join(["/usr/lib/rabbitmq/bin", path])
    if kind == "zookeeper" and not os.path.exists(ZOOKEEPER_JAR):
        return None
    return shutil.which(PROGRAMS[kind], path=path)


def _version(path):
    return [int(part) for part in path.split("/")[4].split(".") if part.isdigit()]


def missing():
    """Return the kinds of servers that are not installed."""
    return [kind for kind in SERVERS if find(kind) is None]


def reason(kinds):
    """Return a message that names the missing programs and how to install them."""
    names = " and ".join(SERVERS[kind][0] for kind in kinds)
    packages = " ".join(SERVERS[kind][1][-1] for kind in kinds)
    return f"{names} not found; on Debian, as root: apt-get install {packages}"


def ensure(say):
    """Install missing programs as root on Debian, otherwise report them. Never end the process.

    If nothing is missing, the call takes no time.
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
    """Return None, or the error message."""
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive", LC_ALL="C")
    quiet = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=120"]
    problem = _run([*quiet, "update"], environment)
    packages = [_known_package(SERVERS[kind][1], environment) for kind in kinds]
    ours = _forbid_services()
    try:
        install = [*quiet, "install", "-y", "--no-install-recommends", *packages]
        failed = _run(install, environment)
    finally:
        if ours:
            os.unlink(POLICY_PATH)
    if failed:
        return "\n".join(filter(None, [problem, failed]))
    still = missing()
    return reason(still) if still else None


def _known_package(packages, environment):
    for package in packages:
        result = subprocess.run(
            ["apt-cache", "show", package],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        if result.returncode == 0:
            return package
    return packages[-1]


def _forbid_services():
    """Create the policy and return whether it was created. An existing policy is kept."""
    try:
        number = os.open(POLICY_PATH, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o755)
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
