"""Execution of the coder's tool calls: arguments, journal and commands."""

import hashlib
import json
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from pydantic import ValidationError

from activities.artifacts.port import FULL, write_durably
from activities.checks.activity import CheckView, CommandResult
from activities.checks.runner import CheckRunner
from activities.coder.files import PROTECTED, digest, format_path, read_file, remove_temporary, write_change
from activities.coder.port import (
    FileChange,
    ProgramStart,
    Review,
    Tool,
    ToolContext,
    ToolError,
    ToolResult,
    ToolSpec,
)
from activities.model.observed import ProposedCall
from activities.plan.attempts.trees import find_protected_paths
from activities.sandbox.port import SandboxUnavailableError
from tightloop.coder.model import CallHead, CallResult, is_long, keep_ends
from tightloop.episode.check import Check
from tightloop.errors import ExecutorError, SettingsError, StorageFullError, TightloopError, did_you_mean
from tightloop.executor.asking import PermissionRequest, decide, permission_question
from tightloop.executor.model import AgentMode, Grant
from tightloop.host import private_folder
from tightloop.safety.commands.rules import check_script
from tightloop.safety.commands.shell import plain
from tightloop.safety.rubric import Rubric, Topic, Verdict
from tightloop.value import ArtifactRef, Sparse, shorten
from tightloop.value.scrub import scrub, scrub_secrets

SHOWN_CHARACTERS = 200


def schema(**properties: dict[str, Any]) -> dict[str, Any]:
    """Return the strict JSON schema for a tool's arguments.

    All arguments are required, and no other arguments are allowed.
    """
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


def optional(kind: str, description: str, **more: Any) -> dict[str, Any]:
    """Return the schema for an optional argument. The value may be null."""
    return {"type": [kind, "null"], "description": description, **more}


