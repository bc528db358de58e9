"""Runs what a model wants to run: judged by the rules about commands, in the sandbox, like a check."""

import shutil
from collections.abc import Iterable
from pathlib import Path

from activities.checks.port import CheckRunner, CheckView, CommandResult
from activities.coder.files.tree_files import PROTECTED, shown
from activities.coder.port import ToolContext, ToolResult
from activities.plan.attempts.protected_files import find_protected_paths
from tightloop.episode.check import Check
from tightloop.executor.asking import permission_question
from tightloop.executor.model import AgentMode, Grant
from tightloop.executor.permission import PermissionRequest, decide
from tightloop.safety.commands.judge import check_script
from tightloop.safety.commands.shell import plain
from tightloop.safety.rubric import Rubric, Topic, Violation
from tightloop.safety.verdict import Verdict
from tightloop.value import shorten
from tightloop.value.scrub import scrub

PATHS_NAMED = 5


def judge_command(command: str, rubric: Rubric, grants: Iterable[Grant]) -> ToolResult | None:
    """Return why a command is not run: the rules forbid it, or a person has to allow it first; None: it may be run."""
    found = _violations(command, rubric)
    verdict = Verdict.ALLOW
    for one in found:
        verdict = Verdict.DENY if Verdict.DENY in (verdict, one.verdict) else Verdict.ASK
    if verdict is Verdict.ALLOW:
        return None
    reasons = "\n".join(f"rule {one.rule}: right would be: {one.suggestion}" for one in found)
    if verdict is Verdict.DENY:
        return ToolResult(f"refused, nothing was run.\n{reasons}", failed=True)
    request = PermissionRequest(kind="execute", title=shorten(" ".join(command.split()), 200), command=command)
    given = tuple(grants)
    answer = decide(request, mode=AgentMode.WORKSPACE, rule=verdict, grants=given)
    if answer is Verdict.ALLOW:
        return None
    if answer is Verdict.DENY:
        said = next((grant.text for grant in given if grant.fingerprint == request.fingerprint), "")
        return ToolResult(f"a person refused it, nothing was run{f': {said}' if said else ''}", failed=True)
    question = permission_question(scrub(request.title), scrub(f"{command}\n{reasons}"), request.fingerprint)
    return ToolResult(f"waits for a person: {request.title}", question=question)


def _violations(command: str, rubric: Rubric) -> tuple[Violation, ...]:
    if not rubric.enabled:
        return ()
    # What only costs is bounded by the time limit of the call.
    found = (one for one in check_script(plain(command), is_strict=True) if one.topic is not Topic.COST)
    return tuple(one for one in found if one.rule not in rubric.allow)


def run_shell(runner: CheckRunner, command: str, timeout_s: float, context: ToolContext) -> ToolResult:
    """Run a command and return what it printed. Protected files are read-only to it, and it cannot make new ones.

    Raises:
        SandboxUnavailableError: no sandbox works on this host; nothing was run. Not retryable.
        SettingsError: the settings of the sandbox name a path that is not there; nothing was run. Not retryable.
    """
    protected = _protected(context.root)
    result = runner.run(
        Check(run=command, timeout_s=timeout_s),
        context.root,
        cancelled=context.cancelled,
        started=context.started,
        view=CheckView(readable=tuple(sorted(protected))),
    )
    removed = _remove_new(context.root, protected)
    output = scrub(result.output.decode("utf-8", "replace")).rstrip("\n")
    parts = (_ending(result, timeout_s, is_cancelled=context.cancelled()), output, removed)
    return ToolResult("\n".join(filter(None, parts)), failed=result.exit_code != 0)


def _ending(result: CommandResult, timeout_s: float, *, is_cancelled: bool) -> str:
    if result.timed_out:
        return f"ended after its time limit of {timeout_s:g} s"
    if result.exit_code is None:
        return "stopped before its end" if is_cancelled else "ended by a limit of the sandbox"
    return f"exit code {result.exit_code} after {result.duration_s:.1f} s"


def _protected(root: Path) -> frozenset[Path]:
    return find_protected_paths(root, (PROTECTED,), covered=True)


def _remove_new(root: Path, before: frozenset[Path]) -> str:
    made = sorted(_protected(root) - before)
    for place in made:
        shutil.rmtree(place, ignore_errors=True) if place.is_dir() else place.unlink(missing_ok=True)
    names = ", ".join(shown(str(place.relative_to(root))) for place in made[:PATHS_NAMED])
    return f"[tightloop: {names} was removed: only a person makes such files]" if made else ""
