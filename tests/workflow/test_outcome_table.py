"""The table of all combinations in docs/reference/outcomes.md: each row of episodes and plans on a real server.

Rows of project plans are in `test_loop.py` and `test_loop_failures.py`: a task or a gate that failed, was killed or is
missing (`test_plan_with_a_...`), what is not proven (`test_verified_says_what_is_not_proven`), cancelled and verified.
"""

import json
import random
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from deploy.combinations import DIMENSIONS, SUCCESS, Outcome, combination_rows, find_outcome, impossible_combinations
from tests.support.doubles import ScriptedPlanner, claims_done, planned
from tests.support.episodes import Git, Working, asked, eventually, scripted
from tests.support.extent import draw_seed
from tightloop.client import TightloopClient
from tightloop.episode.planning import Briefing, PlannerAnswer
from tightloop.plan.request import PlanRequest
from tightloop.run.outcome import exit_code, is_plain_success
from tightloop.run.question import QuestionKind


class Combination(NamedTuple):
    """One combination, or several with the same outcome. Each field contains values of `DIMENSIONS`."""

    kind: str
    work: Any
    checks: Any
    skipped: Any
    answer: Any


def merge(kind: str) -> list[tuple[Combination, Outcome]]:
    """Return the combinations of one kind of run, merged where they differ in one field and have one outcome."""
    rows_by_outcome: dict[Outcome, list[tuple[Any, ...]]] = {}
    for values in product(*DIMENSIONS):
        rows_by_outcome.setdefault(find_outcome(kind, *values), []).append(tuple((value,) for value in values))
    return [
        (Combination(kind, *fields), outcome)
        for outcome, rows in rows_by_outcome.items()
        for fields in _merge_rows(rows)
    ]


