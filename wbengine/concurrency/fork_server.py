"""Imported by the process that children of pools are forked from, and by it alone.

SIGTERM may go to a whole group of processes: then the parent decides when its children end, and
without this one they would count as dead.  It ends by itself when the parent is gone.
"""

import signal

signal.signal(signal.SIGTERM, signal.SIG_IGN)
