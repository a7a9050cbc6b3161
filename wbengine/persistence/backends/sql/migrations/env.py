"""What alembic runs: the migrations, on the connection that it is given."""

from __future__ import annotations

from alembic import config, context

from wbengine.persistence.backends.sql import tables


def run(told: config.Config) -> None:
    context.configure(
        connection=told.attributes["connection"],
        target_metadata=tables.METADATA,
        version_table=tables.VERSION_TABLE,
    )
    with context.begin_transaction():
        context.run_migrations()


# It is there while alembic runs this file, and not when somebody imports it.
if hasattr(context, "config"):
    run(context.config)
