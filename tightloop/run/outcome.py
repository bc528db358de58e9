"""Outcomes of ended runs: their wording and exit codes.

Every interface takes the status and its qualifier from here. A success without a qualifier is a plain success: all
parts of the work were done, files changed, and a check that failed before passes now. This module does not import
pydantic, so that the command line can use it without loading any models.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

SUCCESSES = ("succeeded", "completed", "verified")
"""Statuses that mean success: an episode succeeds, a plan completes, a project's plan is verified."""
NAMES_SHOWN = 5
PLAIN, FAILED, NEEDS_PERSON, QUALIFIED = 0, 1, 3, 4
"""Exit codes of commands that wait for a run: plain success, failure, open question, success with a qualifier."""
DRY_RUN = "dry run"
NOT_PROVEN = "not proven"
NO_WORK = "no executor changed a file"
# Only these words may appear in search attributes, which Temporal stores as plain text.
_PARTS_LEFT = re.compile(r"\d+ of \d+ steps? ")
_LEVEL = re.compile(rf"(?:^|[;,] )(\d+ of \d+ steps? (?:skipped|failed|partly done)|{NOT_PROVEN}|{DRY_RUN})(?=[:;,]|$)")


class Facts(NamedTuple):
    """Facts about a successful run."""

    has_checks: bool = True
    """False if the run has no definition of done, so nothing was checked."""
    seen_to_fail: bool = True
    """True if at least one check failed before it passed, and not only at random."""
    flaky: Sequence[str] = ()
    """Checks that failed once and passed when they were repeated without a change."""
    worked: bool = True
    """False if no executor changed a file."""
    files_changed: int | None = None
    """Number of files that differ from the initial tree, or None if unknown."""
    scenarios: int = 0
    """Number of hidden scenarios that passed."""
    drafted: int = 0
    """Number of passed scenarios that were drafted by a model."""
    unproven: Sequence[str] = ()
    """Tasks whose episode succeeded without a proof."""
    asked: Sequence[str] = ()
    """Changes that were only announced afterwards, such as `ada asked for the change to tests/test_a.py at 2026-01-31
    14:03 UTC`.
    """
    accepted_by: str = ""
    """Person who accepted the files even though the proof has findings."""
    finding: str = ""
    steps: int = 0
    skipped: Sequence[str] = ()
    """Steps that did not run."""
    failed: Sequence[str] = ()
    """Steps that failed without ending the plan."""
    partly: Sequence[str] = ()
    """Steps with a nested plan in which some steps were skipped or failed."""
    dry_run: bool = False
    is_part: bool = False
    """True for a nested plan, whose changes are proven together with those of the outer plan."""


def qualify(facts: Facts) -> str:
    """Return the reason why a success is qualified, or "" if it is a plain success."""
    if facts.dry_run:
        return f"{DRY_RUN}: nothing was changed"
    steps = "step" if facts.steps == 1 else "steps"
    incomplete = (("skipped", facts.skipped), ("failed", facts.failed), ("partly done", facts.partly))
    parts = [f"{len(names)} of {facts.steps} {steps} {word}: {_names(names)}" for word, names in incomplete if names]
    if reasons := doubts(facts):
        parts.append(f"{NOT_PROVEN}: {', '.join(reasons)}")
    return "; ".join(parts)


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(names[:NAMES_SHOWN]) + more


def doubts(facts: Facts) -> tuple[str, ...]:
    """Return the reasons why a run's passing checks prove nothing."""
    if facts.is_part:
        return ()
    if not facts.has_checks:
        return ("no definition of done",)
    reasons = []
    if facts.files_changed == 0:
        reasons.append("0 files changed")
    elif not facts.worked:
        reasons.append(NO_WORK)
    if not facts.seen_to_fail:
        flaky = f" (flaky: {', '.join(facts.flaky[:NAMES_SHOWN])})" if facts.flaky else ""
        reasons.append(f"no check ever failed{flaky}")
    if facts.unproven:
        reasons.append(f"no proof of {_names(facts.unproven)}")
    if facts.accepted_by:
        reasons.append(f"{facts.accepted_by} accepted the result despite this finding: {facts.finding}")
    return tuple(reasons)


def with_announcements(reason: str, facts: Facts) -> str:
    """Add to the reason for a success the changes that a person requested only afterwards.

    A proven success stays a plain success, but `tightloop verify --strict` rejects its proof.
    """
    if not facts.asked:
        return reason
    proven = "" if qualify(facts) else "PROVEN; "
    return f"{proven}{'; '.join(facts.asked)}; {reason}"


def is_partial(qualifier: str) -> bool:
    """Return whether a successful run left out some of its steps."""
    return bool(_PARTS_LEFT.match(qualifier))


def level(qualifier: str) -> str:
    """Return a qualifier without names or reasons, such as `not proven`."""
    return ", ".join(dict.fromkeys(_LEVEL.findall(qualifier)))


def label(status: str, qualifier: str) -> str:
    """Return a status with its short qualifier, such as `succeeded, not proven`."""
    return f"{status}, {short}" if (short := level(qualifier)) else status


def headline(status: str, qualifier: str, reason: str) -> str:
    """Return the final line of a run, such as `SUCCEEDED, not proven: no check ever failed (3/3 checks pass)`."""
    name = status.upper()
    if not qualifier:
        return f"{name}: {reason or 'no reason was given'}"
    return f"{name}, {qualifier}" + (f" ({reason})" if reason else "")


def is_success(status: str) -> bool:
    """Return whether a status means success, with or without a qualifier."""
    return status.lower() in SUCCESSES


def is_plain_success(status: str, qualifier: str) -> bool:
    """Return whether a run completed and proved all of its work."""
    return is_success(status) and not qualifier


def exit_code(status: str, qualifier: str, *, is_closed: bool) -> int:
    """Return the exit code for a command that waited for a run with this status."""
    if is_success(status):
        return PLAIN if not qualifier or level(qualifier) == DRY_RUN else QUALIFIED
    return FAILED if is_closed else NEEDS_PERSON
