"""Command lines of the scripts in this folder: wrong usage is told in one line."""

import argparse
import os
import sys

import _bootstrap

HIDDEN = argparse.SUPPRESS


class Parser(argparse.ArgumentParser):
    def error(self, message):
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


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
