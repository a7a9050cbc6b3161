"""A virtual environment for the scripts in this folder, made when it is first needed.

Standard library only, and readable by Python 3.6: an interpreter that is too old must get as far
as the message that says so.
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
VENV = os.path.join(ROOT, ".venv")
STAMP = os.path.join(VENV, "wbengine-installed.json")
OLDEST = (3, 10)
#: What pip reads: a change of any of these means that it must be asked again.
INPUTS = ("pyproject.toml", "setup.cfg", "setup.py", "tools/_requirements.txt")
#: With all of these extras, what is installed are the releases of that file, checked by hashes
#: (`tools/supply pin` writes it); with some, what setup.cfg asks for.
PINNED = {"dev", "docs", "test"}


def ensure_streams():
    """Let standard streams that are closed (`>&-`) lead nowhere: else another file takes the place.

    The first thing that a script does.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


def ensure_venv(extras):
    """Have this checkout and its `extras` installed in `.venv`; return the path of its Python.

    Costs a few milliseconds when there is nothing to do.  Concurrent runs wait for each other.
    Ends the process with exit code 1 and one clear message when it cannot be done.
    """
    lock = os.open(ROOT, os.O_RDONLY)  # the folder itself: nothing is left behind
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
    """Have what one tool needs in an environment of its own; the path of its Python, or None.

    Costs nothing when it is there; None, after a line that says why, when it cannot be had.
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
    """One line about what is being done, apart from the output of what is run."""
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
    wanted = sorted(set(extras) | set(installed or ()))
    target = f".[{','.join(wanted)}]" if wanted else "."
    say(f"installing {target} into .venv")
    _pip(python, target, pinned=set(wanted) >= PINNED)
    with open(STAMP, "w") as file:
        json.dump({"digest": _digest(), "extras": wanted}, file)
    return python


def _read_stamp():
    """The extras that are installed for the files as they are now, or None."""
    try:
        with open(STAMP) as file:
            stamp = json.load(file)
        return stamp["extras"] if stamp["digest"] == _digest() else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _digest():
    digest = hashlib.sha256(os.fsencode(ROOT))  # an editable install is bound to its place
    for name in INPUTS:
        path = os.path.join(ROOT, name)
        if os.path.exists(path):
            with open(path, "rb") as file:
                digest.update(name.encode() + b"\0" + file.read() + b"\0")
    return digest.hexdigest()


def _works(python):
    """Whether `python` runs, and is new enough."""
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
    needed, found = ".".join(map(str, OLDEST)), sys.version.split()[0]
    return fail(f"wbengine needs Python {needed} or newer; this is {found}, PATH has none")


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
    if os.environ.get("CI"):  # where it is used once: Python compiles what is imported, not all
        command.append("--no-compile")
    itself = ["--editable", target]
    if pinned and _install_pinned(command):
        itself = ["--no-deps", "--no-build-isolation", "--editable", "."]
    result = _run([*command, *itself])
    if result is not None:
        fail("pip could not install what is needed\n" + result)


def _install_pinned(command):
    """Whether the pinned releases are there now.

    An index that lacks some of them ends a run of CI; a developer gets what setup.cfg asks for, and
    a line that says so.  A file of another content than the one that was pinned is never taken.
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
    """Run quietly; None, or what it said when it failed."""
    environment = dict(os.environ, PIP_ROOT_USER_ACTION="ignore", PIP_USER="0")
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
        errors="replace",  # paths, where the locale is none
    )
    output = process.communicate()[0]
    return output.strip() if process.returncode else None
