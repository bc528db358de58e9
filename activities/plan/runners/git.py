"""Git steps, which create a branch, a commit and the text of a pull request."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from activities.plan.attempts.runner import make_failure
from activities.plan.attempts.trees import Trees
from activities.plan.port import RunnerResult, Work
from activities.plan.records import describe_answer, section
from activities.workspace.folders import store_folder_of
from activities.workspace.git_command import Git, Outcome, filtered_paths, format_paths, split_z, user_git
from activities.workspace.user_repository import UserRepository
from tightloop.errors import GitError, InvalidRequestError
from tightloop.plan.action import GitAction
from tightloop.plan.child import StepFailure, StepRecord, StepStatus
from tightloop.plan.document import Plan
from tightloop.plan.reference import as_text, resolve
from tightloop.plan.step import Capability
from tightloop.value.scrub import scrub

PATHS_SHOWN = 50
STEPS_SHOWN = 100


def pull_request_text(
    title: str, plan: Plan, records: Sequence[StepRecord], paths: tuple[str, ...], plan_id: str
) -> str:
    """Write the pull request text in Markdown.

    It covers the level of proof, rationale, step results, decisions, risks and files. A step writes this text
    while the plan is still running, so nothing has been proven yet.
    """
    steps = {step.id: step for step in plan.steps}
    last = {r.step: r.result for r in records}
    left = [
        f"{steps[name].title or name if name in steps else name}: {result.status.value}"
        for name, result in last.items()
        if result.status in (StepStatus.SKIPPED, StepStatus.FAILED)
    ]
    left += [f"{name}: {result.qualifier}" for name, result in last.items() if result.qualifier]
    completed = [r for r in records if r.result.status is StepStatus.COMPLETED and not r.undone]
    # Milestones do nothing. Steps missing from the plan come from a template, or compensated another step.
    step_records = [r for r in completed if r.step not in steps or steps[r.step].capability is not Capability.NONE]
    titles = {step.id: step.title or step.id for step in plan.steps}
    lines = [f"{titles.get(r.step, r.step)}: {r.result.summary}".removesuffix(": ") for r in step_records]
    parts = [
        f"# {title}",
        f"**Not proven yet**: the plan had not ended when this text was written. See `tightloop status {plan_id}`",
        section("Not done or not proven", left, STEPS_SHOWN),
        plan.description or plan.title,
        section("What was done", lines, STEPS_SHOWN),
        section("Checks", [f"`{check.run}`" for check in plan.definition_of_done]),
        section(
            "Decisions", [describe_answer(record.step, answer) for record in completed for answer in record.answers]
        ),
        section("Risks", plan.risks),
        section("Assumptions", plan.assumptions),
        section("Files", [f"`{path}`" for path in paths], PATHS_SHOWN),
        f"Plan `{plan.id}`",
    ]
    return scrub("\n\n".join(part for part in parts if part) + "\n")


MESSAGE_CHARACTERS = 10_000
TRAILER = "Tightloop-Step"
_COMMITTED = re.compile(r"[0-9a-f]{40,64}")


class GitRunner:
    """Runs git steps. Creates the branch first, then the commit, and finally the pull request text."""

    def preview(self, work: Work) -> str:
        action = _action(work)
        parts = [f"check out the branch {action.branch}"] if action.branch else []
        if action.commit:
            what = ", ".join(action.paths) or "all files that are not ignored"
            parts.append(f"commit {what}:\n{action.commit}")
        if action.pull_request:
            parts.append(f"write the description for pull request {action.pull_request!r}")
        return "\n".join(parts) or "nothing"

    def run(self, work: Work) -> RunnerResult:
        """Run the git step. It does not fail if the branch already exists or there is nothing to commit."""
        action = _action(work)
        outputs: dict[str, Any] = {}
        with user_git(UserRepository(work.root)) as git:
            if action.branch and (problem := _switch(git, action.branch)) is not None:
                return RunnerResult(failure=problem)
            if action.commit:
                committed = _commit(git, action, f"{work.scope.episode_id}/{work.step.id}")
                if isinstance(committed, StepFailure):
                    return RunnerResult(failure=committed)
                outputs["committed"] = committed
            commit_id = git.attempt("rev-parse", "--verify", "--quiet", "HEAD").out.decode().strip()
            outputs |= {"commit": commit_id if _COMMITTED.fullmatch(commit_id) else "", "branch": _branch(git)}
        artifacts = {}
        if action.pull_request:
            base = work.scope.base_tree
            tree = work.tree.snapshot() if work.tree is not None else base
            paths = Trees().changed_paths(store_folder_of(work.scope), base, tree) if base and tree else ()
            records = work.records.find_run_records(work.scope.episode_id)
            text = pull_request_text(action.pull_request, work.plan, records, paths, work.scope.episode_id)
            outputs["pull_request"] = text
            artifacts["pull_request"] = work.store.put(text.encode(), name="pull request", media_type="text/markdown")
        parts = [f"on branch {outputs['branch']}"] if outputs["branch"] else []
        if action.commit:
            parts.append(f"committed {outputs['commit'][:12]}" if outputs["committed"] else "nothing to commit")
        return RunnerResult(outputs=outputs, artifacts=artifacts, command=self.preview(work), summary=", ".join(parts))


def _action(work: Work) -> GitAction:
    written = work.action(GitAction)
    if not (written.branch or written.commit or written.pull_request):
        raise InvalidRequestError(f"step {work.step.id!r} has no git action. Specify branch, commit or pull_request")
    step_values: Mapping[str, str] = {
        "step": work.step.id,
        "title": work.step.title or work.step.id,
        "kind": work.step.kind.value,
        "plan": work.plan.id,
    }

    def look_up(name: str) -> Any:
        return step_values[name] if name in step_values else work.lookup(name)

    action = GitAction(
        branch=resolve(written.branch, work.lookup, str),
        commit=resolve(written.commit, look_up, str),
        pull_request=resolve(written.pull_request, work.lookup, str),
        paths=tuple(_paths(work.resolve(written.paths))),
    )
    if any("\0" in text for text in (action.branch, *action.paths)):
        raise InvalidRequestError("a branch name or a path contains a null byte")
    return action


def _paths(paths: Any) -> Iterator[str]:
    """Yield the paths in a list. A reference in the list may have been resolved to another list of paths."""
    for path in paths:
        if isinstance(path, list | tuple):
            yield from _paths(path)
        else:
            yield as_text(path)


def _switch(git: Git, branch: str) -> StepFailure | None:
    # To `switch`, a leading dash would begin an option, and `-` alone means the previous branch.
    if git.attempt("check-ref-format", "--branch", branch).code != 0 or branch.startswith("-"):
        return make_failure(f"{branch!r} is not a valid branch name")
    if _branch(git) == branch:
        return None
    exists = git.attempt("show-ref", "--verify", "--quiet", f"refs/heads/{branch}").code == 0
    if exists:
        # Exactly these files are rewritten by the switch, and only those could need a filter.
        differing = split_z(git.run("diff", "--name-only", "--no-renames", "-z", f"refs/heads/{branch}"))
        if problem := _check_filters(git, differing):
            return problem
    outcome = git.attempt("switch", *(() if exists else ("-c",)), branch)
    return _check_outcome("switch", outcome, f"cannot check out branch {branch!r}")


def _commit(git: Git, action: GitAction, step: str) -> bool | StepFailure:
    """Commit the files if they are not committed yet. Return False if there was nothing to commit."""
    if bad := [path for path in action.paths if path.startswith("/") or ".." in Path(path).parts]:
        return make_failure(f"{bad[0]!r} is not a relative path inside the tree")
    paths = ("--", *action.paths) if action.paths else ()
    # all: otherwise a new folder is a single entry, and filters of the files in it would be missed.
    status = split_z(git.run("status", "--porcelain", "-z", "--no-renames", "--untracked-files=all", *paths))
    if problem := _check_filters(git, [entry[3:] for entry in status]):
        return problem
    if problem := _check_outcome("add", git.attempt("add", "-A", *paths), "cannot add the files"):
        return problem
    changed = git.attempt("diff", "--cached", "--quiet", "--ignore-submodules=all", *paths)
    trailer = f"{TRAILER}: {step}"
    if changed.code == 0:
        # The worker may have died after the commit and before its record.
        last = git.attempt("log", "-1", "--format=%B").out.decode("utf-8", "replace")
        return trailer in last.splitlines()
    message = f"{action.commit.strip()[:MESSAGE_CHARACTERS]}\n\n{trailer}\n"
    # --only: what the user has staged of other files stays staged, and out of this commit.
    only = ("--only", *paths) if paths else ()
    # Neither hooks nor signing programs of the user run. verbatim: git would strip lines that begin with `#`.
    options = ("--no-verify", "--no-gpg-sign", "--quiet", "--cleanup=verbatim", "--file=-")
    outcome = git.attempt("commit", *options, *only, stdin=message.encode())
    return _check_outcome("commit", outcome, "the commit failed") or True


def _check_filters(git: Git, paths: list[bytes]) -> StepFailure | None:
    """Reject files that need a filter program from the repository, such as git-lfs.

    Such programs are never run.
    """
    if filtered := filtered_paths(git, paths):
        return make_failure(
            f"{format_paths(filtered, 3)}: .gitattributes specifies a filter program, which tightloop does not "
            "run. Do this step manually, or exclude these files"
        )
    return None


def _branch(git: Git) -> str:
    # Fails on a detached HEAD, that is, if no branch is checked out.
    return git.attempt("symbolic-ref", "--quiet", "--short", "HEAD").out.decode("utf-8", "replace").strip()


def _check_outcome(command: str, outcome: Outcome, what: str) -> StepFailure | None:
    if outcome.code == 0:
        return None
    if ".lock" in outcome.error:
        # The user's own git holds the lock for a moment; raised, so that Temporal retries.
        raise GitError(f"git {command}: {outcome.error}")
    return make_failure(f"{what}: git {command}: {outcome.error or outcome.out.decode('utf-8', 'replace').strip()}")
