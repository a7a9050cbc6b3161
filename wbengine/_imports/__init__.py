"""Imports on first use, the search path of modules, and the installation of missing packages."""
