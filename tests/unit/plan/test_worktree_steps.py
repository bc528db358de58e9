"""Episodes of a plan in worktrees of their own: what may be written, and beside what they run."""

from typing import Any

import pytest

from tightloop.plan.engine.schedule import ReadyQueue
from tightloop.plan.step import Access, Step
from tightloop.plan.validation import check_text

TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
EPISODE = "goal: g, definition_of_done: [make]"


def problems(step: str) -> list[str]:
    return [str(problem) for problem in check_text(f"id: p\nsteps: [{step}]\n", name="p")[1] if problem.is_error]


def test_episode_in_a_worktree_merges_and_another_one_writes() -> None:
    fields: dict[str, Any] = {"id": "a", "episode": {"goal": "g"}}
    assert Step.model_validate(fields).tree_access is Access.WRITES
    fields["episode"]["worktree"] = True
    assert Step.model_validate(fields).tree_access is Access.MERGES
    assert problems(f"{{id: a, episode: {{{EPISODE}, worktree: true, merge: {{base: {TREE}, tree: {TREE}}}}}}}") == []


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (f"{{id: a, access: writes, episode: {{{EPISODE}, worktree: true}}}}", "its access cannot be 'writes'"),
        ("{id: a, access: merges, shell: {run: ls}}", "is not an episode in its own worktree"),
        (f"{{id: a, episode: {{{EPISODE}, merge: {{base: {TREE}, tree: {TREE}}}}}}}", "does not run in a worktree"),
        (f"{{id: a, episode: {{{EPISODE}, worktree: true, merge: {{base: main, tree: {TREE}}}}}}}", "base"),
    ],
)
def test_what_contradicts_a_worktree_is_refused(step: str, said: str) -> None:
    assert said in "\n".join(problems(step))


def test_steps_that_merge_run_beside_each_other_and_readers_and_never_beside_a_writer() -> None:
    queue = ReadyQueue()
    for number, access in enumerate((Access.MERGES, Access.MERGES, Access.READS, Access.WRITES, Access.MERGES)):
        queue.push(number, number, access)
    started = []
    while (number := queue.pop()) is not None:
        started.append(number)
        queue.add_running(Access.READS if number == 2 else Access.MERGES)
    assert started == [0, 1, 2], "the writer waits, and what comes behind it waits for the writer"
    for access in (Access.MERGES, Access.MERGES, Access.READS):
        queue.remove_running(access)
    assert queue.pop() == 3
    queue.add_running(Access.WRITES)
    assert queue.pop() is None
