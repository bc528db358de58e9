"""Runs migrations on the connection that the caller gives; see `tightloop.database.engine`."""

from alembic import context

given = context.config.attributes
context.configure(
    connection=given["connection"],
    target_metadata=given["metadata"],
    version_table=given["table"],
    # SQLite changes a table by copying it.
    render_as_batch=True,
    # The caller's transaction is the one that counts.
    transactional_ddl=False,
)
context.run_migrations()
