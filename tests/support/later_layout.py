"""A later release, whose layout of the SQL stores has more tables, columns and indexes."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from wbengine.persistence.backends._sql import backend, schema_revisions

#: Revision of the later release.
LATER = "9001"

_SCRIPT = f'''
import sqlalchemy as sa
from alembic import op

from wbengine._sql import dialects
from wbengine.persistence.backends._sql.migrations import migration_steps

revision = "{LATER}"
down_revision = "{schema_revisions.HEAD}"


def upgrade():
    key = sa.Column("atom_uuid", dialects.KEY, primary_key=True)
    table = sa.Table("wbe_later", sa.MetaData(), key, **dialects.TABLE)
    for table_name in ("wbe_logbooks", "wbe_flowdetails", "wbe_atomdetails", "wbe_jobs"):
        later = sa.Column("later", sa.BigInteger, server_default="7")
        migration_steps.add_column(table_name, later)
        migration_steps.add_column(table_name, sa.Column("later_text", dialects.TEXT))
    migration_steps.add_index("ix_later", "wbe_flowdetails", ["later", "id"])
    table.create(op.get_bind(), checkfirst=True)
'''


@contextlib.contextmanager
def later_release(folder: Path, oldest: str = schema_revisions.HEAD) -> Iterator[None]:
    """Make the code of this process a later release.

    :param folder: an existing folder for its migrations.
    :param oldest: the oldest revision whose releases can use its layout.
    """
    migrations = folder / "migrations"
    shutil.copytree(
        Path(schema_revisions.__file__).parent / "migrations", migrations, dirs_exist_ok=True
    )
    (migrations / "versions" / "later.py").write_text(_SCRIPT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema_revisions, "REVISIONS", {**schema_revisions.REVISIONS, LATER: oldest})
        patch.setattr(schema_revisions, "HEAD", LATER)
        patch.setattr(schema_revisions, "_MIGRATIONS", migrations)
        patch.setattr(backend.SQLBackend, "head", LATER)
        yield
