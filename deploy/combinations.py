"""All combinations of what may happen in a run, and the outcome of each."""

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any, NamedTuple

from tightloop.run.outcome import Facts, exit_code, headline, qualify

WORK, CHECKS = ("none", "unchanged", "changed"), ("red to green", "green", "no tests", "red", "killed")
SKIPPED, ANSWER = ("none", "some", "all"), ("none", "skip", "accept", "cancel")
SUCCESS = {"episode": "succeeded", "plan": "completed", "project plan": "verified"}
_STEPS = ("build", "lint", "publish")


class Combination(NamedTuple):
    """One combination, or several with the same outcome. Each field contains values of the tuples above."""

    kind: str
    work: Any
    checks: Any
    skipped: Any
    answer: Any


class Outcome(NamedTuple):
    """Outcome of a combination, or the reason why it cannot occur."""

    status: str = ""
    facts: Facts | None = None
    never: str = ""

    @property
    def qualifier(self) -> str:
        """Value of the JSON field `qualifier`."""
        return "" if self.facts is None else qualify(self.facts)

    @property
    def line(self) -> str:
        """Last line of the run, without the reason in parentheses."""
        return headline(self.status, self.qualifier, "") if self.qualifier else self.status.upper()

    @property
    def code(self) -> int:
        """Exit code of a command that waited for the run."""
        return exit_code(self.status, self.qualifier, is_closed=self.status != "paused")


def find_outcome(kind: str, work: str, checks: str, skipped: str, answer: str) -> Outcome:
    """Return the outcome of one combination."""
    if never := _reason_against(kind, work, checks, skipped, answer):
        return Outcome(never=never)
    if answer == "cancel":
        return Outcome("cancelled")
    if checks in ("red", "killed") or (kind == "project plan" and skipped != "none"):
        return Outcome("failed")
    if checks == "red to green" and work == "unchanged" and answer != "accept" and kind != "project plan":
        return Outcome("paused")
    by_person = checks == "red to green" and work == "none"
    facts = Facts(
        seen_to_fail=checks == "red to green",
        worked=work == "changed",
        files_changed=2 if work == "changed" else int(by_person),
        steps=len(_STEPS) if kind == "plan" else 0,
        skipped={"none": (), "some": _STEPS[1:], "all": _STEPS}[skipped],
    )
    if kind == "project plan":
        is_proven = checks == "red to green" and answer == "none" and work != "none"
        facts = Facts(files_changed=facts.files_changed, unproven=() if is_proven else ("ptask_2",))
    elif answer == "accept":
        facts = facts._replace(accepted_by="ada", finding="...")
    return Outcome(SUCCESS[kind], facts)


def _reason_against(kind: str, work: str, checks: str, skipped: str, answer: str) -> str:
    if kind == "episode" and "skip" in (answer, *(["skip"] if skipped != "none" else [])):
        return "An episode has no steps to skip."
    if kind == "project plan" and answer == "skip":
        return "A question about a task has no answer `skip`."
    if answer == "skip" and skipped == "none":
        return "The answer `skip` skips a step."
    if skipped == "all" and work == "changed":
        return "If all steps were skipped, none of them has changed a file."
    if answer == "accept" and checks in ("red", "killed"):
        return "The answer `accept` is about a finding of the proof, which only runs when all checks pass."
    if answer == "accept" and work != "changed" and checks != "red to green":
        return "If no file has changed and no check has failed, the proof has no finding to accept."
    return ""


def merge(kind: str) -> list[tuple[Combination, Outcome]]:
    """Return the combinations of one kind of run, merged where they differ in one field and have one outcome."""
    found: dict[Outcome, list[tuple[Any, ...]]] = {}
    for values in product(WORK, CHECKS, SKIPPED, ANSWER):
        found.setdefault(find_outcome(kind, *values), []).append(tuple((value,) for value in values))
    return [(Combination(kind, *fields), outcome) for outcome, rows in found.items() for fields in _merge_rows(rows)]


def _merge_rows(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Merge rows that are equal but for one field, field by field."""
    for place in reversed(range(4)):
        merged: dict[tuple[Any, ...], tuple[str, ...]] = {}
        for row in rows:
            rest = (*row[:place], *row[place + 1 :])
            merged[rest] = (*merged.get(rest, ()), *row[place])
        rows = [(*rest[:place], values, *rest[place:]) for rest, values in merged.items()]
    return rows


def combination_rows() -> Iterator[str]:
    """Yield the lines of the table of all combinations that can occur."""
    yield "| kind | work | checks | skipped | answer | last line | exit code |"
    yield "|---|---|---|---|---|---|---|"
    for kind in SUCCESS:
        for combination, outcome in merge(kind):
            if outcome.never:
                continue
            values = zip(combination[1:], (WORK, CHECKS, SKIPPED, ANSWER), strict=True)
            cells = ["any" if len(some) == len(every) else ", ".join(some) for some, every in values]
            line = "none: the run waits for a person" if outcome.status == "paused" else f"`{outcome.line}`"
            yield f"| {kind} | {' | '.join(cells)} | {line} | {outcome.code} |"


def impossible_combinations() -> Iterable[str]:
    """Return the reasons why the other combinations cannot occur."""
    reasons = (find_outcome(*values).never for values in product(SUCCESS, WORK, CHECKS, SKIPPED, ANSWER))
    return dict.fromkeys(filter(None, reasons))
