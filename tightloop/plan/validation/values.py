"""Rules about values that are written out: paths, addresses, and names of variables and headers."""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tightloop.plan.document.action import METHODS, HttpAction
from tightloop.plan.document.policy import Policy
from tightloop.plan.document.step import ACTIONS, Step, StepKind, walk
from tightloop.plan.rules.caution import UNREVIEWED
from tightloop.plan.rules.guard import pattern_lists
from tightloop.plan.rules.network import find_entry_fault, judge_url
from tightloop.plan.text.located import Path
from tightloop.plan.validation.scope import Report
from tightloop.safety.glob import find_excess, find_pattern_fault

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# RFC 9110, section 5.6.2.
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_OPERATOR = re.compile(r"(?:^|\s)(?:\|\|?|&&|;|[0-9]?>>?|<)(?:\s|$)")
_LITERAL_HOST = re.compile(r"https?://[^/?#$\s]+(?=[/?#])", re.IGNORECASE)
STATUSES = range(100, 600)


class Fault(NamedTuple):
    """What is wrong with a value of a step, and what to write."""

    path: Path
    message: str
    suggestion: str


def find_value_faults(step: Step, network: tuple[str, ...]) -> Iterator[Fault]:
    """Yield what is wrong with the values of a step; those that hold references are judged when it starts."""
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
            said = f"'{name}' is not a name for a variable of the environment"
            yield Fault(("shell", "environment", name), said, "Write letters, digits and '_', not a digit first")
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
        return "a path is empty", "Write it from the root of the tree, such as `src/module.py`"
    if path.startswith(("/", "~")) or re.match(r"[A-Za-z]:[\\/]", path):
        return f"'{path}' is absolute, but steps see the tree only", "Write it from the root of the tree"
    if ".." in parts:
        return f"'{path}' leaves the tree", "Write it from the root of the tree, without `..`"
    if any(part.casefold() == ".git" for part in parts):
        return f"'{path}' lies in `.git`, which no step may touch", "Use the action `git`"
    return None


def _pattern_faults(path: Path, patterns: Iterable[str]) -> Iterator[Fault]:
    for number, pattern in enumerate(patterns):
        if fault := find_pattern_fault(pattern):
            yield Fault((*path, number), *fault)


def _http_faults(http: HttpAction, network: tuple[str, ...]) -> Iterator[Fault]:
    if bool(http.url) == bool(http.urls):
        yield Fault(("http",), "`http` must have either `url` or `urls`", "`url` for one answer, `urls` for documents")
        return
    other = ("max_age_s", "at_least") if http.url else ("method", "headers", "secret_headers", "body", "expect_status")
    for name in sorted(http.model_fields_set.intersection(other)):
        way = "urls" if http.url else "url"
        yield Fault(("http", name), f"`{name}` is for `{way}` only", f"Remove it, or write `{way}:`")
    if http.method.upper() not in METHODS:
        yield Fault(("http", "method"), f"'{http.method}' is not a method", f"Known: {', '.join(METHODS)}")
    for number, status in enumerate(http.expect_status):
        if status not in STATUSES:
            yield Fault(("http", "expect_status", number), f"{status} is not a status", "They are from 100 to 599")
    yield from _header_faults(http)
    for path, url in _urls(http):
        if fault := _url_fault(url, network):
            yield Fault(path, *fault)


def _header_faults(http: HttpAction) -> Iterator[Fault]:
    for field in ("headers", "secret_headers"):
        for name in getattr(http, field):
            if "${" not in name and not _HEADER.fullmatch(name):
                said = f"'{name}' is not a name for a header"
                yield Fault(("http", field, name), said, "Write one such as `Authorization`")
    for name, variable in http.secret_headers.items():
        if not _VARIABLE.fullmatch(variable):
            said = f"'{name}' must name a variable of the worker's environment"
            yield Fault(("http", "secret_headers", name), said, "Write one such as `TRACKER_TOKEN`, never the secret")


def _urls(http: HttpAction) -> Iterator[tuple[Path, str]]:
    if http.url:
        yield ("http", "url"), http.url
    if isinstance(http.urls, str):
        yield ("http", "urls"), http.urls
        return
    for number, url in enumerate(http.urls):
        yield ("http", "urls", number), url


def _url_fault(url: str, network: tuple[str, ...]) -> tuple[str, str] | None:
    if "${" in url:
        head = _LITERAL_HOST.match(url)
        if head is None:
            return None
        url = head[0]
    refusal = judge_url(url, network).refusal
    # Without any host the policy is what is wrong, once for the step.
    if not refusal or (refusal.startswith("policy.network") and not network):
        return None
    said, _, hint = refusal.partition(". ")
    return said, hint


def check_policy(policy: Policy, steps: tuple[Step, ...], report: Report) -> None:
    """Check the policy of a plan."""
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
        elif found := _OPERATOR.search(rule.match):
            said = f"'{rule.match}' matches no command: each command of a script is judged by itself"
            report.error(
                "command-rule", path, said, f"Write a rule for what stands on each side of `{found[0].strip()}`"
            )
    _check_scopes(policy, report)
    _check_approve(policy, steps, report)


def _check_scopes(policy: Policy, report: Report) -> None:
    for number, pattern in enumerate(policy.write):
        if pattern in policy.protect:
            said = f"'{pattern}' stands in policy.protect too, which is stronger: no step may change that"
            report.error("scope", ("policy", "write", number), said, "Take it out of one of them")


def _check_approve(policy: Policy, steps: tuple[Step, ...], report: Report) -> None:
    every = tuple(walk(steps))
    labels = {label for step in every for label in step.labels}
    known = {*(kind.value for kind in StepKind), *(action.value for action in ACTIONS), *labels}
    from_files = any(step.subplan and step.subplan.file for step in every)
    for number, word in enumerate(policy.approve):
        if word in known or word == UNREVIEWED:
            continue
        said = f"'{word}' is neither a kind nor an action, and no step has it as a label: nobody would be asked"
        hint = report.closest(word, known)
        # A label may be one of the steps in a file.
        tell = report.warning if from_files and not hint.startswith("Did") else report.error
        tell("approve", ("policy", "approve", number), said, hint)
