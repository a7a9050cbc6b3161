"""`python -m wbengine`: the command `wbengine`."""

from __future__ import annotations

import sys

__all__ = ["main"]

_INTERRUPTED = 130

if __name__ == "__main__":  # Before any other import.
    from wbengine import _import_path

    _import_path.put_current_folder_last()


def main() -> int:
    try:
        from wbengine.cli import collector

        collector.take_over()
        with collector.loading():
            from wbengine.cli import app

        return app.main()
    except KeyboardInterrupt:  # During the import.
        sys.stderr.write("wbengine: error: interrupted\n")
        return _INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
