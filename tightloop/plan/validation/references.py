"""Validation of references and values."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from tightloop.errors import ExpressionError
from tightloop.plan.action import METHODS, HttpAction
from tightloop.plan.commands import find_entry_fault, judge_url
from tightloop.plan.document import Policy
from tightloop.plan.expression import parse_expression
from tightloop.plan.guard import UNREVIEWED, pattern_lists
from tightloop.plan.reference import Segment, is_one_reference, scan
from tightloop.plan.step import ACTIONS, RESERVED_IDS, Capability, Step, StepKind, walk
from tightloop.plan.text.located import Path, texts
from tightloop.plan.validation.edges import Edges, Report, Scope, named_step
from tightloop.safety.scope import find_excess, find_pattern_fault

BEFORE = frozenset({"inputs", "when", "for_each", "preconditions", *(action.value for action in ACTIONS)})
"""Fields that are evaluated before the action, when the results of the step are not known yet."""
AFTER = frozenset({"expect", "outputs", "failure_modes", "evidence", "compensate"})
OWN = frozenset({"outputs", "exit_code", "status"})
EXPRESSIONS = frozenset(
    {("when", "when"), ("evidence", "when"), ("decision", "rules", "when"), ("gate", "checks", "invariant")}
    | {("failure_modes", "detect")}
)
"""Texts that are expressions, given as parts of their paths: (first, [second,] last)."""
PROMISES = frozenset({"preconditions", "expect"})
"""Fields whose texts are expressions."""
PLACEHOLDERS = frozenset({"step", "title", "kind", "plan"})
"""Placeholders that a commit message may contain in addition to references."""
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
"""Results of each action, for actions whose results do not depend on their fields."""
_DOCUMENTS = frozenset({"documents", "texts", "duplicates", "failed"})
_PROSE_HINT = (
    "Write an expression such as `${exit_code} == 0`, or `prose: ...` for something that only a person can judge"
)
_FILES = re.compile(r"\b(?:os|pathlib|shutil)\.|\bPath\(|\bopen\(|\bfile_exists\b|\bisfile\b|^\s*-[efds]\s|^\[\[? ")
_FILES_HINT = (
    "Expressions cannot access files: test for the file in a command (`test -e x`), or declare "
    "`outputs: {x: file:x}` and write `exists(${outputs.x})`"
)
_UNREADABLE = ("this is not a valid expression", "the name ", "an operator is missing")
# A row that always holds may end a table, and a step may be switched off.
_MAY_BE_CONSTANT = frozenset({"when", "decision", "evidence"})
# Names and comments for readers; references in them are not resolved.
_PROSE = frozenset({"note", "name", "pros", "cons", "cost", "prose"})


def check_references(scope: Scope, edges: Edges) -> None:
    """Validate every text that contains references, in all steps."""
    declared = frozenset(hypothesis.id for hypothesis in scope.plan.hypotheses)
    # Compensation step -> steps that may be complete when it starts.
    compensated: dict[str, int] = {}
    for index, step in enumerate(scope.steps):
        if step.compensate and step.compensate.step and edges.before:
            id_ = step.compensate.step
            compensated[id_] = compensated.get(id_, 0) | edges.before[index] | 1 << index
    tree: Any = scope.report.read.tree
    for part in scope.path:
        tree = tree[part] if scope.steps else []
    for index, step in enumerate(scope.steps):
        reader = _Reader(scope, edges, index, declared, compensated.get(step.id, 0))
        # Steps kept by a planner's revision follow those of its text; they were validated in their own text.
        for path, text in _texts(step, tree[index]) if index < len(tree) else ():
            reader.check(path, text)
        reader.for_each()
        reader.check_outputs()


def _texts(step: Step, tree: Any) -> Iterator[tuple[Path, str]]:
    without = frozenset(nested.path for nested in step.inner())
    for field in tree if isinstance(tree, Mapping) else ():
        if field in BEFORE or field in AFTER:
            yield from texts(tree[field], without=without, path=(field,))


class _Reader:
    """Validates the references and expressions in the texts of a step."""

    def __init__(self, scope: Scope, edges: Edges, index: int, hypotheses: frozenset[str], compensated: int) -> None:
        self._scope, self._place = scope, index
        self._step = scope.steps[index]
        self._hypotheses = hypotheses
        # With a cycle there is no order: -1 has every bit set, so that only the cycle is reported.
        self._before = (edges.before[index] if edges.before else -1) | compensated

    def check(self, path: Path, text: str) -> None:
        """Validate a string that is an expression or contains references. Other strings are ignored."""
        # In `shell` such a word is the name of an environment variable, whose value is resolved.
        if path[-1] in _PROSE and path[0] != "shell":
            return
        # In a literal diff `${x}` is file content.
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
            self._report_syntax_error(path, text, error, "expression" if expression else "text")
        if expression and not wrong:
            self._expression(path, text)
        for name in dict.fromkeys(part.text for part in parts if isinstance(part, Segment) and part.is_reference):
            self._name(path, name, text)

    def _expression(self, path: Path, text: str) -> None:
        try:
            names = parse_expression(text).references
        except ExpressionError as error:
            hint = _advice(text) if text.strip() else error.suggestion
            # For faults inside a call or a pattern, the error's own suggestion is the most precise.
            precise_hint = "" if error.problem.startswith(_UNREADABLE) else error.suggestion
            if path[:2] == ("gate", "checks") and hint == _PROSE_HINT:
                hint = f"For a command, write `command: ...`. {hint.replace('${exit_code}', '${build.exit_code}')}"
            self._report_syntax_error(
                path, text, ExpressionError(error.problem, error.column, precise_hint or hint), "expression"
            )
            return
        if not names and path[0] not in _MAY_BE_CONSTANT:
            message = f"'{_line(text)}' in '{self._step.id}' contains no reference, so its result is always the same"
            self._scope.report.error("constant", self._scope.at(self._place, *path), message, _advice(text))

    def _report_syntax_error(self, path: Path, text: str, error: ExpressionError, what: str) -> None:
        message = f"{what} '{_line(text)}' in '{self._step.id}': {error.problem}"
        hint = error.suggestion[:1].upper() + error.suggestion[1:]
        at = self._scope.at(self._place, *path)
        self._scope.report.within("expression", at, (text, error.column - 1), message, hint)

    def for_each(self) -> None:
        """Check that the source of a template's items is a list or a single reference."""
        source = self._step.for_each
        if isinstance(source, str) and not is_one_reference(source):
            message = (
                f"'for_each' in '{self._step.id}' is '{_line(source)}', which is neither a list nor a single reference"
            )
            at = self._scope.at(self._place, "for_each")
            self._scope.report.error("for-each", at, message, "Write `${step.output}` or `[...]`")

    def check_outputs(self) -> None:
        """Validate the sources of the declared outputs."""
        results = results_of(self._step)
        for name, source in self._step.outputs.items():
            result = source.partition(".")[0]
            available = results | {"json"} if results and "stdout" in results else results
            # None: the results of a model with a schema or of a child are known only after the run.
            if available is None or result in available or source.startswith(("file:", "json:")):
                continue
            message = f"output '{name}' of '{self._step.id}' comes from '{source}', which the step does not provide"
            hint = self._scope.report.closest(result, available) if available else ""
            at = self._scope.at(self._place, "outputs", name)
            self._scope.report.error("unknown-output", at, message, hint or "Write `file:<path>`")

    def _name(self, path: Path, name: str, text: str) -> None:
        if path[:2] == ("git", "commit") and name in PLACEHOLDERS:
            return
        parts = name.split(".")
        # Ids may contain dots; the longest matching step wins.
        for count in range(len(parts), 0, -1):
            other = named_step(self._scope, ".".join(parts[:count]))
            if other is not None:
                self._step_output(path, name, (other, parts[count:]), text)
                return
        if parts[0] in RESERVED_IDS:
            self._check_reserved_name(path, parts, text)
            return
        known_names = {*self._scope.index, *RESERVED_IDS}
        hint = self._scope.report.closest(".".join(parts[:-1]) or name, known_names, but=self._step.id)
        if path[:2] == ("shell", "run") and len(parts) == 1:
            hint = f"Write $${{{name}}} for the shell variable"
        self._report("unknown-reference", path, f"'${{{name}}}' is neither a step nor a value", hint, (name, text))

    def _step_output(self, path: Path, name: str, target: tuple[int, list[str]], text: str) -> None:
        other, rest = target
        source = self._scope.steps[other]
        # A compensation runs after the step and may use its outputs.
        if other == self._place and path[0] != "compensate":
            hint = "Write `${outputs.<name>}`, `${exit_code}` or `${status}` for the step's own results"
            self._report("own-reference", path, f"'${{{name}}}' refers to the step itself", hint, (name, text))
            return
        if other != self._place and not self._before >> other & 1:
            message = f"'{self._step.id}' uses '${{{name}}}' but does not need '{source.id}'"
            self._report("not-needed", path, message, f"Add '{source.id}' to its `needs`", (name, text))
        if not rest:
            hint = f"Write `${{{source.id}.{next(iter(sorted(outputs_of(source))), 'output')}}}`"
            self._report(
                "no-output", path, f"'${{{name}}}' refers to a step, not to one of its outputs", hint, (name, text)
            )
        elif results_of(source) is not None and rest[0] not in outputs_of(source):
            hint = (
                self._scope.report.closest(rest[0], outputs_of(source))
                or f"Declare it under `outputs` in '{source.id}'"
            )
            self._report("unknown-output", path, f"'{source.id}' has no output '{rest[0]}'", hint, (name, text))

    def _check_reserved_name(self, path: Path, parts: list[str], text: str) -> None:
        head, name = parts[0], ".".join(parts)
        if head == "item" and self._step.for_each is None:
            hint = "Use the reference in a step with `for_each`"
            self._report("item", path, f"'${{{name}}}' is only available in templates", hint, (name, text))
        elif head == "exit_code" and (path[0] in AFTER or path[0] == "gate") and self._lacks_exit_code():
            message = f"'{self._step.id}' has no exit code because it is not a `shell` step"
            hint = "Write `${STEP.exit_code}` for a step with `run:`, or `command:` for a check with its own command"
            hint = hint if path[0] == "gate" else "Use `${status}` or `${outputs.<name>}`"
            self._report("unknown-output", path, message, hint, (name, text))
        elif head in OWN and path[0] in BEFORE and path[0] != "gate":
            hint = (
                f"Write $${{{name}}} for the shell variable" if path[0] == "shell" else "Use the reference in `expect`"
            )
            message = f"'${{{name}}}' is the step's own result, which is not available before the step runs"
            self._report("own-result", path, message, hint, (name, text))
        names = {"inputs": self._step.inputs, "plan": self._scope.inputs, "hypotheses": self._hypotheses}.get(head)
        if head == "outputs" and results_of(self._step) is not None:
            names = outputs_of(self._step)
        if names is None:
            return
        if len(parts) < 2 or parts[1] not in names:
            prefix = f"'{self._step.id}' has no"
            owner = {"inputs": f"{prefix} input", "outputs": f"{prefix} output", "plan": "the plan has no input"}.get(
                head, "the plan has no hypothesis"
            )
            hint = self._scope.report.closest(parts[-1], names) or "Declare it"
            self._report("unknown-input", path, f"{owner} '{'.'.join(parts[1:])}'", hint, (name, text))

    def _lacks_exit_code(self) -> bool:
        return results_of(self._step) is not None and "exit_code" not in outputs_of(self._step)

    def _report(self, code: str, path: Path, message: str, suggestion: str, reference: tuple[str, str]) -> None:
        name, text = reference
        # Not found if it is written with blanks, as in `${ name }`; then point to the start of the text.
        offset = max(text.find("${" + name), 0)
        at = self._scope.at(self._place, *path)
        where = f" (in '{self._step.id}')" if f"'{self._step.id}'" not in message else ""
        self._scope.report.within(code, at, (text, offset), message + where, suggestion)


