"""Migrations of the tables: alembic's environment, and one module for each revision."""
