"""The first tables: projects, workflows, checkpoints, steps, the trail and what was spent."""

from uuid import uuid4

import sqlalchemy as sa
from alembic import op

revision = "v0001_ledger"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables."""
    _make_bookkeeping()
    _make_workflows()
    _make_steps()
    _make_records()


def _make_bookkeeping() -> None:
    op.create_table(
        "clock",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("tick", sa.BigInteger(), nullable=False),
        sa.Column("origin", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_clock")),
    )
    op.create_table(
        "spools",
        sa.Column("origin", sa.String(), nullable=False),
        sa.Column("changed", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("origin", name=op.f("pk_spools")),
    )
    op.create_table(
        "freed",
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("workflow_id", sa.String(), nullable=False),
        sa.Column("changed", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project", "workflow_id", name=op.f("pk_freed")),
    )
    op.create_index(op.f("ix_freed_changed"), "freed", ["changed"], unique=False)
    op.create_table(
        "projects",
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("name", sa.Text(), server_default="", nullable=False),
        sa.Column("workspace", sa.Text(), server_default="", nullable=False),
        sa.Column("host", sa.Text(), server_default="", nullable=False),
        sa.Column("changed", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project", name=op.f("pk_projects")),
    )
    op.create_index(op.f("ix_projects_changed"), "projects", ["changed"], unique=False)
    clock = sa.table("clock", sa.column("id"), sa.column("tick"), sa.column("origin"))
    op.bulk_insert(clock, [{"id": 1, "tick": 0, "origin": uuid4().hex}])


def _make_workflows() -> None:
    op.create_table(
        "workflows",
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("parent", sa.String(), server_default="", nullable=False),
        sa.Column("goal", sa.Text(), server_default="", nullable=False),
        sa.Column("executor", sa.Text(), server_default="", nullable=False),
        sa.Column("phase", sa.Text(), server_default="", nullable=False),
        sa.Column("iteration", sa.Integer(), nullable=False),
        sa.Column("checks", sa.Text(), server_default="", nullable=False),
        sa.Column("cost_usd", sa.Float(), nullable=False),
        sa.Column("run", sa.Integer(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("placed", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started", sa.DateTime(timezone=True), nullable=True),
        sa.Column("closed", sa.DateTime(timezone=True), nullable=True),
        sa.Column("waiting_since", sa.DateTime(timezone=True), nullable=True),
        sa.Column("questions", sa.Text(), server_default="", nullable=False),
        sa.Column("details", sa.Text(), server_default="", nullable=False),
        sa.Column("changed", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project", "id", name=op.f("pk_workflows")),
    )
    op.create_index(op.f("ix_workflows_changed"), "workflows", ["changed"], unique=False)
    op.create_index(op.f("ix_workflows_id"), "workflows", ["id"], unique=False)
    op.create_index(op.f("ix_workflows_parent"), "workflows", ["parent"], unique=False)
    op.create_index(op.f("ix_workflows_placed_id_project"), "workflows", ["placed", "id", "project"], unique=False)
    op.create_index(op.f("ix_workflows_project_placed_id"), "workflows", ["project", "placed", "id"], unique=False)
    op.create_index(
        op.f("ix_workflows_project_status_placed_id"), "workflows", ["project", "status", "placed", "id"], unique=False
    )
    op.create_index(
        op.f("ix_workflows_status_placed_id_project"), "workflows", ["status", "placed", "id", "project"], unique=False
    )
    op.create_index(
        op.f("ix_workflows_project_closed_waiting_since"),
        "workflows",
        ["project", "closed", "waiting_since"],
        unique=False,
    )
    op.create_index(op.f("ix_workflows_waiting_since"), "workflows", ["waiting_since"], unique=False)


def _make_steps() -> None:
    op.create_table(
        "steps",
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("plan_id", sa.String(), nullable=False),
        sa.Column("step", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("child_id", sa.String(), server_default="", nullable=False),
        sa.Column("needs", sa.Text(), server_default="", nullable=False),
        sa.Column("title", sa.Text(), server_default="", nullable=False),
        sa.Column("order", sa.Integer(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("changed", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project", "plan_id", "step", name=op.f("pk_steps")),
    )
    op.create_index(op.f("ix_steps_changed"), "steps", ["changed"], unique=False)
    op.create_index(op.f("ix_steps_child_id"), "steps", ["child_id"], unique=False)
    op.create_table(
        "days",
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("workflow_id", sa.String(), nullable=False),
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("cost_usd", sa.Float(), nullable=False),
        sa.Column("changed", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project", "workflow_id", "day", name=op.f("pk_days")),
    )
    op.create_index(op.f("ix_days_changed"), "days", ["changed"], unique=False)


def _make_records() -> None:
    op.create_table(
        "checkpoints",
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("workflow_id", sa.String(), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("record", sa.Text(), nullable=False),
        sa.Column("changed", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project", "workflow_id", "number", name=op.f("pk_checkpoints")),
        sa.UniqueConstraint("project", "workflow_id", "key", name=op.f("uq_checkpoints_project_workflow_id_key")),
    )
    op.create_index(op.f("ix_checkpoints_changed"), "checkpoints", ["changed"], unique=False)
    op.create_table(
        "events",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("workflow_id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("text", sa.Text(), server_default="", nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("changed", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_events")),
        sa.UniqueConstraint("project", "workflow_id", "key", name=op.f("uq_events_project_workflow_id_key")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_events_changed"), "events", ["changed"], unique=False)
    op.create_index(op.f("ix_events_project_kind_at"), "events", ["project", "kind", "at"], unique=False)
    op.create_index(op.f("ix_events_project_seq"), "events", ["project", "seq"], unique=False)
    op.create_index(
        op.f("ix_events_project_workflow_id_seq"), "events", ["project", "workflow_id", "seq"], unique=False
    )
    op.create_index(op.f("ix_events_workflow_id_seq"), "events", ["workflow_id", "seq"], unique=False)


def downgrade() -> None:
    """Remove the tables."""
    for name in ("events", "checkpoints", "days", "steps", "workflows", "projects", "freed", "spools", "clock"):
        op.drop_table(name)