def results_of(step: Step) -> frozenset[str] | None:
    """Return the names of an action's results, or None if they are not known before the run."""
    if step.model and step.model.schema_ is None:
        return frozenset({"text"})
    if step.http and step.http.urls:
        return _DOCUMENTS
    return RESULTS.get(step.capability)


def outputs_of(step: Step) -> frozenset[str]:
    return (results_of(step) or frozenset()) | frozenset(step.outputs)


def _line(text: str) -> str:
    return text if len(text) <= 60 and "\n" not in text else " ".join(text.split())[:57] + "..."


_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# RFC 9110, section 5.6.2.
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_OPERATOR = re.compile(r"(?:^|\s)(?:\|\|?|&&|;|[0-9]?>>?|<)(?:\s|$)")
_LITERAL_HOST = re.compile(r"https?://[^/?#$\s]+(?=[/?#])", re.IGNORECASE)
STATUSES = range(100, 600)


class Fault(NamedTuple):
    """Invalid value in a step, with a suggestion."""

    path: Path
    message: str
    suggestion: str


def find_value_faults(step: Step, network: tuple[str, ...]) -> Iterator[Fault]:
    """Yield the invalid values of a step. Values with references are checked when the step starts."""
    for fields, path in _paths(step):
        if "${" not in path and (fault := _path_fault(path)):
            yield Fault(fields, *fault)
    if step.search:
        yield from _pattern_faults(("search", "paths"), step.search.paths)
    for number, check in enumerate(step.gate.checks if step.gate else ()):
        for field in ("only", "never") if check.diff else ():
            yield from _pattern_faults(("gate", "checks", number, "diff", field), getattr(check.diff, field))
    for name in step.shell.environment if step.shell else ():
        if not _VARIABLE.fullmatch(name):
            message = f"'{name}' is not a valid environment variable name"
            yield Fault(
                ("shell", "environment", name),
                message,
                "Use only letters, digits and '_', and do not start with a digit",
            )
    if step.http:
        yield from _http_faults(step.http, network)


