"""The tools of the coder, used by a model: arguments checked, effects journaled, results bounded and stored."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from activities.artifacts.durable import FULL
from activities.coder.calls.arguments import ArgumentsError, read_arguments
from activities.coder.calls.journal import CallJournal, CallRecord, find_result
from activities.coder.files.tree_files import digest, read_file, remove_temporary, shown, write_change
from activities.coder.port import (
    FileChange,
    ProgramStart,
    ProposedCall,
    Review,
    Tool,
    ToolContext,
    ToolError,
    ToolResult,
    ToolSpec,
)
from activities.sandbox.port import SandboxUnavailableError
from tightloop.coder.model import CallHead, CallResult
from tightloop.coder.output import is_long, keep_ends
from tightloop.errors import SettingsError, StorageFullError, TightloopError, did_you_mean
from tightloop.value import shorten
from tightloop.value.artifact import ArtifactRef
from tightloop.value.scrub import scrub_secrets

NAME_CHARACTERS = 64
"""Of a tool's name in the history; a model may invent one of any length."""
MARK_DIGITS = 16
_NOT_THE_MODELS = (StorageFullError, SandboxUnavailableError, SettingsError)
"""What no other call of a model could get around."""


def allow_everything(_context: ToolContext) -> ToolResult | None:
    """Allow everything that was written to be run."""
    return None


