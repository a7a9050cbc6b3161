"""How the tables came to be: alembic's environment, and one module for each revision."""
