"""Runs migrations on the connection that the caller gives; see `tightloop.database.upgrading`."""

from alembic import context

from tightloop.database.schema import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    # SQLite changes a table by copying it.
    render_as_batch=True,
    # The caller's transaction is the one that counts.
    transactional_ddl=False,
)
context.run_migrations()
