"""What an agent asks before it acts, and the pure rule that answers it."""

import hashlib
import json
from collections.abc import Iterable

from tightloop.executor.model import AgentMode, Grant
from tightloop.safety.verdict import Verdict
from tightloop.value import Value

READING = frozenset({"read", "search", "think"})


class PermissionRequest(Value):
    """What an agent wants to do."""

    kind: str
    """In the words of the Agent Client Protocol: `read`, `edit`, `delete`, `move`, `search`, `execute`, `think`,
    `fetch`, `switch_mode`, `other`."""
    title: str
    """One line for a person, such as `rm -rf build`."""
    command: str = ""
    paths: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> str:
        """Return an id that is the same when the agent asks for the same again."""
        text = json.dumps([self.kind, self.command or self.title, sorted(self.paths)])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def decide(request: PermissionRequest, *, mode: AgentMode, rule: Verdict, grants: Iterable[Grant] = ()) -> Verdict:
    """Return what is answered: a person's earlier answer wins, then the mode, then the rule.

    Reading is always allowed; `read_only` denies everything else.
    """
    # First: a person who was asked has decided, whatever the rule would say.
    for grant in grants:
        if grant.fingerprint == request.fingerprint:
            return Verdict.ALLOW if grant.allowed else Verdict.DENY
    if request.kind in READING:
        return Verdict.ALLOW
    if mode is AgentMode.READ_ONLY:
        return Verdict.DENY
    return rule
