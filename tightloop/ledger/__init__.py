"""The ledger: the queryable projection of episodes, plans and loops, and the alerts about them.

Histories and workspaces are the truth.
"""

from tightloop.ledger.model import (
    FREED,
    Digest,
    EvidenceLine,
    InboxItem,
    ProjectLine,
    StepRow,
    TrailEvent,
    WorkflowFilter,
    WorkflowLine,
    WorkflowPage,
    WorkflowSnapshot,
)

__all__ = [
    "FREED",
    "Digest",
    "EvidenceLine",
    "InboxItem",
    "ProjectLine",
    "StepRow",
    "TrailEvent",
    "WorkflowFilter",
    "WorkflowLine",
    "WorkflowPage",
    "WorkflowSnapshot",
]
