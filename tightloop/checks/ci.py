"""Checks in CI configuration files: GitHub workflows and GitLab pipelines."""

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import Any

from tightloop.checks.commands import CheckKind, FoundCheck, Origin, Project
from tightloop.checks.files import read_yaml, table_of
from tightloop.checks.runners import checks_in

OTHER_INTERPRETER = 10_000
"""Distance to a version of a different interpreter, such as `pypy3.11`."""
MATRIX_LIMIT = 500
_COMMAND_INPUT = re.compile(r"(?:^|[-_])(?:run|command|script|cmd)(?:$|[-_])")
_EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}", re.DOTALL)
_TOKEN = re.compile(r"\s*('(?:[^']|'')*'|&&|\|\||[!=]=|[!(),]|[\w.\-*\[\]]+)")
_COSMETIC = re.compile(
    r"(?:PIP_|UV_|FORCE_COLOR|NO_COLOR|PY_COLORS|CI$|TERM$|CLICOLOR|NOXFORCEPYTHON|NODE_AUTH|NPM_CONFIG_|GITHUB_|COVERALLS|CODECOV|"
    r"CIBW_)"
)
"""Variables that affect how CI installs, prints or reports, but not the result of a check."""
_CODE_EVENTS = ("push", "pull_request", "pull_request_target", "merge_group", "workflow_call")


def github_checks(project: Project) -> Iterator[FoundCheck]:
    """Yield the checks from jobs that run on push or pull request events.

    Tests for another interpreter version are marked as unused if other tests suit the installed version.
    """
    found = list(_github_workflows(project))
    fits = any(not other and not check.not_used and check.kind is CheckKind.TESTS for other, check in found)
    for other, check in found:
        is_foreign = fits and other and check.kind is CheckKind.TESTS
        yield check.evolve(not_used=check.not_used or f"it only applies to {other}") if is_foreign else check


def _github_workflows(project: Project) -> Iterator[tuple[str, FoundCheck]]:
    for path in sorted(project.texts):
        if re.fullmatch(r"\.github/workflows/[^/]+\.ya?ml", path):
            document = read_yaml(project.texts[path])
            # YAML 1.1 reads the key `on` as true.
            events = document.get("on", document.get(True))  # type: ignore[call-overload]
            names = [events] if isinstance(events, str) else list(events) if isinstance(events, list | dict) else []
            push = events.get("push") if isinstance(events, dict) else None
            only_tags = isinstance(push, dict) and "tags" in push and not {"branches", "paths"} & push.keys()
            runs = [name for name in names if name in _CODE_EVENTS and not (name == "push" and only_tags)]
            yield from _github_jobs(project, path, document, "" if runs else "it does not run when code changes")


def _github_jobs(
    project: Project, path: str, document: Mapping[str, Any], reason: str
) -> Iterator[tuple[str, FoundCheck]]:
    """Yield the checks in a workflow's jobs, each with the interpreter that the job requires.

    The interpreter is "" if the job can use the installed one.
    """
    jobs = table_of(document, "jobs")
    for job in jobs.values():
        if not isinstance(job, dict) or job.get("if") is False:
            continue
        services = job.get("services")
        container = job.get("container")
        image = str(container.get("image", "") if isinstance(container, dict) else container or "")
        for entry in _fitting(project, job):
            values = {"matrix": entry, "env": {**table_of(document, "env"), **table_of(job, "env")}}
            system = str(_fill(job.get("runs-on", ""), values)).lower()
            if ("windows" in system or "macos" in system) and project.system not in system:
                continue
            if isinstance(condition := job.get("if"), str) and _evaluate(condition, values, project) is False:
                continue
            needs = reason or (f"it needs the service {', '.join(services)}" if isinstance(services, dict) else "")
            # The image of an interpreter contains the project's environment. Any other image is a different system.
            if image and not re.search(r"python|node|golang|rust", image):
                needs = needs or f"it needs the container {image}"
            defaults = [table_of(level, "defaults", "run").get("working-directory") for level in (job, document)]
            folder = next((str(each) for each in defaults if each), "")
            steps = job.get("steps", [{"with": job.get("with")}])
            steps = steps if isinstance(steps, list) else []
            other = _other_version(project, steps, values)
            for check in _github_steps(project, path, steps, values, folder):
                yield other, check.evolve(not_used=check.not_used or needs)


