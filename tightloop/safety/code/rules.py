"""Rules for code, as a table (`rules.yaml`) that settings can change, with their input and result models."""

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, Field, WithJsonSchema

from tightloop.errors import did_you_mean
from tightloop.safety.rubric import Finding, Topic, Verdict, Violation
from tightloop.value import Document, abridge, format_count

MESSAGE_CHARACTERS = 3_000


class CodeFile(NamedTuple):
    """One changed file."""

    path: str
    """Path relative to the root, with slashes."""
    before: str | None
    """Previous content; None: a new file."""
    after: str
    """New content; empty if the file was deleted."""


class ProjectFacts(NamedTuple):
    """Facts about a project that do not depend on the change."""

    modules: frozenset[str] = frozenset()
    """Importable names of its own modules and packages."""
    distributions: frozenset[str] = frozenset()
    """Declared dependencies as spelled in its manifests, including packages of other ecosystems."""
    imports: frozenset[str] = frozenset()
    """Top-level modules imported by its unchanged files."""
    installed: Mapping[str, tuple[str, ...]] = {}
    """Top-level module -> distributions that install it, as `importlib.metadata.packages_distributions`."""
    allowed: frozenset[str] = frozenset()
    """Fingerprints of findings that a person allowed."""
    refused: frozenset[str] = frozenset()
    """Fingerprints of findings that a person refused; they are not asked again."""


class CodeReview(NamedTuple):
    """Result of reviewing code before it runs."""

    verdict: Verdict = Verdict.ALLOW
    """The strictest verdict of the findings."""
    findings: tuple[Finding, ...] = ()
    """Findings that are not allowed yet, denied ones first; bounded. Each names its layer."""

    @property
    def layers(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(finding.layer for finding in self.findings))

    @property
    def message(self) -> str:
        """Required changes, addressed to the model; at most `MESSAGE_CHARACTERS`, empty if the code is allowed."""
        if not self.findings:
            return ""
        denied = sum(finding.verdict is Verdict.DENY for finding in self.findings)
        lines = [f"Nothing was run: {format_count(len(self.findings), 'finding')} in the changed code."]
        for finding in self.findings:
            who = "refused by a person" if finding.refused else _WHO[finding.verdict]
            lines.append(f"- {finding.where}: {finding.rule} ({finding.layer}), {who}: {finding.evidence}")
            lines.append(f"  instead: {finding.suggestion}")
        last = "Change what is forbidden" if denied else "Change it"
        lines.append(f"{last}, and run it again. If a person has to allow something, you can also wait for the answer.")
        return abridge("\n".join(lines), MESSAGE_CHARACTERS)


_WHO = {Verdict.ALLOW: "allowed", Verdict.ASK: "needs a person's permission", Verdict.DENY: "forbidden"}


class Layer(StrEnum):
    """Review layers that code passes before it runs."""

    AST = "ast"
    """Syntax tree patterns: text that becomes code, hidden names."""
    BANDIT = "bandit"
    """Bandit's tests."""
    DEPENDENCIES = "dependencies"
    """Packages that are new to the project."""
    ACCESS = "access"
    """Access to the network, other programs and the system."""
    COMMANDS = "commands"
    """Command rules, applied to code and scripts."""


def _check_regex(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
    return pattern


def _choice(choices: type[StrEnum]) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "enum": [choice.value for choice in choices]})


_Names = tuple[Annotated[str, Field(pattern=r"^[\w*?\[\]]+(?:\.[\w*?\[\]]+)*$", examples=["os.system"])], ...]
_Regex = Annotated[
    str,
    AfterValidator(_check_regex),
    WithJsonSchema({"type": "string", "pattern": ".", "examples": [r"a regular expression, (?:^|/)\.ssh/"]}),
]
VerdictName = Annotated[Verdict, _choice(Verdict)]


