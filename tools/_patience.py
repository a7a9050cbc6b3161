"""Commands with a time limit, which show where they hang.

The module uses only the standard library.
"""

import os
import signal
import subprocess
import time

import _bootstrap

#: Maximum time in seconds for a process to print its stacks.
STACK_SECONDS = 5


def call(command, limit):
    """Run a command and return its exit code, or 1 if it does not end within `limit` seconds.

    After the limit, the function lists all processes of the command with their states, lets those
    that support it (pytest does) print the stacks of their threads to the standard error, and kills
    all.
    """
    process = subprocess.Popen(command)
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        _bootstrap.say(f"not over after {limit} s: {' '.join(command)}")
        family = _descendants(process.pid)  # collected now, because orphans lose their parents
        _show(process, family)
        _kill(family)
        return 1
    except KeyboardInterrupt:
        process.wait()  # the command received the interrupt too
        raise
    finally:
        end(process)


def end(process):
    """Kill a running process and its descendants."""
    if process.poll() is None:
        _kill(_descendants(process.pid))
        process.wait()


def _show(process, family):
    for pid, _, state, words in family:
        _bootstrap.say(f"  {pid} {state} {words}")
    # The workers of pytest-xdist first, then pytest.
    for pid, parent, _, _ in reversed(family):
        if process.pid in (pid, parent):
            _signal(pid, signal.SIGABRT)
            _signal(pid, signal.SIGCONT)
            _await_end(pid)


def _await_end(pid):
    """Wait for the process, so that outputs do not overlap."""
    late = time.monotonic() + STACK_SECONDS
    while time.monotonic() < late and any(state != "Z" for _, _, state, _ in _descendants(pid)[:1]):
        time.sleep(0.02)


def _kill(family):
    for pid, *_ in reversed(family):
        _signal(pid, signal.SIGKILL)


def _descendants(first):
    """Return a process and its descendants: (pid, parent, state, command), parents first."""
    children = {}
    rows = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                state, parent = file.read().rpartition(")")[2].split()[:2]
            with open(f"/proc/{name}/cmdline", encoding="utf-8", errors="replace") as file:
                words = file.read().replace("\0", " ").strip()
        except OSError:
            continue  # the process has ended
        children.setdefault(int(parent), []).append(int(name))
        rows[int(name)] = int(parent), state, words[:200]
    family, following = [], [first]
    for pid in following:
        if pid in rows:
            family.append((pid, *rows[pid]))
            following += children.get(pid, [])
    return family


def _signal(pid, number):
    try:
        os.kill(pid, number)
    except OSError:
        pass  # the process has ended