def _other_version(project: Project, steps: list[Any], values: Mapping[str, Any]) -> str:
    """Return the interpreter that a job sets up, such as `Python 3.14`.

    Return "" if the installed version matches.
    """
    for step in steps:
        wanted = table_of(step, "with") if isinstance(step, dict) else {}
        for name, value in wanted.items():
            installed = _installed(str(name), project) if str(name) in ("python-version", "node-version") else ""
            version = str(_fill(value, values))
            if installed and not isinstance(value, list) and "$" not in version and _gap(version, installed):
                return f"{'Python' if 'python' in str(name) else 'Node'} {version}"
    return ""


def _github_steps(
    project: Project, path: str, steps: list[Any], values: Mapping[str, Any], folder: str, depth: int = 0
) -> Iterator[FoundCheck]:
    for step in steps:
        if not isinstance(step, dict) or _evaluate(str(step.get("if", "")), values, project) is False:
            continue
        place = posixpath.normpath(str(_fill(step.get("working-directory", folder), values)) or ".")
        place = "" if place == "." or place.startswith(("/", "..", "$")) else place
        variables = {
            str(name): str(_fill(value, values))
            for name, value in {**values["env"], **table_of(step, "env")}.items()
            if not _COSMETIC.match(str(name)) and not isinstance(value, dict | list) and value not in ("", None)
        }
        secret = next((match[1] for value in variables.values() if (match := re.search(r"secrets\.(\w+)", value))), "")
        fixed = tuple((name, value) for name, value in variables.items() if "${{" not in value)
        script = step.get("run")
        # Third-party actions and workflows receive the command as an input.
        inputs = [value for name, value in table_of(step, "with").items() if _COMMAND_INPUT.search(str(name))]
        script = "\n".join(str(value) for value in inputs) if script is None and inputs else script
        uses = str(step.get("uses", ""))
        if uses.startswith("pre-commit/action"):
            script = "pre-commit run --all-files"
        if uses.startswith("./") and depth < 3:
            action = next(
                (
                    project.text(f"{uses[2:]}/{name}", "")
                    for name in ("action.yml", "action.yaml")
                    if project.text(f"{uses[2:]}/{name}", "")
                ),
                "",
            )
            inner = table_of(read_yaml(action), "runs").get("steps")
            yield from _github_steps(project, path, inner if isinstance(inner, list) else [], values, place, depth + 1)
        if isinstance(script, str):
            # A shell would read other expressions as several words.
            text = _EXPRESSION.sub(_placeholder, str(_fill(script, values)))
            for check in checks_in(project, text, Origin(path, place, fixed)):
                # Only if this step uses the secret: a secret of the whole job is meant for another step.
                own = secret if any("secrets." in str(value) for value in table_of(step, "env").values()) else ""
                yield check.evolve(not_used=check.not_used or (f"it needs the secret {own}" if own else ""))


