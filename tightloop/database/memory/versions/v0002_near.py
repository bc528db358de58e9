"""Tables of `schema.py`. The first release freezes them here; each later change gets its own migration.

PostgreSQL gets a vector index for each common dimension; SQLite scans vectors.
"""

import sqlalchemy as sa
from alembic import op

from tightloop.database.memory.schema import INDEXED, TABLES
from tightloop.errors import WorkspaceError

revision = "v0002_near"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables and the indexes."""
    connection = op.get_bind()
    is_postgresql = connection.dialect.name == "postgresql"
    if is_postgresql:
        query = sa.text("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'")
        if connection.execute(query).scalar() is None:
            raise WorkspaceError(
                "the PostgreSQL server at database.url does not have the vector extension, which memory requires. "
                "Install pgvector on that server, or set memory.store: local to store memory on each host"
            )
        op.execute("CREATE EXTENSION IF NOT EXISTS vector")
    TABLES.create_all(connection, checkfirst=False)
    for table in ("memory_failures", "memory_patterns") if is_postgresql else ():
        # HNSW needs a fixed dimension, but the column holds several: one partial index each.
        for dimension in sorted(INDEXED):
            op.execute(
                f"CREATE INDEX ix_{table}_near_{dimension} ON {table} USING hnsw "
                f"((embedding::vector({dimension})) vector_cosine_ops) WHERE dimension = {dimension}"
            )
