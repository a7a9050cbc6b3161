"""Servers, processes, tasks and doubles that tests of several folders share."""