def _fitting(project: Project, job: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the matrix entries of a job that best match this host's system and interpreter."""
    matrix = table_of(job, "strategy", "matrix")
    for name, value in matrix.items():
        # A list that the job computes, such as `${{ fromJson(...) }}`, usually contains the installed version.
        if isinstance(value, str):
            matrix[name] = [version] if (version := _installed(str(name), project)) else []
    ranked = [(_distance(entry, job, project), entry) for entry in _matrix(matrix)]
    best = min((rank for rank, _ in ranked if rank[1] < OTHER_INTERPRETER), default=None)
    return [entry for rank, entry in ranked if rank == best]


def _matrix(matrix: Mapping[str, Any]) -> list[dict[str, Any]]:
    axes = {str(name): values for name, values in matrix.items() if name not in ("include", "exclude")}
    lists = {name: values[:50] for name, values in axes.items() if isinstance(values, list)}
    combinations = product(*lists.values()) if lists else ()
    entries = [
        dict(zip(lists, values, strict=True)) for values, _ in zip(combinations, range(MATRIX_LIMIT), strict=False)
    ]
    for excluded in _tables(matrix.get("exclude")):
        entries = [entry for entry in entries if not all(entry.get(name) == value for name, value in excluded.items())]
    base = [dict(entry) for entry in entries]
    for included in _tables(matrix.get("include")):
        # As GitHub does: an entry is extended if no value of the original matrix changes.
        extended = False
        for entry, original in zip(entries, base, strict=False):
            if all(original.get(name, value) == value for name, value in included.items()):
                entry.update(included)
                extended = True
        if not extended:
            entries.append(dict(included))
    return entries or [{}]


def _tables(value: Any) -> Iterator[dict[str, Any]]:
    yield from (entry for entry in (value if isinstance(value, list) else ()) if isinstance(entry, dict))


def _distance(entry: Mapping[str, Any], job: Mapping[str, Any], project: Project) -> tuple[int, int]:
    """Return the distance between a matrix entry and this host, first by system and then by version.

    (0, 0) is an exact match.
    """
    values = {"matrix": entry, "env": {}}
    system = str(_fill(job.get("runs-on", ""), values)).lower()
    other = int(("windows" in system or "macos" in system) and project.system not in system)
    gaps = []
    for name, value in entry.items():
        installed = _installed(name, project)
        gaps += [_gap(str(value), installed)] if installed else []
    return other, max(gaps, default=0)


def _installed(name: str, project: Project) -> str:
    """Return the installed Python or Node version for a matrix axis, or "" for any other axis."""
    return project.python if "py" in name.lower() else project.node if "node" in name.lower() else ""


def _gap(wanted: str, installed: str) -> int:
    """Return the distance between two versions.

    Different interpreters, such as `pypy3.9`, have the largest distance.
    """
    match = re.fullmatch(r"(?:py|python)?[-=~^>]*v?(\d+)(?:\.?(\d+|x))?(?:\.[\dx*]+)?(?:\.x)?", wanted.strip())
    if match is None:
        return 0 if wanted.strip() in ("3.x", "lts/*", "latest", "*", "3") else OTHER_INTERPRETER
    major, minor = int(match[1]), match[2] or ""
    parts = [int(part) for part in installed.split(".")[:2]]
    if len(parts) == 1 or not minor or minor == "x":
        return abs(major - parts[0]) * 100
    return abs(major - parts[0]) * 1_000 + abs(int(minor) - parts[1])


def _fill(value: Any, values: Mapping[str, Any]) -> Any:
    """Replace `${{ }}` expressions that refer to matrix values or variables. Leave others unchanged."""

    def replace(match: re.Match[str]) -> str:
        scope, _, name = match[1].partition(".")
        known = values.get(scope)
        if isinstance(known, Mapping) and name in known and not isinstance(known[name], dict | list):
            inner = known[name]
            return ("true" if inner else "false") if isinstance(inner, bool) else str(inner)
        # A missing entry of the matrix is empty, as with GitHub.
        return "" if scope == "matrix" and re.fullmatch(r"[\w-]+", name) else match[0]

    if isinstance(value, list):
        return " ".join(str(_fill(part, values)) for part in value)
    return _EXPRESSION.sub(replace, value) if isinstance(value, str) else value


def _placeholder(match: re.Match[str]) -> str:
    return "@@" + re.sub(r"[^\w.]+", "_", match[1]) + "@@"


def _evaluate(condition: str, values: Mapping[str, Any], project: Project) -> bool | None:
    """Evaluate an `if:` condition. Return None if the result is unknown."""
    text = _EXPRESSION.sub(lambda match: match[1], condition).strip()
    if not text:
        return True
    tokens = _TOKEN.findall(text)
    if "".join(tokens).replace(" ", "") != re.sub(r"\s+", "", text):
        return None
    result = _Condition(tokens, values, project).any()
    return result if isinstance(result, bool) or result is None else bool(result)


class _Condition:
    """Evaluator for the tokens of a condition.

    Unknown values are None. A result that depends on an unknown value is also None.
    """

    def __init__(self, tokens: list[str], values: Mapping[str, Any], project: Project) -> None:
        self._tokens, self._values, self._project = tokens[:200], values, project

    def any(self) -> Any:
        results = [self._all()]
        while self._take("||"):
            results.append(self._all())
        return next((result for result in results if result), None if None in results else results[-1])

    def _all(self) -> Any:
        results = [self._compare()]
        while self._take("&&"):
            results.append(self._compare())
        wrong = next((result for result in results if result is not None and not result), None)
        return wrong if wrong is not None else None if None in results else results[-1]

    def _compare(self) -> Any:
        left = self._single()
        for operator in ("==", "!="):
            if self._take(operator):
                right = self._single()
                if left is None or right is None:
                    return None
                return (str(left).lower() == str(right).lower()) is (operator == "==")
        return left

    def _single(self) -> Any:
        if self._take("!"):
            inner = self._single()
            return None if inner is None else not inner
        if self._take("("):
            inner = self.any()
            self._take(")")
            return inner
        word = self._tokens.pop(0) if self._tokens else ""
        if self._take("("):
            return self._call(word)
        if word.startswith("'"):
            return word[1:-1].replace("''", "'")
        if word in ("true", "false"):
            return word == "true"
        if word == "runner.os":
            return {"linux": "Linux", "macos": "macOS"}.get(self._project.system)
        if re.fullmatch(r"\d+(?:\.\d+)?", word):
            return word
        scope, _, name = word.partition(".")
        if scope == "matrix":
            return self._values["matrix"].get(name, "")
        return self._values["env"].get(name) if scope == "env" else None

    def _call(self, name: str) -> Any:
        arguments = []
        while self._tokens and not self._take(")"):
            arguments.append(self.any())
            self._take(",")
        if name in ("failure", "cancelled"):
            return False
        if name in ("always", "success"):
            return True
        if name in ("startsWith", "endsWith", "contains") and len(arguments) == 2 and None not in arguments:
            whole, part = (str(argument).lower() for argument in arguments)
            return {"startsWith": whole.startswith, "endsWith": whole.endswith, "contains": whole.__contains__}[name](
                part
            )
        return None

    def _take(self, token: str) -> bool:
        if self._tokens[:1] != [token]:
            return False
        del self._tokens[0]
        return True


_GITLAB_KEYS = frozenset(
    [
        "default",
        "include",
        "stages",
        "variables",
        "workflow",
        "image",
        "services",
        "before_script",
        "after_script",
        "cache",
        "pages",
        "spec",
    ]
)


def gitlab_checks(project: Project) -> Iterator[FoundCheck]:
    """Yield the checks from GitLab CI jobs that can use the installed interpreter."""
    path = ".gitlab-ci.yml"
    document = read_yaml(project.text(path, ""))
    jobs = {str(name): job for name, job in document.items() if isinstance(job, dict) and name not in _GITLAB_KEYS}
    found: list[tuple[int, FoundCheck]] = []
    for name in jobs:
        if name.startswith("."):
            continue
        job = _extended(jobs, name)
        services = job.get("services", document.get("services"))
        reason = "it needs the service " + _names(services) if services else ""
        if "tags" in _lines(job.get("only")) and "branches" not in _lines(job.get("only")):
            reason = reason or "it only runs for releases"
        for entry in _gitlab_matrix(job):
            variables = {**table_of(document, "variables"), **table_of(job, "variables"), **entry}
            fixed = {str(key): str(value) for key, value in variables.items() if not isinstance(value, dict | list)}
            image = job.get("image") or document.get("image") or table_of(document, "default").get("image") or ""
            image = _shell_fill(str(image.get("name", "") if isinstance(image, dict) else image), fixed)
            gaps = [_gap(match[1], project.python) for match in [re.search(r"python:v?([\d.]+)", image)] if match]
            shown = tuple((key, value) for key, value in fixed.items() if not _COSMETIC.match(key) and "$" not in value)
            script = "\n".join(_lines(job.get("script")))
            for check in checks_in(project, _shell_fill(script, fixed), Origin(path, "", shown)):
                found.append(
                    (gaps[0] if gaps and project.python else 0, check.evolve(not_used=check.not_used or reason))
                )
    best = min((gap for gap, check in found if gap), default=0) if not any(gap == 0 for gap, _ in found) else 0
    yield from (check for gap, check in found if gap in (0, best))


def _extended(jobs: Mapping[str, dict[str, Any]], name: str, depth: int = 0) -> dict[str, Any]:
    job, result = jobs.get(name, {}), dict[str, Any]()
    for base in _lines(job.get("extends")) if depth < 10 else ():
        result |= _extended(jobs, base, depth + 1)
    return result | job


def _gitlab_matrix(job: Mapping[str, Any]) -> list[dict[str, str]]:
    entries: list[dict[str, str]] = []
    for table in _tables(table_of(job, "parallel").get("matrix")):
        lists = {name: value if isinstance(value, list) else [value] for name, value in table.items()}
        entries += [
            {str(name): str(value) for name, value in zip(lists, values, strict=True)}
            for values, _ in zip(product(*lists.values()), range(MATRIX_LIMIT), strict=False)
        ]
    return entries or [{}]


def _lines(value: Any) -> list[str]:
    if isinstance(value, dict):
        return _lines(value.get("refs"))
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [line for part in value for line in _lines(part)]
    return [value] if isinstance(value, str) else []


def _names(services: Any) -> str:
    entries = services if isinstance(services, list) else [services]
    return ", ".join(str(each.get("name", "")) if isinstance(each, dict) else str(each) for each in entries)


def _shell_fill(text: str, variables: Mapping[str, str]) -> str:
    return re.sub(r"\$\{?(\w+)\}?", lambda match: variables.get(match[1], match[0]), text)
