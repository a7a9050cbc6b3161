"""Imported only by the process from which children of pools are forked.

SIGTERM may be sent to a whole process group. The parent decides when its children end; if the fork
server ended, they would count as dead. It ends by itself when the parent does.

In this process, Python searches the current folder first, whatever the parent does; children search
the path of the parent.
"""

import signal
import sys

if sys.path[0] == "":
    sys.path.append(sys.path.pop(0))

signal.signal(signal.SIGTERM, signal.SIG_IGN)
