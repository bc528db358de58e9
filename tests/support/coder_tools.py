"""A project, a session and the tools, as an activity of the coder would use them; without a workflow."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from activities.artifacts.stores import LocalArtifactStore
from activities.checks.runner import CheckRunner
from activities.coder.calls import ToolExecutor
from activities.coder.port import CoderMemory, Tool, ToolContext, ToolResult
from activities.coder.tools import make_tools
from activities.model.observed import ProposedCall
from activities.sandbox.choose import choose_sandbox
from tests.support.git_sample import make_repository
from tightloop.coder.model import CallResult
from tightloop.executor.model import Grant
from tightloop.settings import SandboxSettings

SETTINGS = SandboxSettings(unsafe_local=True, memory_mb=512)
SESSION = "5e55" * 8


def all_tools() -> tuple[Tool, ...]:
    runner = CheckRunner(choose_sandbox(SETTINGS), SETTINGS, grace_s=0.5)
    return make_tools(runner)


class Notebook:
    """A memory that finds what has a word of the query in it."""

    def __init__(self) -> None:
        self.facts: dict[str, str] = {}

    def search(self, query: str, limit: int) -> list[str]:
        words = query.split()
        return [text for text in self.facts.values() if any(word in text for word in words)][:limit]

    def remember(self, key: str, text: str) -> None:
        self.facts[key] = text


@dataclass
class Bench:
    """One project with one session."""

    root: Path
    state: Path
    checks: tuple[str, ...] = ()
    grants: tuple[Grant, ...] = ()
    memory: CoderMemory | None = None
    review: Callable[[ToolContext], ToolResult | None] = lambda _context: None
    turn: int = 0
    tools: tuple[Tool, ...] = field(default_factory=all_tools)

    @property
    def session(self) -> Path:
        return self.state / "coder" / SESSION

    @property
    def context(self) -> ToolContext:
        return ToolContext(
            root=self.root,
            base_tree="",
            store=LocalArtifactStore(self.state / "artifacts"),
            checks=self.checks,
            grants=self.grants,
            memory=self.memory,
        )

    def use(self, tool: str, arguments: str | dict[str, Any], *, turn: int | None = None, **changes: Any) -> CallResult:
        """Make a call in a turn of its own, or again in an earlier turn."""
        if turn is None:
            self.turn += 1
        written = arguments if isinstance(arguments, str) else json.dumps(arguments)
        call = ProposedCall(id="c", tool=tool, arguments=written)
        box = ToolExecutor(self.tools, review=self.review)
        return box.use(self.turn if turn is None else turn, 0, call, replace(self.context, **changes), self.session)

    def text(self, result: CallResult) -> str:
        return self.context.store.get(result.result).decode()

    def done(self, tool: str, **arguments: Any) -> str:
        """Make a call that has to succeed, and return what the model is told."""
        result = self.use(tool, arguments)
        said = self.text(result)
        assert not result.failed, said
        assert result.question is None, said
        return said

    def failed(self, tool: str, **arguments: Any) -> str:
        """Make a call that has to fail, and return why."""
        result = self.use(tool, arguments)
        assert result.failed
        return self.text(result)


def bench(folder: Path, files: dict[str, str] | None = None, **more: Any) -> Bench:
    root = make_repository(folder / "project", files or {"a.py": "def f():\n    return 1\n"})
    return Bench(root=root, state=folder / "state", **more)
