"""Running a command that might never end, and showing where it hangs.

Standard library only.
"""

import os
import signal
import subprocess
import time

import _bootstrap

#: Seconds for each process that is told to show where it is.
TELLING = 5


def call(command, limit):
    """The exit code of a command, or 1 when it has not ended after `limit` seconds.

    Then all processes that came of it are listed, with their states; those that can (pytest can)
    show what their threads do, on the standard error; and all are killed.
    """
    process = subprocess.Popen(command)
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        _bootstrap.say(f"not over after {limit} s: {' '.join(command)}")
        family = _family(process.pid)  # by and by they lose their parents
        _show(process, family)
        _kill(family)
        return 1
    except KeyboardInterrupt:
        process.wait()  # it was interrupted as well
        raise
    finally:
        end(process)


def end(process):
    """Kill a process that has not ended, and all that came of it."""
    if process.poll() is None:
        _kill(_family(process.pid))
        process.wait()


def _show(process, family):
    for pid, _, state, words in family:
        _bootstrap.say(f"  {pid} {state} {words}")
    # pytest, after the processes that it shares its tests with.
    for pid, parent, _, _ in reversed(family):
        if process.pid in (pid, parent):
            _signal(pid, signal.SIGABRT)
            _signal(pid, signal.SIGCONT)
            _await_end(pid)


def _await_end(pid):
    """One after the other, so that each can be read."""
    late = time.monotonic() + TELLING
    while time.monotonic() < late and any(state != "Z" for _, _, state, _ in _family(pid)[:1]):
        time.sleep(0.02)


def _kill(family):
    for pid, *_ in reversed(family):
        _signal(pid, signal.SIGKILL)


def _family(first):
    """A process and all that came of it: (pid, parent, state, command), parents first."""
    children = {}
    told = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                state, parent = file.read().rpartition(")")[2].split()[:2]
            with open(f"/proc/{name}/cmdline", encoding="utf-8", errors="replace") as file:
                words = file.read().replace("\0", " ").strip()
        except OSError:
            continue  # it ended meanwhile
        children.setdefault(int(parent), []).append(int(name))
        told[int(name)] = int(parent), state, words[:200]
    found, following = [], [first]
    for pid in following:
        if pid in told:
            found.append((pid, *told[pid]))
            following += children.get(pid, [])
    return found


def _signal(pid, number):
    try:
        os.kill(pid, number)
    except OSError:
        pass  # it ended meanwhile
