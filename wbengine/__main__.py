"""`python -m wbengine`: the command `wbengine`."""

from __future__ import annotations

import sys

__all__ = ["main"]

_INTERRUPTED = 130

if __name__ == "__main__":  # Before any other import.
    from wbengine._imports import search_path

    search_path.put_current_folder_last()


def main() -> int:
    try:
        from wbengine._cli import collector

        collector.take_over()
        with collector.loading():
            from wbengine._cli import app

        return app.main()
    except KeyboardInterrupt:  # During the import.
        sys.stderr.write("wbengine: error: interrupted\n")
        return _INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