class Toolbox:
    """All tools that there are; a role is told of some of them."""

    def __init__(self, tools: Iterable[Tool], *, review: Review = allow_everything) -> None:
        self._tools = {tool.spec.name: tool for tool in tools}
        self._review = review

    def specs(self, names: Iterable[str]) -> tuple[ToolSpec, ...]:
        """Return what a model is told of some tools, in the order of the names.

        Raises:
            SettingsError: one of the names is unknown. Not retryable.
        """
        wanted = tuple(names)
        for name in wanted:
            if name not in self._tools:
                raise SettingsError(f"unknown tool {name!r}. {did_you_mean(name, self._tools)}")
        return tuple(self._tools[name].spec for name in wanted)

    def heads(self, calls: Iterable[ProposedCall]) -> tuple[CallHead, ...]:
        """Return what the history keeps of calls. A call of a tool that does not exist does nothing, like reading."""
        return tuple(self._head(call.tool) for call in calls)

    def _head(self, name: str) -> CallHead:
        tool = self._tools.get(name)
        if tool is None:
            return CallHead(tool=shorten(name, NAME_CHARACTERS), reads=True)
        return CallHead(tool=name, reads=tool.reads, runs=tool.runs)

    def use(self, turn: int, index: int, call: ProposedCall, context: ToolContext, session: Path) -> CallResult:
        """Make a call, or return what came of it when it was made before. Blocking; idempotent by the journal.

        Args:
            turn: number of the turn that proposed it.
            index: of the call in its turn.
            call: as the model wrote it.
            context: what the tool may use.
            session: folder of the session.

        Returns:
            The result. One with a question is not final: the call is made again after the answer.

        Raises:
            StorageFullError: no room is left. Not retryable: a person has to make some.
            SandboxUnavailableError: no sandbox works on this host; nothing was run. Not retryable.
            SettingsError: the settings of the sandbox are wrong; nothing was run. Not retryable.
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
            raise StorageFullError(
                f"no room is left for {error.filename or session}: free some, then resume"
            ) from error

    def _attempt(
        self, journal: CallJournal, record: CallRecord | None, call: ProposedCall, context: ToolContext
    ) -> ToolResult:
        try:
            if record is not None and not record.path:
                return _unknown("the program was started, and the attempt that did so broke off before it ended")
            tool = self._tool(call.tool, context)
            arguments = read_arguments(call.arguments, tool.spec.parameters)
            if record is not None:
                return _resume(journal, record, tool, arguments, context)
            return self._begin(journal, tool, arguments, context)
        except _NOT_THE_MODELS:
            raise
        except (TightloopError, ArgumentsError) as error:
            return ToolResult(str(error), failed=True)
        except OSError as error:
            if error.errno in FULL:
                raise
            at = f" ({shown(str(error.filename))})" if error.filename else ""
            return ToolResult(f"{call.tool} failed: {error.strerror or error}{at}", failed=True)

    def _tool(self, name: str, context: ToolContext) -> Tool:
        known = [known for known in self._tools if not context.tools or known in context.tools]
        if name in self._tools and name not in known:
            raise ToolError(f"{name} is not one of your tools: {', '.join(known)}")
        if name not in known:
            name = shorten(name, NAME_CHARACTERS)
            raise ToolError(f"unknown tool {name!r}. {did_you_mean(name, known)}")
        return self._tools[name]

    def _begin(
        self, journal: CallJournal, tool: Tool, arguments: Mapping[str, Any], context: ToolContext
    ) -> ToolResult:
        refusal = self._review(context) if tool.runs else None
        outcome = refusal or tool.use(arguments, context)
        match outcome:
            case FileChange():
                return _make(journal, outcome, context)
            case ProgramStart():
                return _start(journal, outcome)
            case ToolResult():
                return outcome


def _make(journal: CallJournal, change: FileChange, context: ToolContext) -> ToolResult:
    if change.before != change.after:
        journal.claim(_claim(journal, change))
        write_change(context.root, change, journal.temporary)
    return ToolResult(change.text)


def _claim(journal: CallJournal, change: FileChange) -> CallRecord:
    before, after = digest(change.before), digest(change.after)
    return CallRecord(call=journal.call, path=change.path, before=before, after=after, text=change.text)


def _start(journal: CallJournal, program: ProgramStart) -> ToolResult:
    journal.claim(CallRecord(call=journal.call))
    try:
        return program.run()
    except (SandboxUnavailableError, SettingsError):
        # Nothing was run; after the repair it is.
        journal.withdraw()
        raise


def _resume(
    journal: CallJournal, record: CallRecord, tool: Tool, arguments: Mapping[str, Any], context: ToolContext
) -> ToolResult:
    """Finish a change of a file that an attempt began which broke off."""
    remove_temporary(context.root, record.path, journal.temporary)
    found = digest(read_file(context.root, record.path))
    if found == record.after:
        return ToolResult(record.text)
    if found == record.before:
        change = tool.use(arguments, context)
        if isinstance(change, FileChange) and _claim(journal, change) == record:
            write_change(context.root, change, journal.temporary)
            return ToolResult(change.text)
    return _unknown(
        f"an attempt broke off while it changed {shown(record.path)}, which is now neither as before nor after"
    )


def _unknown(why: str) -> ToolResult:
    text = f"outcome unknown: {why}. It was not done again. Look at the files before you go on"
    return ToolResult(text, failed=True)


def _conclude(journal: CallJournal, call: ProposedCall, outcome: ToolResult, context: ToolContext) -> CallResult:
    text = scrub_secrets(outcome.text)
    whole: ArtifactRef | None = None
    if is_long(text):
        whole = _store(text, "whole tool result", context)
        text = keep_ends(text, whole.sha256)
    stored = _store(text, "tool result", context)
    result = CallResult(
        result=stored,
        failed=outcome.failed,
        mark=_mark(call, stored, failed=outcome.failed),
        question=outcome.question.bounded if outcome.question is not None else None,
        finished=outcome.finished,
    )
    if result.question is None:
        journal.conclude(result, whole)
    return result


def _store(text: str, name: str, context: ToolContext) -> ArtifactRef:
    return context.store.put(text.encode("utf-8", "backslashreplace"), name=name, media_type="text/plain")


def _mark(call: ProposedCall, result: ArtifactRef, *, failed: bool) -> str:
    try:
        arguments = json.dumps(json.loads(call.arguments or "{}"), sort_keys=True)
    except (ValueError, RecursionError):
        arguments = call.arguments
    text = "\0".join((call.tool, arguments, result.sha256, str(failed)))
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:MARK_DIGITS]
