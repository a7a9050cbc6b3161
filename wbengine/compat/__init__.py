"""Helpers that programs which were written for TaskFlow import; nothing in this package needs them.

They are imported as `wbengine.utils`, under TaskFlow's names.
"""
