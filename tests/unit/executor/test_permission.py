"""The rule that answers what an agent asks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightloop.executor.asking import READING, PermissionRequest, decide
from tightloop.executor.model import AgentMode, Grant
from tightloop.safety.rubric import Verdict

KINDS = (
    "read",
    "edit",
    "delete",
    "move",
    "search",
    "execute",
    "think",
    "fetch",
    "switch_mode",
    "other",
    "of the future",
)
requests = st.builds(
    PermissionRequest,
    kind=st.sampled_from(KINDS),
    title=st.text(max_size=20),
    command=st.text(max_size=20),
    paths=st.lists(st.text(max_size=8), max_size=3).map(tuple),
)
modes = st.sampled_from(AgentMode)
rules = st.sampled_from(Verdict)


@given(requests, modes, rules, st.booleans())
def test_the_answer_of_a_person_wins(request: PermissionRequest, mode: AgentMode, rule: Verdict, yes: bool) -> None:
    other = Grant(fingerprint="0" * 16, allowed=not yes)
    grants = (other, Grant(fingerprint=request.fingerprint, allowed=yes))
    answer = decide(request, mode=mode, rule=rule, grants=grants)
    assert answer is (Verdict.ALLOW if yes else Verdict.DENY)


@given(requests, rules)
def test_read_only_changes_nothing(request: PermissionRequest, rule: Verdict) -> None:
    answer = decide(request, mode=AgentMode.READ_ONLY, rule=rule)
    assert answer is (Verdict.ALLOW if request.kind in READING else Verdict.DENY)


@given(requests, rules)
def test_reading_is_never_asked_for(request: PermissionRequest, rule: Verdict) -> None:
    answer = decide(request, mode=AgentMode.WORKSPACE, rule=rule)
    assert answer is (Verdict.ALLOW if request.kind in READING else rule)


def test_the_same_wish_has_the_same_fingerprint_however_it_is_named() -> None:
    first = PermissionRequest(kind="execute", title="Clean up", command="rm -rf build", paths=("a", "b"))
    again = PermissionRequest(kind="execute", title="Tidy", command="rm -rf build", paths=("b", "a"))
    assert first.fingerprint == again.fingerprint


@pytest.mark.parametrize(
    "other",
    [
        PermissionRequest(kind="execute", title="Clean up", command="rm -rf /"),
        PermissionRequest(kind="delete", title="Clean up", command="rm -rf build"),
        PermissionRequest(kind="execute", title="Clean up", command="rm -rf build", paths=("/etc",)),
        PermissionRequest(kind="execute", title="rm", command="-rf build"),
    ],
)
def test_another_wish_has_another_fingerprint(other: PermissionRequest) -> None:
    assert other.fingerprint != PermissionRequest(kind="execute", title="Clean up", command="rm -rf build").fingerprint
