"""Helpers for programs written for TaskFlow; nothing else in this package needs them.

They are imported as `wbengine.utils`, under TaskFlow's names.
"""
