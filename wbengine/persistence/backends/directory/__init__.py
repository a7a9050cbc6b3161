"""Books kept in a folder: a journal per flow, one append and one fsync for each turn.

What is where (names that are no plain words are replaced by their digest)::

    <path>/lock                  held while books are created, changed or destroyed
    <path>/books/<book>          the book's row, and which flows it has
    <path>/flows/<flow>/head     who runs it, how much of which files counts, what lists tell
    <path>/flows/<flow>/records.<n>   the flow, its atoms and their items, when it was folded last
    <path>/flows/<flow>/journal.<n>   the turns since
    <path>/flows/<flow>/outline  the structure of the flow, to be drawn
    <path>/wishes/<flow>         the command to the engine that runs the flow
    <path>/doing/                what is being created or destroyed, for whoever comes after a crash
    <path>/aside/                copies of damaged files; never deleted

Every file consists of lines, each with a checksum and the version of its format (`lines`).  The
folder may be shared by processes of one host, or of hosts that share a file system whose locks
work and whose clocks agree to within seconds.
"""

from wbengine.persistence.backends.directory.backend import DirectoryBackend
from wbengine.persistence.backends.directory.connection import DirectoryConnection

__all__ = ["DirectoryBackend", "DirectoryConnection"]
