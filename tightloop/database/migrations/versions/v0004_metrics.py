"""Tables of `schema.py`. The first release freezes them here; each later change gets its own migration."""

from uuid import uuid4

from alembic import op

from tightloop.database.schema import METADATA, clock

revision = "v0004_metrics"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables."""
    METADATA.create_all(op.get_bind(), checkfirst=False)
    op.bulk_insert(clock, [{"id": 1, "tick": 0, "origin": uuid4().hex}])
