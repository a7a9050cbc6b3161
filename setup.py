"""Build wbengine; setup.cfg contains the metadata."""

from setuptools import setup

setup()
