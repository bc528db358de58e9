"""Alembic environment; runs migrations on the caller's connection, see `tightloop.database.engine`."""

from alembic import context

given = context.config.attributes
context.configure(
    connection=given["connection"],
    target_metadata=given["metadata"],
    version_table=given["table"],
    # SQLite alters a table by copying it.
    render_as_batch=True,
    # The caller owns the transaction.
    transactional_ddl=False,
)
context.run_migrations()
