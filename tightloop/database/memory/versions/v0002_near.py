"""PostgreSQL's indexes of vectors: one has one dimension. SQLite compares vectors one by one."""

from alembic import op

revision = "v0002_near"
down_revision = "v0001_memory"
branch_labels = None
depends_on = None

INDEXED = (384, 768, 1024, 1536)


def upgrade() -> None:
    """Make the indexes."""
    if op.get_bind().dialect.name != "postgresql":
        return
    for table in ("memory_failures", "memory_patterns"):
        for dimension in INDEXED:
            op.execute(
                f"CREATE INDEX ix_{table}_near_{dimension} ON {table} USING hnsw "
                f"((embedding::vector({dimension})) vector_cosine_ops) WHERE dimension = {dimension}"
            )
