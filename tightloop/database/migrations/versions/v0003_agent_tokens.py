"""The episode that an agent's token is bound to."""

import sqlalchemy as sa
from alembic import op

revision = "v0003_agent_tokens"
down_revision = "v0002_tokens"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    op.add_column("tokens", sa.Column("episode", sa.String(), nullable=False, server_default=""))
