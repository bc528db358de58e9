"""All combinations of what may happen in a run, and the outcome of each."""

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any, NamedTuple

from tightloop.run.outcome import Facts, exit_code, headline, qualify

WORK, CHECKS = ("none", "unchanged", "changed"), ("red to green", "green", "no tests", "red", "killed")
SKIPPED, ANSWER = ("none", "some", "all"), ("none", "skip", "accept", "cancel")
SUCCESS = {"episode": "succeeded", "plan": "completed", "project plan": "verified"}
DIMENSIONS = (WORK, CHECKS, SKIPPED, ANSWER)
"""Values of each field of a combination, after the kind of run."""
_STEPS = ("build", "lint", "publish")


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
        return "An episode does not have steps, so none can be skipped."
    if kind == "project plan" and answer == "skip":
        return "In a project plan, `skip` is not one of the possible answers."
    if answer == "skip" and skipped == "none":
        return "If you answer `skip`, at least one step is skipped."
    if skipped == "all" and work == "changed":
        return "If all steps are skipped, no step changes a file."
    if answer == "accept" and checks in ("red", "killed"):
        return "You can only `accept` a finding of the proof, and the proof only runs if all checks pass."
    if answer == "accept" and work != "changed" and checks != "red to green":
        return "If no file has changed and no check has failed, the proof finds nothing that you could accept."
    return ""


def combination_rows() -> Iterator[str]:
    """Yield the lines of the table of all combinations that can occur.

    A plan has the row of an episode: its last line differs in the first word and names the skipped steps.
    """
    yield "| run | work | checks | skipped | answer | last line | exit code |"
    yield "|---|---|---|---|---|---|---|"
    for kinds in (("episode", "plan"), ("project plan",)):
        rows = {values: _shown(find_outcome(*values)) for values in product(kinds, *DIMENSIONS)}
        for shown, covered in _widest_rows(rows, (kinds, *DIMENSIONS)):
            values = zip(covered[1:], DIMENSIONS, strict=True)
            cells = ["any" if len(some) == len(every) else ", ".join(some) for some, every in values]
            yield f"| {', '.join(kinds)} | {' | '.join(cells)} | {shown} |"


def _shown(outcome: Outcome) -> str:
    """Return the last cells of a row, empty if the combination cannot occur; skipped steps are not named."""
    if outcome.never:
        return ""
    if outcome.status == "paused":
        return f"none: the run waits for a person | {outcome.code}"
    if outcome.facts is None:
        return f"`{outcome.line}` | {outcome.code}"
    status = SUCCESS["episode"] if outcome.status == SUCCESS["plan"] else outcome.status
    unskipped = Outcome(status, outcome.facts._replace(skipped=()))
    return f"`{unskipped.line}` | {unskipped.code}"


def _widest_rows(rows: dict[tuple[str, ...], str], fields: tuple[tuple[str, ...], ...]) -> Iterator[tuple[str, Any]]:
    """Yield outcomes with the values that lead to them; rows are wide, because they may cover what cannot occur."""
    uncovered = {values for values, shown in rows.items() if shown}
    for values, shown in rows.items():
        if values not in uncovered:
            continue
        covered = [(value,) for value in values]
        for place, value in ((place, value) for place, every in enumerate(fields) for value in every):
            wider = [*covered]
            wider[place] = tuple(one for one in fields[place] if one in (*covered[place], value))
            if all(rows[one] in ("", shown) for one in product(*wider)):
                covered = wider
        possible = [one for one in product(*covered) if rows[one]]
        uncovered.difference_update(possible)
        yield shown, [tuple(dict.fromkeys(column)) for column in zip(*possible, strict=True)]


def impossible_combinations() -> Iterable[str]:
    """Return the reasons why the other combinations cannot occur."""
    reasons = (find_outcome(*values).never for values in product(SUCCESS, *DIMENSIONS))
    return dict.fromkeys(filter(None, reasons))
