"""Setup of the fork server, the process that forks the children of pools.

A signal may be sent to a whole process group. The fork server ignores it: if the fork server ended,
its children would be reported as dead. It ends when the parent ends.

In the fork server, Python searches the current folder first. This module moves that entry to the
end. Children use the path of the parent.
"""

import signal
import sys

if sys.path[0] == "":
    sys.path.append(sys.path.pop(0))

from wbengine._concurrency import fork_signals

if "multiprocessing.forkserver" in " ".join(sys.orig_argv):  # Other processes only import this.
    for number in fork_signals.NUMBERS:
        signal.signal(number, signal.SIG_IGN)
