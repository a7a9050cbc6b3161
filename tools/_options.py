"""Command lines of the scripts in this folder.

Usage errors are reported in one line. Valid commands continue with the Python of `.venv`.
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


def parser_of(name, doc):
    """Return the parser of a script with the description `doc`."""
    form = argparse.RawDescriptionHelpFormatter
    parser = Parser(prog=f"tools/{name}", description=doc, formatter_class=form)
    parser.add_argument("--here", action="store_true", help="use the Python that runs this")
    return parser


def continue_in_venv(options, *extras):
    """Continue with the Python of `.venv` that has these extras, unless `--here` is set."""
    if not options.here:
        python = _bootstrap.ensure_venv(extras)
        os.execv(python, [python, sys.argv[0], "--here", *sys.argv[1:]])


def in_folder(name, keep, run):
    """Call `run(folder)` and return its number of problems.

    The folder is deleted if there are no problems and `keep` is not set.
    """
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
    """Write figures as JSON to a file, unless `path` is None."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def natural(text):
    """Parse a whole number, which can be 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def positive(text):
    """Parse a whole number above 0."""
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return number


def sizes(text):
    """Parse ascending whole numbers, separated by commas."""
    numbers = [positive(part) for part in text.split(",")]
    if numbers != sorted(set(numbers)):
        raise argparse.ArgumentTypeError(f"{text!r}: each must be more than the one before")
    return numbers


def some(names):
    """Return a parser for some of these names, separated by commas."""

    def read(text):
        chosen = list(dict.fromkeys(text.split(",")))
        for name in chosen:
            if name not in names:
                raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(names)}")
        return chosen

    return read


def run(main):
    """End the process with the exit code of `main()`.

    If the user interrupts it or the reader of its output ends, no traceback is printed.
    """
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