def fit_arguments(values: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Check a call's arguments against the schema, and set missing optional arguments to null.

    Raises:
        ToolError: the arguments do not match the schema.
    """
    properties: Mapping[str, Any] = schema["properties"]
    for name in values:
        if name not in properties:
            raise ToolError(f"unknown argument {shorten(name, 60)!r}. {did_you_mean(name, properties)}")
    nullable = (name for name, property_schema in properties.items() if "null" in property_schema["type"])
    arguments = {**dict.fromkeys(nullable), **values}
    problem = best_match(Draft202012Validator(schema).iter_errors(arguments))
    if problem is not None:
        path = ".".join(map(str, problem.absolute_path))
        message = shorten(problem.message, SHOWN_CHARACTERS)
        raise ToolError(
            f"invalid arguments{f' at {path}' if path else ''}: {message}. Fix the arguments and call the tool again"
        )
    return arguments


_DIGITS = re.compile(r"[0-9a-f]{12,64}")


class CallRecord(Sparse):
    """A call's journal entry."""

    call: str
    """Digest of the tool's name and arguments."""
    path: str = ""
    """Path of the changed file. Empty if the call starts a program."""
    before: str = ""
    """SHA-256 of the file before the change. Empty if the file does not exist."""
    after: str = ""
    text: str = ""
    """Text for the model after the file has been changed."""
    result: CallResult | None = None
    """Result of the call. None if the call was claimed but has not finished."""
    whole: ArtifactRef | None = None
    """The full text of a result that was shortened for the model."""


class CallJournal:
    """The journal of one call in a turn."""

    def __init__(self, session: Path, turn: int, index: int, call: ProposedCall) -> None:
        self._path = session / f"call-{turn:04d}-{index}.json"
        self._name = f"call {index} of turn {turn}"
        self.call = digest_call(call)
        self.temporary = f".tightloop-{session.name[:16]}-{turn}-{index}"
        """Name of the file while it is being written. It is located next to the file that it replaces."""

    def read(self) -> CallRecord | None:
        """Return the call's journal entry, or None if the call has not started.

        Raises:
            ExecutorError: the entry belongs to another call or is damaged. Not retryable.
        """
        try:
            record = CallRecord.model_validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError as error:
            raise ExecutorError(
                f"the journal entry {self._path} for {self._name} is damaged, so the outcome of the call is unknown. "
                "Check the files in the workspace, then cancel this episode and start a new one"
            ) from error
        if record.call != self.call:
            raise ExecutorError(
                f"the journal entry {self._path} for {self._name} belongs to a different call. Two conversations are "
                "using the same session. Cancel this episode and start a new one"
            )
        return record

    def write(self, record: CallRecord) -> None:
        """Record the intended change or the result. A call whose result is recorded is never made again."""
        private_folder(self._path.parent)
        write_durably(self._path, record.model_dump_json().encode())

    def withdraw(self) -> None:
        """Remove the journal entry of a call that certainly had no effect."""
        self._path.unlink(missing_ok=True)


def digest_call(call: ProposedCall) -> str:
    """Return a digest that identifies a call. The digest does not depend on the provider's call ID."""
    text = f"{call.tool}\0{call.arguments}"
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()


def find_result(session: Path, digits: str) -> ArtifactRef | None:
    """Find a result of this session by a prefix of its digest, at least 12 digits long.

    Returns None if the digits are ambiguous. Other contents of the artifact store are not searched.
    """
    if not _DIGITS.fullmatch(digits):
        return None
    matches = {ref.sha256: ref for ref in _results(session) if ref.sha256.startswith(digits)}
    return next(iter(matches.values())) if len(matches) == 1 else None


def _results(session: Path) -> Iterator[ArtifactRef]:
    for path in session.glob("call-*.json"):
        try:
            record = CallRecord.model_validate_json(path.read_bytes())
        except (FileNotFoundError, ValidationError):
            # Entries may be removed meanwhile, and a damaged one only hides its own result.
            continue
        if record.result is not None:
            yield record.result.result
        if record.whole is not None:
            yield record.whole


PATHS_NAMED = 5


def judge_command(command: str, rubric: Rubric, grants: Iterable[Grant]) -> ToolResult | None:
    """Return the refusal or the question that prevents a command from running, or None if it may run."""
    # Rules about cost do not apply: the call's time limit bounds it.
    findings = [
        finding
        for finding in (check_script(plain(command), is_strict=True) if rubric.enabled else ())
        if finding.topic is not Topic.COST and finding.rule not in rubric.allow
    ]
    if not findings:
        return None
    verdict = Verdict.DENY if any(finding.verdict is Verdict.DENY for finding in findings) else Verdict.ASK
    reasons = "\n".join(f"rule {finding.rule}: {finding.suggestion}" for finding in findings)
    if verdict is Verdict.DENY:
        return ToolResult(f"rejected: the command was not run.\n{reasons}", failed=True)
    request = PermissionRequest(kind="execute", title=shorten(" ".join(command.split()), 200), command=command)
    all_grants = tuple(grants)
    answer = decide(request, mode=AgentMode.WORKSPACE, rule=verdict, grants=all_grants)
    if answer is Verdict.ALLOW:
        return None
    if answer is Verdict.DENY:
        comment = next((grant.text for grant in all_grants if grant.fingerprint == request.fingerprint), "")
        return ToolResult(
            f"a person rejected the command, so it was not run{f': {comment}' if comment else ''}", failed=True
        )
    question = permission_question(scrub(request.title), scrub(f"{command}\n{reasons}"), request.fingerprint)
    return ToolResult(f"waiting for a person: {request.title}", question=question)


def run_shell(runner: CheckRunner, command: str, timeout_s: float, context: ToolContext) -> ToolResult:
    """Run a command and return its output.

    Protected files are read-only. If the command creates new protected files, they are deleted.

    Raises:
        SandboxUnavailableError: no sandbox works on this host. Nothing ran. Not retryable.
        SettingsError: the sandbox settings refer to a missing path. Nothing ran. Not retryable.
    """
    protected = _protected_paths(context.root)
    result = runner.run(
        Check(run=command, timeout_s=timeout_s),
        context.root,
        cancelled=context.cancelled,
        started=context.started,
        view=CheckView(readable=tuple(sorted(protected))),
    )
    created = sorted(_protected_paths(context.root) - protected)
    for path in created:
        # The sandbox can make existing files read-only, but not forbid names that do not exist yet.
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    names = ", ".join(format_path(str(path.relative_to(context.root))) for path in created[:PATHS_NAMED])
    removed = f"[tightloop removed {names}: only a person may create such files]" if created else ""
    output = scrub(result.output.decode("utf-8", "replace")).rstrip("\n")
    parts = (_ending(result, timeout_s, is_cancelled=context.cancelled()), output, removed)
    return ToolResult("\n".join(filter(None, parts)), failed=result.exit_code != 0)


def _ending(result: CommandResult, timeout_s: float, *, is_cancelled: bool) -> str:
    if result.timed_out:
        return f"timed out after {timeout_s:g} s"
    if result.exit_code is None:
        return "stopped before it finished" if is_cancelled else "stopped by a sandbox limit"
    return f"exit code {result.exit_code} after {result.duration_s:.1f} s"


def _protected_paths(root: Path) -> frozenset[Path]:
    return find_protected_paths(root, (PROTECTED,), covered=True)


NAME_CHARACTERS = 64
"""Maximum length of a tool name in the history. A model may make up a name of any length."""
MARK_DIGITS = 16
_FATAL_ERRORS = (StorageFullError, SandboxUnavailableError, SettingsError)
"""Errors that the model cannot work around."""


class ToolExecutor:
    """Executes tool calls. Each role can use some of the tools."""

    def __init__(self, tools: Iterable[Tool], *, review: Review = lambda _context: None) -> None:
        self._tools = {tool.spec.name: tool for tool in tools}
        self._review = review

    def specs(self, names: Iterable[str]) -> tuple[ToolSpec, ...]:
        """Return the descriptions of the named tools for a model, in the given order.

        Raises:
            SettingsError: one of the names is unknown. Not retryable.
        """
        tool_names = tuple(names)
        for name in tool_names:
            if name not in self._tools:
                raise SettingsError(f"unknown tool {name!r}. {did_you_mean(name, self._tools)}")
        return tuple(self._tools[name].spec for name in tool_names)

    def heads(self, calls: Iterable[ProposedCall]) -> tuple[CallHead, ...]:
        """Convert calls to the form that is stored in the history.

        Calls to an unknown tool count as reads, because they do nothing.
        """
        return tuple(
            CallHead(tool=call.tool, reads=tool.reads, runs=tool.runs)
            if (tool := self._tools.get(call.tool))
            else CallHead(tool=shorten(call.tool, NAME_CHARACTERS), reads=True)
            for call in calls
        )

    def use(self, turn: int, index: int, call: ProposedCall, context: ToolContext, session: Path) -> CallResult:
        """Carry out a tool call, or return its recorded result. Blocks. The journal makes this idempotent.

        Args:
            turn: number of the turn that proposed the call.
            index: position of the call in its turn.
            call: the call as the model wrote it.
            context: the resources available to the tool.
            session: folder of the session.

        Returns:
            The result. A result with a question is not final. The call is repeated after the question is
            answered.

        Raises:
            StorageFullError: the disk is full. Not retryable, because a person has to free space.
            SandboxUnavailableError: no sandbox works on this host. Nothing ran. Not retryable.
            SettingsError: the sandbox settings are invalid. Nothing ran. Not retryable.
            ExecutorError: the journal is damaged. Not retryable.
        """
        journal = CallJournal(session, turn, index, call)
        context = replace(context, find_result=lambda digits: find_result(session, digits))
        try:
            record = journal.read()
            if record is not None and record.result is not None:
                return record.result
            return _conclude(journal, call, self._attempt(journal, record, call, context), context)
        except OSError as error:
            if error.errno not in FULL:
                raise
            raise StorageFullError.of(error.filename or session, error.strerror) from error

    def _attempt(
        self, journal: CallJournal, record: CallRecord | None, call: ProposedCall, context: ToolContext
    ) -> ToolResult:
        try:
            # The journal knows that it started, not how far it came: a second run could do things twice.
            if record is not None and not record.path:
                return _unknown("an earlier attempt started the program but died before it finished")
            if (tool := self._tools.get(call.tool)) is None:
                name = shorten(call.tool, NAME_CHARACTERS)
                raise ToolError(f"unknown tool {name!r}. {did_you_mean(name, self._tools)}")
            # Validate again: a call that waited for a person may run on a newer build with a different schema.
            arguments = fit_arguments(json.loads(call.arguments), tool.spec.parameters)
            if record is not None:
                return _resume(journal, record, tool, arguments, context)
            return self._begin(journal, tool, arguments, context)
        except _FATAL_ERRORS:
            raise
        except TightloopError as error:
            return ToolResult(str(error), failed=True)
        except OSError as error:
            if error.errno in FULL:
                raise
            at = f" ({format_path(str(error.filename))})" if error.filename else ""
            return ToolResult(f"{call.tool} failed: {error.strerror or error}{at}", failed=True)

    def _begin(
        self, journal: CallJournal, tool: Tool, arguments: Mapping[str, Any], context: ToolContext
    ) -> ToolResult:
        refusal = self._review(context) if tool.runs else None
        outcome = refusal or tool.use(arguments, context)
        match outcome:
            case FileChange():
                # Writing the same content would change the time of the file, and builds would run again.
                if outcome.before != outcome.after:
                    # Before the change: after a crash the digests show whether it was made.
                    journal.write(_claim(journal, outcome))
                    write_change(context.root, outcome, journal.temporary)
                return ToolResult(outcome.text)
            case ProgramStart():
                # Before the start, so that no crash leads to a second run.
                journal.write(CallRecord(call=journal.call))
                try:
                    return outcome.run()
                except (SandboxUnavailableError, SettingsError):
                    # Nothing ran, so the call can run after the repair.
                    journal.withdraw()
                    raise
            case ToolResult():
                return outcome


def _claim(journal: CallJournal, change: FileChange) -> CallRecord:
    before, after = digest(change.before), digest(change.after)
    return CallRecord(call=journal.call, path=change.path, before=before, after=after, text=change.text)


def _resume(
    journal: CallJournal, record: CallRecord, tool: Tool, arguments: Mapping[str, Any], context: ToolContext
) -> ToolResult:
    """Complete a file change that an earlier attempt started but did not finish."""
    remove_temporary(context.root, record.path, journal.temporary)
    current = digest(read_file(context.root, record.path))
    if current == record.after:
        return ToolResult(record.text)
    if current == record.before:
        change = tool.use(arguments, context)
        if isinstance(change, FileChange) and _claim(journal, change) == record:
            write_change(context.root, change, journal.temporary)
            return ToolResult(change.text)
    return _unknown(
        f"an earlier attempt died while changing {format_path(record.path)}, which now has neither the old nor "
        "the new content"
    )


def _unknown(why: str) -> ToolResult:
    text = f"outcome unknown: {why}. The call was not repeated. Check the files before you continue"
    return ToolResult(text, failed=True)


def _conclude(journal: CallJournal, call: ProposedCall, outcome: ToolResult, context: ToolContext) -> CallResult:
    # Before it is stored: artifacts outlive the session, and each later prompt may contain it.
    text = scrub_secrets(outcome.text)
    whole: ArtifactRef | None = None
    if is_long(text):
        whole = _store(text, "whole tool result", context)
        text = keep_ends(text, whole.sha256)
    stored = _store(text, "tool result", context)
    # In canonical form, because the mark detects repeated calls, and models vary spaces and order.
    arguments = json.dumps(json.loads(call.arguments), sort_keys=True)
    digested = "\0".join((call.tool, arguments, stored.sha256, str(outcome.failed)))
    result = CallResult(
        result=stored,
        failed=outcome.failed,
        mark=hashlib.sha256(digested.encode("utf-8", "backslashreplace")).hexdigest()[:MARK_DIGITS],
        question=outcome.question.bounded if outcome.question is not None else None,
        finished=outcome.finished,
    )
    if result.question is None:
        journal.write(CallRecord(call=journal.call, result=result, whole=whole))
    return result


def _store(text: str, name: str, context: ToolContext) -> ArtifactRef:
    return context.store.put(text.encode("utf-8", "backslashreplace"), name=name, media_type="text/plain")
