"""Rules about expressions and references: right form, known names, and values that are there in time."""

from collections.abc import Iterator, Mapping
from typing import Any

from tightloop.errors import ExpressionError
from tightloop.plan.document.step import ACTIONS, RESERVED_IDS, Capability, Step
from tightloop.plan.language.expression import parse_expression
from tightloop.plan.language.nearest import PROSE_HINT, nearest_expression
from tightloop.plan.language.reference import Piece, is_one_reference, scan
from tightloop.plan.text.located import Path, texts
from tightloop.plan.validation.edges import Edges, named_step
from tightloop.plan.validation.scope import Scope

BEFORE = frozenset({"inputs", "when", "for_each", "preconditions", *(one.value for one in ACTIONS)})
"""Fields that are read before the step acts: its own results are not known there."""
AFTER = frozenset({"expect", "outputs", "failure_modes", "evidence", "compensate"})
OWN = frozenset({"outputs", "exit_code", "status"})
EXPRESSIONS = frozenset(
    {("when", "when"), ("evidence", "when"), ("decision", "rules", "when"), ("gate", "checks", "invariant")}
    | {("failure_modes", "detect")}
)
"""First and last part of the paths to texts that are expressions, with the second part where it matters."""
PROMISES = frozenset({"preconditions", "expect"})
"""Fields whose texts are expressions."""
PLACEHOLDERS = frozenset({"step", "title", "kind", "plan"})
"""What a commit message may hold besides references."""
RESULTS = {
    Capability.NONE: frozenset[str](),
    Capability.SHELL: frozenset({"stdout", "exit_code"}),
    Capability.EDIT: frozenset({"paths", "changed"}),
    Capability.GIT: frozenset({"branch", "commit", "committed", "pull_request"}),
    Capability.HTTP: frozenset({"status", "url", "headers", "body", "size", "json"}),
    Capability.SEARCH: frozenset({"hits", "searched"}),
    Capability.GATE: frozenset({"checks", "approved", "approved_by", "rejected_by", "rationale", "option"}),
    Capability.DECISION: frozenset({"chosen", "by", "reason", "option"}),
    Capability.CHECKPOINT: frozenset({"name", "tree", "reference"}),
}
"""What an action leaves behind whatever its fields are, where that is all that it leaves behind."""
_DOCUMENTS = frozenset({"documents", "texts", "duplicates", "failed"})
_UNREADABLE = ("this is not an expression", "the name ", "an operator is missing")
# A row that always holds is the last one of a table; a step may be switched off.
_MAY_BE_CONSTANT = frozenset({"when", "decision", "evidence"})
# Names and comments for readers: references in them are not replaced.
_PROSE = frozenset({"note", "name", "pros", "cons", "cost", "prose"})


def check_references(scope: Scope, edges: Edges) -> None:
    """Check all texts of all steps in which references count."""
    declared = frozenset(one.id for one in scope.plan.hypotheses)
    # By compensation step: what is done when it starts.
    compensated: dict[str, int] = {}
    for place, step in enumerate(scope.steps):
        if step.compensate and step.compensate.step and edges.before:
            id_ = step.compensate.step
            compensated[id_] = compensated.get(id_, 0) | edges.before[place] | 1 << place
    tree: Any = scope.report.read.tree
    for part in scope.path:
        tree = tree[part] if scope.steps else []
    for place, step in enumerate(scope.steps):
        reader = _Reader(scope, edges, place, declared, compensated.get(step.id, 0))
        # Steps that a planner's revision keeps stand behind those of its text; they were checked in theirs.
        for path, text in _texts(step, tree[place]) if place < len(tree) else ():
            reader.check(path, text)
        reader.for_each()
        reader.declared()


def _texts(step: Step, tree: Any) -> Iterator[tuple[Path, str]]:
    without = frozenset(within.path for within in step.inner())
    for field in tree if isinstance(tree, Mapping) else ():
        if field in BEFORE or field in AFTER:
            yield from texts(tree[field], without=without, path=(field,))