def _paths(step: Step) -> Iterator[tuple[Path, str]]:
    for number, file in enumerate(step.edit.files if step.edit else ()):
        yield ("edit", "files", number, "path"), file.path
    if step.shell and step.shell.folder not in ("", "."):
        yield ("shell", "folder"), step.shell.folder
    if step.subplan and step.subplan.file:
        yield ("subplan", "file"), step.subplan.file
    for number, path in enumerate(step.git.paths if step.git else ()):
        if path != ".":
            yield ("git", "paths", number), path
    for name, source in step.outputs.items():
        way, colon, path = source.partition(":")
        if colon and way in ("file", "json"):
            yield ("outputs", name), path.strip()


def _path_fault(path: str) -> tuple[str, str] | None:
    parts = path.split("/")
    if not path.strip():
        return "a path is empty", "Write a path relative to the root of the tree, such as `src/module.py`"
    # Windows paths too: a plan may be written on another system than the one that runs it.
    if path.startswith(("/", "~")) or re.match(r"[A-Za-z]:[\\/]", path):
        return f"'{path}' is absolute, but steps can only access the tree", (
            "Write the path relative to the root of the tree"
        )
    if ".." in parts:
        return f"'{path}' is outside the tree", "Write the path relative to the root of the tree, without `..`"
    if any(part.casefold() == ".git" for part in parts):
        return f"'{path}' is in `.git`, which steps must not access", "Use the `git` action"
    return None


