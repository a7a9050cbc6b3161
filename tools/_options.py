"""Command lines of the scripts in this folder: wrong usage is told in one line, and what is right
is done by the Python of `.venv`.
"""

import argparse
import json
import os
import pathlib
import shutil
import sys
import tempfile

import _bootstrap

HIDDEN = argparse.SUPPRESS

sys.path.insert(1, _bootstrap.ROOT)


class Parser(argparse.ArgumentParser):
    def error(self, message):
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def tool(name, doc):
    """The command line of a script, which says `doc` of itself."""
    form = argparse.RawDescriptionHelpFormatter
    made = Parser(prog=f"tools/{name}", description=doc, formatter_class=form)
    made.add_argument("--here", action="store_true", help="use the Python that runs this")
    return made


def enter(options, *extras):
    """Go on with the Python of `.venv`, in which these extras are, unless that is not wanted."""
    if not options.here:
        python = _bootstrap.ensure_venv(extras)
        os.execv(python, [python, sys.argv[0], "--here", *sys.argv[1:]])


def in_folder(name, keep, run):
    """What went wrong in `run(folder)`; the folder is gone if that is 0, and not to `keep`."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix=f"wbengine-{name}-"))
    problems = 1
    try:
        problems = run(folder)
    finally:
        if keep or problems:
            print(f"see {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return problems


def write(path, figures):
    """Write figures as JSON into a file, if one is named."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def whole(text):
    """A whole number, perhaps 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def positive(text):
    """A whole number above 0."""
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return number


def sizes(text):
    """Whole numbers, rising, with commas between them."""
    found = [positive(part) for part in text.split(",")]
    if found != sorted(set(found)):
        raise argparse.ArgumentTypeError(f"{text!r}: each must be more than the one before")
    return found


def some(names):
    """Some of these names, with commas between them."""

    def read(text):
        found = list(dict.fromkeys(text.split(",")))
        for name in found:
            if name not in names:
                raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(names)}")
        return found

    return read


def run(main):
    """End with the exit code of `main()`; without a traceback when its reader or its user left."""
    _bootstrap.ensure_streams()
    try:
        code = main()
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:  # as in `tools/bench | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = 141
    sys.exit(code)
