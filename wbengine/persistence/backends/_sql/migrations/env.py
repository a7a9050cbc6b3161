"""The environment in which alembic runs the migrations on a given connection."""

from __future__ import annotations

from alembic import config, context

from wbengine.persistence.backends._sql import tables


def run(settings: config.Config) -> None:
    context.configure(
        connection=settings.attributes["connection"],
        target_metadata=tables.METADATA,
        version_table=tables.VERSION_TABLE,
    )
    with context.begin_transaction():
        context.run_migrations()


# The attribute exists only while alembic runs this file.
if hasattr(context, "config"):
    run(context.config)