def _pattern_faults(path: Path, patterns: Iterable[str]) -> Iterator[Fault]:
    for number, pattern in enumerate(patterns):
        if fault := find_pattern_fault(pattern):
            yield Fault((*path, number), *fault)


def _http_faults(http: HttpAction, network: tuple[str, ...]) -> Iterator[Fault]:
    if bool(http.url) == bool(http.urls):
        yield Fault(
            ("http",),
            "`http` must have either `url` or `urls`",
            "Use `url` for a single response, or `urls` for documents",
        )
        return
    other = ("max_age_s", "at_least") if http.url else ("method", "headers", "secret_headers", "body", "expect_status")
    # `model_fields_set`, because a field that is set to its default was also meant to have an effect.
    for name in sorted(http.model_fields_set.intersection(other)):
        way = "urls" if http.url else "url"
        yield Fault(("http", name), f"`{name}` is only valid with `{way}`", f"Remove `{name}`, or use `{way}:`")
    if http.method.upper() not in METHODS:
        yield Fault(("http", "method"), f"'{http.method}' is not an HTTP method", f"Use one of {', '.join(METHODS)}")
    for number, status in enumerate(http.expect_status):
        if status not in STATUSES:
            yield Fault(
                ("http", "expect_status", number), f"{status} is not an HTTP status", "Use a status from 100 to 599"
            )
    yield from _header_faults(http)
    for path, url in _urls(http):
        if fault := _url_fault(url, network):
            yield Fault(path, *fault)


