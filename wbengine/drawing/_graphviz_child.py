"""Runs Graphviz for `graphviz`, in a process of its own: it is C, and may crash or never return.

Run as a file, so that nothing of the package is loaded.  The graph is read from stdin, the picture
goes to stdout; both hold whatever the other side wrote, and nothing else is printed.
"""

import sys


def main() -> int:
    """Draw what is on stdin in the format that the command names."""
    try:
        import pygraphviz  # type: ignore[import-untyped,unused-ignore]
    except ImportError as error:
        sys.stderr.write(str(error))
        return 3
    text = sys.stdin.buffer.read().decode("utf-8")
    graph = pygraphviz.AGraph(string=text)
    sys.stdout.buffer.write(graph.draw(format=sys.argv[1], prog="dot"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
