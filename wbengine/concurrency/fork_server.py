"""Imported by the process that children of pools are forked from, and by it alone.

SIGTERM may go to a whole group of processes: then the parent decides when its children end, and
without this one they would count as dead.  It ends by itself when the parent is gone.

Python looks into the current folder first here, whatever the parent does; children look where the
parent does.
"""

import signal
import sys

if sys.path[0] == "":
    sys.path.append(sys.path.pop(0))

signal.signal(signal.SIGTERM, signal.SIG_IGN)
