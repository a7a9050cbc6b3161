"""Permits: the right to have a limited task, or flow, under way now (see `fleet_limits`).

`accounts` is who has how many, and who gets the next; `stores` keep accounts where all engines find
them; the `renewer` of a process asks for permits, renews them, and gives them back.
"""
