"""Integrations with frameworks, as plugins for their own interfaces."""