def _header_faults(http: HttpAction) -> Iterator[Fault]:
    for field in ("headers", "secret_headers"):
        for name in getattr(http, field):
            if "${" not in name and not _HEADER.fullmatch(name):
                message = f"'{name}' is not a valid header name"
                yield Fault(("http", field, name), message, "Use a name such as `Authorization`")
    for name, variable in http.secret_headers.items():
        if not _VARIABLE.fullmatch(variable):
            message = f"secret header '{name}' must name a worker environment variable"
            yield Fault(
                ("http", "secret_headers", name), message, "Use a name such as `TRACKER_TOKEN`, never the secret itself"
            )


def _urls(http: HttpAction) -> Iterator[tuple[Path, str]]:
    if http.url:
        yield ("http", "url"), http.url
    if isinstance(http.urls, str):
        yield ("http", "urls"), http.urls
        return
    for number, url in enumerate(http.urls):
        yield ("http", "urls", number), url


def _advice(text: str) -> str:
    """Return a hint for a text that is not an expression.

    The hint does not contain a rewritten text. Out of 70 rewritten conditions, only 51 were right, and a
    wrong condition such as `${outputs.error} == 'null'` is accepted but is never true.
    """
    return _FILES_HINT if _FILES.search(text) else _PROSE_HINT


def _url_fault(url: str, network: tuple[str, ...]) -> tuple[str, str] | None:
    if "${" in url:
        # Only a host that ends before the first reference is known: `https://a${x}/` could become any host.
        head = _LITERAL_HOST.match(url)
        if head is None:
            return None
        url = head[0]
    refusal = judge_url(url, network).refusal
    # If no host is allowed at all, the policy is reported once for the step.
    if not refusal or (refusal.startswith("policy.network") and not network):
        return None
    message, _, hint = refusal.partition(". ")
    return message, hint


def check_policy(policy: Policy, steps: tuple[Step, ...], report: Report) -> None:
    """Validate the policy of a plan and report all problems."""
    for name, patterns in pattern_lists(policy):
        if excess := find_excess(patterns):
            report.error("patterns", ("policy", name), excess)
    for name in ("write", "protect"):
        for fault in _pattern_faults(("policy", name), getattr(policy, name)):
            report.error("pattern", fault.path, fault.message, fault.suggestion)
    for number, entry in enumerate(policy.network):
        if wrong := find_entry_fault(entry):
            report.error("host", ("policy", "network", number), *wrong)
    for number, rule in enumerate(policy.commands):
        path = ("policy", "commands", number, "match")
        if not rule.match.strip():
            report.error("command-rule", path, f"rule {number + 1} matches no command", "Write `match: git push **`")
        elif operator := _OPERATOR.search(rule.match):
            message = f"'{rule.match}' matches no command because each command in a script is checked separately"
            report.error("command-rule", path, message, f"Write one rule for each side of `{operator[0].strip()}`")
    _check_scopes(policy, report)
    _check_approve(policy, steps, report)


def _check_scopes(policy: Policy, report: Report) -> None:
    for number, pattern in enumerate(policy.write):
        if pattern in policy.protect:
            message = f"'{pattern}' is also in policy.protect, which takes precedence, so no step may change it"
            report.error("scope", ("policy", "write", number), message, "Remove the pattern from one of the two lists")


def _check_approve(policy: Policy, steps: tuple[Step, ...], report: Report) -> None:
    every = tuple(walk(steps))
    labels = {label for step in every for label in step.labels}
    known_labels = {*(kind.value for kind in StepKind), *(action.value for action in ACTIONS), *labels}
    from_files = any(step.subplan and step.subplan.file for step in every)
    for number, term in enumerate(policy.approve):
        if term in known_labels or term == UNREVIEWED:
            continue
        message = f"'{term}' is not a kind, an action or the label of a step, so nobody would be asked"
        hint = report.closest(term, known_labels)
        # The label may belong to a step in a file.
        tell = report.warning if from_files and not hint.startswith("Did") else report.error
        tell("approve", ("policy", "approve", number), message, hint)