class _Reader:
    """Checks the texts of one step."""

    def __init__(self, scope: Scope, edges: Edges, place: int, hypotheses: frozenset[str], compensated: int) -> None:
        self._scope, self._place = scope, place
        self._step = scope.steps[place]
        self._hypotheses = hypotheses
        # With a cycle nothing is known of the order: -1 has every bit, so that only the cycle is reported.
        self._before = (edges.before[place] if edges.before else -1) | compensated

    def check(self, path: Path, text: str) -> None:
        """Check one text; what holds no reference and is not an expression costs nothing."""
        if path[-1] in _PROSE and path[0] != "shell":
            return
        if path == ("edit", "diff") and not is_one_reference(text):
            return
        expression = (path[0], *path[1:2], path[-1]) in EXPRESSIONS or (path[0], path[-1]) in EXPRESSIONS
        expression = expression or path[0] in PROMISES
        if path[0] == "failure_modes" and path[-1] != "detect":
            return
        if not text or not (expression or "${" in text):
            return
        parts = tuple(scan(text))
        wrong = [part for part in parts if isinstance(part, ExpressionError)]
        for error in wrong:
            self._malformed(path, text, error, "expression" if expression else "text")
        if expression and not wrong:
            self._expression(path, text)
        for name in dict.fromkeys(part.text for part in parts if isinstance(part, Piece) and part.is_reference):
            self._name(path, name, text)

    def _expression(self, path: Path, text: str) -> None:
        try:
            names = parse_expression(text).references
        except ExpressionError as error:
            hint = nearest_expression(text) if text.strip() else error.suggestion
            # What is wrong within a call or a pattern is said best by itself.
            known = "" if error.problem.startswith(_UNREADABLE) else error.suggestion
            if path[:2] == ("gate", "checks") and hint == PROSE_HINT:
                hint = f"Write `command: ...` for a command. {hint}"
            self._malformed(path, text, ExpressionError(error.problem, error.column, known or hint), "expression")
            return
        if not names and path[0] not in _MAY_BE_CONSTANT:
            said = f"'{_line(text)}' of '{self._step.id}' looks at nothing, so it says the same after every attempt"
            self._scope.report.error("constant", self._scope.at(self._place, *path), said, nearest_expression(text))

    def _malformed(self, path: Path, text: str, error: ExpressionError, what: str) -> None:
        said = f"{what} '{_line(text)}' of '{self._step.id}': {error.problem}"
        hint = error.suggestion[:1].upper() + error.suggestion[1:]
        at = self._scope.at(self._place, *path)
        self._scope.report.within("expression", at, (text, error.column - 1), said, hint)

    def for_each(self) -> None:
        """Check where a template's items come from."""
        source = self._step.for_each
        if isinstance(source, str) and not is_one_reference(source):
            said = f"'for_each' of '{self._step.id}' is '{_line(source)}', which is neither a list nor one reference"
            at = self._scope.at(self._place, "for_each")
            self._scope.report.error("for-each", at, said, "Write `${step.output}` or `[...]`")

    def declared(self) -> None:
        """Check where the declared outputs come from."""
        results = results_of(self._step)
        for name, source in self._step.outputs.items():
            word = source.partition(".")[0]
            known = results | {"json"} if results and "stdout" in results else results
            if known is None or word in known or source.startswith(("file:", "json:")):
                continue
            said = f"output '{name}' of '{self._step.id}' is from '{source}', which the step does not have"
            hint = self._scope.report.closest(word, known) if known else ""
            at = self._scope.at(self._place, "outputs", name)
            self._scope.report.error("unknown-output", at, said, hint or "Write `file:<path>`")

    def _name(self, path: Path, name: str, text: str) -> None:
        if path[:2] == ("git", "commit") and name in PLACEHOLDERS:
            return
        parts = name.split(".")
        # Ids may contain dots: the longest one that is a step is meant.
        for count in range(len(parts), 0, -1):
            other = named_step(self._scope, ".".join(parts[:count]))
            if other is not None:
                self._step_output(path, name, (other, parts[count:]), text)
                return
        if parts[0] in RESERVED_IDS:
            self._reserved(path, parts, text)
            return
        known = {*self._scope.index, *RESERVED_IDS}
        hint = self._scope.report.closest(".".join(parts[:-1]) or name, known, but=self._step.id)
        if path[:2] == ("shell", "run") and len(parts) == 1:
            hint = f"Write $${{{name}}} for the shell's own variable"
        self._tell("unknown-reference", path, f"'${{{name}}}' names neither a step nor a value", hint, (name, text))

    def _step_output(self, path: Path, name: str, found: tuple[int, list[str]], text: str) -> None:
        other, rest = found
        source = self._scope.steps[other]
        if other == self._place and path[0] != "compensate":
            hint = "Write `${outputs.<name>}`, `${exit_code}` or `${status}` for its own results"
            self._tell("own-reference", path, f"'${{{name}}}' refers to the step itself", hint, (name, text))
            return
        if other != self._place and not self._before >> other & 1:
            said = f"'${{{name}}}' is read, but '{self._step.id}' does not need '{source.id}'"
            self._tell("not-needed", path, said, f"Add '{source.id}' to its needs", (name, text))
        if not rest:
            hint = f"Write `${{{source.id}.{next(iter(sorted(_outputs(source))), 'output')}}}`"
            self._tell("no-output", path, f"'${{{name}}}' names a step, not one of its outputs", hint, (name, text))
        elif results_of(source) is not None and rest[0] not in _outputs(source):
            hint = self._scope.report.closest(rest[0], _outputs(source)) or f"Declare it in `outputs` of '{source.id}'"
            self._tell("unknown-output", path, f"'{source.id}' has no output '{rest[0]}'", hint, (name, text))

    def _reserved(self, path: Path, parts: list[str], text: str) -> None:
        word, name = parts[0], ".".join(parts)
        if word == "item" and self._step.for_each is None:
            hint = "Use it in a step with `for_each`"
            self._tell("item", path, f"'${{{name}}}' is known in templates only", hint, (name, text))
        elif word == "exit_code" and path[0] in AFTER and self._lacks_exit_code():
            said = f"'{self._step.id}' has no exit code: only `shell` has one"
            self._tell("unknown-output", path, said, "Look at `${status}` or `${outputs.<name>}`", (name, text))
        elif word in OWN and path[0] in BEFORE and path[0] != "gate":
            hint = f"Write $${{{name}}} for the shell's own variable" if path[0] == "shell" else "Use it in `expect`"
            said = f"'${{{name}}}' is the step's own result, which is not known before it acts"
            self._tell("own-result", path, said, hint, (name, text))
        names = {"inputs": self._step.inputs, "plan": self._scope.inputs, "hypotheses": self._hypotheses}.get(word)
        if word == "outputs" and results_of(self._step) is not None:
            names = _outputs(self._step)
        if names is None:
            return
        if len(parts) < 2 or parts[1] not in names:
            own = f"'{self._step.id}' has no"
            owner = {"inputs": f"{own} input", "outputs": f"{own} output", "plan": "the plan has no input"}.get(
                word, "the plan has no hypothesis"
            )
            hint = self._scope.report.closest(parts[-1], names) or "Declare it"
            self._tell("unknown-input", path, f"{owner} '{'.'.join(parts[1:])}'", hint, (name, text))

    def _lacks_exit_code(self) -> bool:
        return results_of(self._step) is not None and "exit_code" not in _outputs(self._step)

    def _tell(self, code: str, path: Path, message: str, suggestion: str, found: tuple[str, str]) -> None:
        name, text = found
        offset = max(text.find("${" + name), 0)
        at = self._scope.at(self._place, *path)
        where = f" (in '{self._step.id}')" if f"'{self._step.id}'" not in message else ""
        self._scope.report.within(code, at, (text, offset), message + where, suggestion)


def results_of(step: Step) -> frozenset[str] | None:
    """Return the names of what the step's action leaves behind; None: that depends on what it finds."""
    if step.model and step.model.schema_ is None:
        return frozenset({"text"})
    if step.http and step.http.urls:
        return _DOCUMENTS
    return RESULTS.get(step.capability)


def _outputs(step: Step) -> frozenset[str]:
    return (results_of(step) or frozenset()) | frozenset(step.outputs)


def _line(text: str) -> str:
    return text if len(text) <= 60 and "\n" not in text else " ".join(text.split())[:57] + "..."
