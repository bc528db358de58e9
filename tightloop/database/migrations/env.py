"""Alembic environment that runs migrations on the caller's connection; see `tightloop.database.engine`."""

from alembic import context

attributes = context.config.attributes
context.configure(
    connection=attributes["connection"],
    target_metadata=attributes["metadata"],
    version_table=attributes["table"],
    # SQLite alters a table by copying it.
    render_as_batch=True,
    # The caller owns the transaction.
    transactional_ddl=False,
)
context.run_migrations()