def _merge_rows(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Merge rows that are equal but for one field, field by field."""
    for place in reversed(range(4)):
        merged: dict[tuple[Any, ...], tuple[str, ...]] = {}
        for row in rows:
            rest = (*row[:place], *row[place + 1 :])
            merged[rest] = (*merged.get(rest, ()), *row[place])
        rows = [(*rest[:place], values, *rest[place:]) for rest, values in merged.items()]
    return rows


ROWS = [row for kind in ("episode", "plan") for row in merge(kind) if not row[1].never]


def draw(row: Combination) -> Combination:
    """Return one of the combinations of a row."""
    chance = random.Random(f"{draw_seed()} {row}")
    kind, work, checks, skipped, answer = row
    # A skipped step continues the plan, so a red check then waits for an answer instead of ending the run.
    answer = "none" if "red" in checks and "none" in answer else chance.choice(answer)
    return Combination(kind, chance.choice(work), chance.choice(checks), chance.choice(skipped), answer)


def check_of(one: Combination) -> str:
    """Return a definition of done with these results. If a person is to accept it, a fresh checkout lacks a file."""
    is_accepted = one.answer == "accept"
    if one.checks in ("red", "killed"):
        return "test -e absent.txt" + (" || kill -9 $$" if one.checks == "killed" else "")
    if one.checks == "red to green":
        return "test -e only.log" if is_accepted or one.work == "unchanged" else "grep -q 2 log.txt"
    says = "echo 'Ran 0 tests in 0.000s'; " if one.checks == "no tests" else ""
    return says + ("test ! -e made.txt || test -e only.log" if is_accepted else "test -f app.py")


def files_of(one: Combination) -> dict[str, str]:
    """Return the files that the work writes. git ignores `only.log`."""
    files = {"made.txt": "2\n", "log.txt": "2\n"} if one.work == "changed" or by_person(one) else {}
    return {**files, "only.log": "2\n"} if one.work != "none" or by_person(one) else files


def by_person(one: Combination) -> bool:
    """Return whether only a person turns the checks green."""
    return (one.work, one.checks) == ("none", "red to green")


def source_of(one: Combination) -> str:
    """Return a plan of three steps of which as many are skipped as the combination says."""
    work = "; ".join(f"echo 2 > {name}" for name in files_of(one)) if one.work != "none" else ""
    is_asked = one.answer == "skip" or (one.skipped == "all" and (one.work != "none" or by_person(one)))
    fails = f"run: {json.dumps(f'{work}; false'.removeprefix('; '))}"
    first = f"run: {json.dumps(work or 'true')}" if one.work != "none" else ""
    if one.skipped == "all":
        first = fails if is_asked else "run: 'true', when: '0'"
    elif by_person(one):
        first = "gate: {approval: {question: 'Go on?'}}"
    second = {"none": "", "some": "run: 'false'" if is_asked else "run: 'true', when: '0'"}.get(
        one.skipped, "run: 'true'"
    )
    third = "run: 'true'" if one.skipped != "none" else ""
    steps = (("s1", first, ""), ("s2", second, "s1"), ("s3", third, "s2"))
    lines = [
        "- {id: " + ", ".join(part for part in (name, does, f"needs: [{needs}]" if needs else "") if part) + "}"
        for name, does, needs in steps
    ]
    ends = "on_failure: fail\n" if one.checks in ("red", "killed") else ""
    return (
        f"id: p\ntitle: p\n{ends}definition_of_done: [{json.dumps(check_of(one))}]\nsteps:\n" + "\n".join(lines) + "\n"
    )


def request_of(one: Combination, workspace: Path, request_for: Any) -> Any:
    if one.kind == "plan":
        return PlanRequest(workspace=str(workspace), source=source_of(one))
    write = [{"path": name, "text": text} for name, text in files_of(one).items()]
    step = {"write": write} if one.work != "none" else {"sleep": 0}
    most = 1 if one.checks in ("red", "killed") or by_person(one) else 3
    limits = {"budget": {"max_iterations": most}, "pause_timeout": 2 if one.checks in ("red", "killed") else 600}
    return request_for(definition_of_done=[check_of(one)], executor=scripted(step), **limits)


@pytest.mark.parametrize("row", ROWS, ids=[str(number) for number in range(len(ROWS))])
async def test_each_row_is_what_happens(
    client: TightloopClient, working: Working, request_for: Any, workspace: Path, git: Git,
    row: tuple[Combination, Outcome],
) -> None:  # fmt: skip
    one = draw(row[0])
    expected = find_outcome(*one)
    (workspace / ".gitignore").write_text("only.log\n")
    git(workspace, "add", "--all")
    git(workspace, "commit", "--quiet", "-m", "ignore a file")

    def plan(briefing: Briefing) -> PlannerAnswer:
        claims = one.checks in ("green", "no tests") and (one.work == "none" or briefing.iteration > 1)
        return claims_done() if claims else planned()

    async with working(ScriptedPlanner(plan)):
        run_id = await client.start(request_of(one, workspace, request_for))
        await act(client, run_id, one, workspace)
        if one.answer == "accept" or expected.status == "paused":
            status = await asked(client, run_id)
            while status.questions[0].kind is not QuestionKind.PROOF:
                status = await asked(client, run_id, since=status)
            if expected.status == "paused":
                await client.cancel(run_id, by="ada")
                await client.result(run_id)
                assert (status.list_status, exit_code(status.list_status, "", is_closed=False)) == ("paused", 3)
                return
            await client.answer(run_id, "accept", by="ada")
        result = await client.result(run_id)
        status = await client.status(run_id)
    shown = status.qualifier
    if one.answer == "accept":
        start, _, finding = shown.partition("ada accepted the result despite this finding: ")
        assert finding
        shown = f"{start}ada accepted the result despite this finding: ..."
    wanted = expected.qualifier.replace("build, lint, publish", "s1, s2, s3").replace("lint, publish", "s2, s3")
    assert (status.list_status, shown) == (expected.status, wanted), (one, result)
    assert exit_code(status.list_status, status.qualifier, is_closed=True) == expected.code
    assert (result.outcome.lower(), result.qualifier) == (expected.status, status.qualifier)


async def act(client: TightloopClient, run_id: str, one: Combination, workspace: Path) -> None:
    """Do what a person does before the proof."""
    is_skipped = one.answer == "skip" or (one.kind == "plan" and one.skipped == "all" and one.work != "none")
    if one.answer == "cancel":
        await client.cancel(run_id, by="ada")
    elif by_person(one):
        await edit_as_person(client, run_id, one, workspace)
    elif is_skipped and one.checks not in ("red", "killed"):
        await answer(client, run_id, "skip")


async def answer(client: TightloopClient, run_id: str, name: str) -> None:
    await asked(client, run_id)
    await client.answer(run_id, name, by="ada")


async def edit_as_person(client: TightloopClient, run_id: str, one: Combination, workspace: Path) -> None:
    """Write the files while the run waits for an answer, and then let it go on."""
    await asked(client, run_id)
    if one.kind == "plan" and one.skipped != "all":
        await client.pause(run_id, by="ada")

        async def is_paused() -> bool:
            return (await client.status(run_id)).list_status == "paused"

        await eventually(is_paused, seconds=60)
    for name, text in files_of(one).items():
        (workspace / name).write_text(text)
    if one.kind == "episode":
        await client.top_up(run_id, iterations=5)
        return
    if one.skipped != "all":
        await client.resume(run_id)
        await client.answer(run_id, "approve", by="ada")
    else:
        await client.answer(run_id, "skip", by="ada")
    if one.skipped == "some" and one.answer == "skip":
        await answer(client, run_id, "skip")


def test_no_combination_is_a_plain_success_without_work_and_a_red_check() -> None:
    for kind in SUCCESS:
        for combination, outcome in merge(kind):
            if not outcome.never and is_plain_success(outcome.status, outcome.qualifier):
                assert combination[1:] == (("changed",), ("red to green",), ("none",), ("none",))
    assert len(list(impossible_combinations())) == 6


def test_each_combination_that_can_occur_is_in_the_table_with_its_last_line() -> None:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in list(combination_rows())[2:]]
    for kind, *values in product(SUCCESS, *DIMENSIONS):
        outcome = find_outcome(kind, *values)
        lines = {
            row[5].strip("`")
            for row in rows
            if kind in row[0].split(", ")
            and all(cell == "any" or value in cell.split(", ") for cell, value in zip(row[1:5], values, strict=True))
        }
        if outcome.never or outcome.status == "paused":
            assert outcome.never or lines == {"none: the run waits for a person"}
        elif kind != "plan" or values[2] == "none":
            assert lines == {outcome.line.replace("COMPLETED", "SUCCEEDED")}, (kind, values)