class CodeRule(Document):
    """Rule for code: patterns and verdict. A match of any list is sufficient."""

    verdict: VerdictName = Verdict.ASK
    """`allow` turns the rule off, `ask` asks a person, `deny` sends the code back to its author."""
    layer: Annotated[Layer, _choice(Layer)] = Layer.AST
    """Layer of the rule; `access` is reported once per file, other layers at every use."""
    topic: Annotated[Topic, _choice(Topic)] = Topic.CODE
    """Topic of the rubric."""
    suggestion: str = ""
    """Recommended alternative."""
    uses: _Names = ()
    """Full names of modules, functions and classes, regardless of their alias in the file: `os.system`, `socket`.

    Everything inside them matches too; `*` matches any letters.
    """
    calls: _Names = ()
    """The same, but only if called."""
    through: _Names = ()
    """With these, `uses` matches only if an argument is created by one of them."""
    computed: _Names = ()
    """Functions and mappings with a computed lookup key."""
    values: _Names = ()
    """Modules passed as values, which hides the used functions."""
    attributes: tuple[str, ...] = ()
    """Attribute names on any object, also as a string that is an argument or a key."""
    stored: tuple[str, ...] = ()
    """Names of attributes that are assigned or replaced."""
    strings: tuple[_Regex, ...] = ()
    """Regular expressions for string literals, except docstrings."""
    source: tuple[_Regex, ...] = ()
    """Regular expressions for the whole source."""
    paths: tuple[str, ...] = ()
    """Path patterns of new and changed files, such as `**/*.pth`."""

    @property
    def is_complete(self) -> bool:
        """True if it has any pattern."""
        lists = (
            self.uses,
            self.calls,
            self.computed,
            self.values,
            self.attributes,
            self.stored,
            self.strings,
            self.source,
        )
        return any((*lists, self.paths))


class CodeRules(Document):
    """All rules, with the data of the other layers."""

    rules: dict[str, CodeRule]
    """Rules by name. Rules without patterns belong to a layer with its own detection."""
    bandit: dict[str, VerdictName]
    """Verdicts by Bandit severity (`high`, `medium`, `low`) and by test (`B506`), which takes precedence."""
    bandit_instead: dict[str, str]
    """Bandit test -> recommended alternative, if Bandit's own text has none."""
    dependencies: frozenset[str]
    """Distributions that any project may use."""
    distributions: dict[str, tuple[str, ...]]
    """Module -> possible distributions, if the names differ."""
    known: frozenset[str]
    """Well-known distributions; a similar name may be an imitation."""
    manifests: dict[str, tuple[str, ...]]
    """File name -> locations of dependencies in a manifest; `*` matches any key."""
    may_take: frozenset[str]
    """Names of functions that may take a module as a value, because they patch, reload or inspect it."""
    off: tuple[str, ...] = ()
    """Disabled rules, including command rules."""
    enabled: bool = True

    def violation(self, name: str) -> Violation:
        rule = self.rules[name]
        return Violation(name, rule.topic, rule.verdict, rule.suggestion)

    def is_on(self, name: str) -> bool:
        return self.enabled and name not in self.off and self.rules[name].verdict is not Verdict.ALLOW

    def with_changes(
        self,
        rows: Mapping[str, CodeRule],
        *,
        off: Iterable[str] = (),
        dependencies: Iterable[str] = (),
        enabled: bool = True,
    ) -> "CodeRules":
        """Return the rules with changed and additional rows.

        Args:
            rows: by name; for a known rule only the given fields change, for a Bandit test (`B506`) the verdict.
            off: names of rules to disable.
            dependencies: additional distributions that may be used without asking.
            enabled: False disables the whole review.

        Raises:
            ValueError: an unknown name whose row has no pattern.
        """
        rules, bandit = dict(self.rules), dict(self.bandit)
        for name, row in rows.items():
            if _OF_BANDIT.fullmatch(name):
                bandit[name] = row.verdict
                continue
            # Only given fields: a default must not overwrite the shipped value.
            changes = {field: getattr(row, field) for field in row.model_fields_set}
            if name not in rules and not row.is_complete:
                raise ValueError(f"{name!r} is not a known rule and has no pattern. {did_you_mean(name, rules)}")
            rules[name] = rules[name].evolve(**changes) if name in rules else row
        more = frozenset(map(normal_name, dependencies))
        return self.evolve(
            rules=rules,
            bandit=bandit,
            dependencies=self.dependencies | more,
            off=(*self.off, *off),
            enabled=self.enabled and enabled,
        )


_OF_BANDIT = re.compile(r"B\d{3}")


def normal_name(distribution: str) -> str:
    """Return the normalised name of a distribution (PEP 503)."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


@cache
def default_rules() -> CodeRules:
    """Return the rules as shipped, without changes from the settings."""
    # The settings import this module; only workers and authors of custom rules need the file.
    from importlib import resources

    import yaml

    text = (resources.files("tightloop.safety.code") / "rules.yaml").read_text("utf-8")
    table: dict[str, Any] = yaml.safe_load(text)
    return CodeRules.model_validate(table)
