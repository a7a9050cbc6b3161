"""Virtual environment of the scripts in this folder, created on first use.

The module uses only the standard library and is valid for Python 3.6, so that an interpreter that
is too old still prints a clear message.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
VENV = os.path.join(ROOT, ".venv")
STAMP = os.path.join(VENV, "wbengine-installed.json")
OLDEST = (3, 11)
#: Files that pip reads. A change of any of them requires a new installation.
INPUTS = ("pyproject.toml", "setup.cfg", "setup.py", "tools/_requirements.txt")
#: If all these extras are installed, the releases are those of `_requirements.txt`, verified by
#: hashes (`tools/supply pin` writes the file). Otherwise setup.cfg defines them.
PINNED = {"dev", "docs", "test"}


def ensure_streams():
    """Connect closed standard streams (`>&-`) to the null device, before any file is opened.

    Otherwise the next file that the process opens would replace the stream.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


def ensure_venv(extras):
    """Install this checkout and its `extras` in `.venv` and return the path of its Python.

    A call takes a few milliseconds if nothing has changed. Concurrent calls wait for each other. If
    the installation fails, the process prints one message and ends with exit code 1.
    """
    lock = os.open(ROOT, os.O_RDONLY)  # a lock on the folder leaves no file behind
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say("waiting for another run that prepares .venv")
            fcntl.flock(lock, fcntl.LOCK_EX)
        return _ensure(sorted(set(extras)))
    finally:
        os.close(lock)


def ensure_peer(name, *requirements):
    """Install the packages of one tool in a separate environment and return the path of its Python.

    If they are already installed, the call takes no time. If the installation fails, the function
    prints the reason and returns None.
    """
    requirement = " ".join(requirements)
    place = os.path.join(VENV, "peers", name)
    python = os.path.join(place, "bin", "python")
    stamp = os.path.join(place, "installed")
    try:
        with open(stamp) as file:
            if file.read() == requirement:
                return python
    except OSError:
        pass
    say(f"installing {requirement} into .venv/peers/{name}")
    problem = _run([sys.executable, "-m", "venv", "--clear", place])
    if problem is None:
        command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        problem = _run([*command, "--no-input", *requirements])
    if problem is not None:
        say(f"{name} could not be installed\n{problem}")
        return None
    with open(stamp, "w") as file:
        file.write(requirement)
    return python


def say(text):
    """Print a line about the progress, separate from the output of the commands."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def fail(text):
    say("error: " + text)
    sys.exit(1)


def _ensure(extras):
    python = os.path.join(VENV, "bin", "python")
    installed = _read_stamp()
    if os.path.exists(python) and installed is not None and set(extras) <= set(installed):
        return python
    if not _works(python):
        _make(python)
    all_extras = sorted(set(extras) | set(installed or ()))
    target = f".[{','.join(all_extras)}]" if all_extras else "."
    say(f"installing {target} into .venv")
    _pip(python, target, pinned=set(all_extras) >= PINNED)
    with open(STAMP, "w") as file:
        json.dump({"digest": _digest(), "extras": all_extras}, file)
    return python


def _read_stamp():
    """Return the extras that are installed for the current state of the files, or None."""
    try:
        with open(STAMP) as file:
            stamp = json.load(file)
        return stamp["extras"] if stamp["digest"] == _digest() else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _digest():
    digest = hashlib.sha256(os.fsencode(ROOT))  # an editable installation depends on its path
    for name in INPUTS:
        path = os.path.join(ROOT, name)
        if os.path.exists(path):
            with open(path, "rb") as file:
                digest.update(name.encode() + b"\0" + file.read() + b"\0")
    return digest.hexdigest()


def _works(python):
    """Return whether `python` runs and is not too old."""
    check = f"import sys; sys.exit(sys.version_info < {OLDEST!r})"
    try:
        return subprocess.call([python, "-c", check], stderr=subprocess.DEVNULL) == 0
    except OSError:
        return False


def _find_python():
    if sys.version_info >= OLDEST:
        return sys.executable
    for minor in range(13, OLDEST[1] - 1, -1):
        python = shutil.which(f"python3.{minor}")
        if python and _works(python):
            return python
    needed, current = ".".join(map(str, OLDEST)), sys.version.split()[0]
    return fail(f"wbengine needs Python {needed} or newer; this is {current}, PATH has none")


def _make(python):
    base = _find_python()
    say("making .venv with " + base)
    clear = ["--clear"] if os.path.lexists(VENV) else []
    result = _run([base, "-m", "venv", *clear, VENV])
    if result is not None:
        hint = "" if "ensurepip" not in result else "\n(on Debian: apt-get install python3-venv)"
        fail("cannot make .venv\n" + result + hint)


def _pip(python, target, pinned):
    if _run([python, "-m", "pip", "--version"]) is not None:
        _run([python, "-m", "ensurepip"])
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command.append("--no-input")
    if os.environ.get("CI"):  # an environment is used only once: compile only imported modules
        command.append("--no-compile")
    itself = ["--editable", target]
    if pinned and (_install_with_uv(python, command) or _install_pinned(command)):
        itself = ["--no-deps", "--no-build-isolation", "--editable", "."]
    result = _run([*command, *itself])
    if result is not None:
        fail("pip could not install what is needed\n" + result)


def _install_with_uv(python, pip):
    """Install the pinned releases with uv, which is five times as fast as pip.

    Return whether that succeeded. It does not where uv cannot reach an index, because it does not
    read the settings of pip. Then pip installs the releases, or prints the reason.

    :param pip: the command of pip that installs uv.
    """
    with open(os.path.join(ROOT, INPUTS[-1])) as file:
        pin = re.search(r"(?m)^uv==.+\n(?: +--hash=.+\n)+", file.read())
    if pin is None:
        return False
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirement:
        requirement.write(pin.group())
        requirement.flush()
        problem = _run([*pip, "--require-hashes", "--requirement", requirement.name])
    command = [python, "-m", "uv", "pip", "install", "--quiet", "--python", python]
    command += ["--require-hashes", "--requirement", INPUTS[-1]]
    return problem is None and _run(command) is None


def _install_pinned(command):
    """Install the pinned releases and return whether that succeeded.

    If an index does not have a release, a run in CI ends. For developers, the function prints a
    line and returns False, so that setup.cfg defines the releases. Files with a different hash are
    always rejected.
    """
    result = _run([*command, "--require-hashes", "--requirement", INPUTS[-1]])
    if result is None:
        return True
    if os.environ.get("CI") or "HASHES" in result:
        fail("pip could not install what is pinned in " + INPUTS[-1] + "\n" + result)
    reason = result.splitlines()[-1]
    say("not as pinned, but as setup.cfg asks for: " + reason)
    return False


def _run(command):
    """Run a command and return None, or its output if it failed."""
    environment = dict(os.environ, PIP_ROOT_USER_ACTION="ignore", PIP_USER="0")
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
        errors="replace",  # paths can contain other encodings
    )
    output = process.communicate()[0]
    return output.strip() if process.returncode else None
