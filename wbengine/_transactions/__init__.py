"""Transactions of tasks in databases of the user: `Task.transaction`."""
