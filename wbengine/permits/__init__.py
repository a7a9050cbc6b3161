"""Limits of tasks and flows (`rate_limit`, `concurrency`), which hold for all engines together.

A permit is the right to have something limited under way now.  `limits` is what tasks and flows say
of themselves; an account (`accounts`) is who has how many permits of a limit, and who gets the
next; `stores` keep accounts where all engines find them; the `renewer` of a process asks for
permits, renews them, and gives them back; `tasks` has what waits for permits in one run.
"""
