"""Command lines of the scripts in this folder: wrong usage is told in one line."""

import argparse
import sys


class Parser(argparse.ArgumentParser):
    def error(self, message):
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def positive(text):
    """A whole number above 0."""
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return number


def numbers(text):
    """Some whole numbers, rising, with commas between them."""
    found = [positive(part) for part in text.split(",")]
    if found != sorted(set(found)):
        raise argparse.ArgumentTypeError(f"{text!r} does not rise")
    return found
