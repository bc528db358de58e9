"""Rules for code and the models of their input and results.

The rules are a table (`rules.yaml`) that settings can change.
"""

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
    """A file that a change adds, modifies or deletes."""

    path: str
    """Path relative to the root, with slashes as separators."""
    before: str | None
    """Previous content, or None for a new file."""
    after: str
    """New content. Empty if the file was deleted."""


class ProjectFacts(NamedTuple):
    """Facts about a project that do not depend on the change."""

    modules: frozenset[str] = frozenset()
    """Names under which the project's own modules and packages can be imported."""
    distributions: frozenset[str] = frozenset()
    """Declared dependencies as spelled in the project's manifests, including packages from other ecosystems."""
    imports: frozenset[str] = frozenset()
    """Top-level modules imported by the project's unchanged files."""
    installed: Mapping[str, tuple[str, ...]] = {}
    """Distributions that install each top-level module, as in `importlib.metadata.packages_distributions`."""
    allowed: frozenset[str] = frozenset()
    """Fingerprints of the findings that a person allowed."""
    refused: frozenset[str] = frozenset()
    """Fingerprints of the findings that a person refused. They do not lead to another question."""


class CodeReview(NamedTuple):
    """The result of reviewing code before it runs."""

    verdict: Verdict = Verdict.ALLOW
    """The strictest verdict among the findings."""
    findings: tuple[Finding, ...] = ()
    """Findings that have not been allowed yet, with denied ones first.

    The number of findings is bounded, and each one names its layer.
    """

    @property
    def layers(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(finding.layer for finding in self.findings))

    @property
    def message(self) -> str:
        """Required changes, addressed to the model.

        Empty if the code is allowed. The text has at most `MESSAGE_CHARACTERS` characters.
        """
        if not self.findings:
            return ""
        denied = sum(finding.verdict is Verdict.DENY for finding in self.findings)
        lines = [f"Nothing was run: {format_count(len(self.findings), 'finding')} in the changed code."]
        for finding in self.findings:
            who = "rejected by a person" if finding.refused else _WHO[finding.verdict]
            lines.append(f"- {finding.where}: {finding.rule} ({finding.layer}), {who}: {finding.evidence}")
            lines.append(f"  instead: {finding.suggestion}")
        last = "Change the forbidden code" if denied else "Change the code"
        lines.append(
            f"{last} and run the code again. If someone has to approve something, you can also wait for their answer."
        )
        return abridge("\n".join(lines), MESSAGE_CHARACTERS)


_WHO = {Verdict.ALLOW: "allowed", Verdict.ASK: "needs a person's permission", Verdict.DENY: "forbidden"}


class Layer(StrEnum):
    """The layers of review that code must pass before it runs."""

    AST = "ast"
    """Patterns in the syntax tree, such as text that is turned into code, and hidden names."""
    BANDIT = "bandit"
    """The tests of Bandit."""
    DEPENDENCIES = "dependencies"
    """Packages that are new to the project."""
    ACCESS = "access"
    """Access to the network, to other programs and to the system."""
    COMMANDS = "commands"
    """Command rules, applied to code and scripts."""


def _check_regex(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a valid regular expression: {error}") from None
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
    """A rule for code, with its patterns and its verdict. It applies if any of its patterns matches."""

    verdict: VerdictName = Verdict.ASK
    """Verdict of the rule.

    `allow` turns the rule off, `ask` asks a person, and `deny` returns the code to its author.
    """
    layer: Annotated[Layer, _choice(Layer)] = Layer.AST
    """Layer that the rule belongs to.

    `access` is reported once per file. Other layers are reported for every use.
    """
    topic: Annotated[Topic, _choice(Topic)] = Topic.CODE
    """Topic of the rubric that the rule belongs to."""
    suggestion: str = ""
    """Recommended alternative."""
    uses: _Names = ()
    """Full names of modules, functions and classes, such as `os.system` or `socket`.

    Aliases in the file do not matter. Everything inside these names matches too. `*` matches any number of letters.
    """
    calls: _Names = ()
    """Like `uses`, but the names match only if they are called."""
    through: _Names = ()
    """If set, `uses` matches only if one of these creates an argument."""
    computed: _Names = ()
    """Functions and mappings whose lookup key is computed."""
    values: _Names = ()
    """Modules that are passed as values, which hides the functions that are used."""
    attributes: tuple[str, ...] = ()
    """Names of attributes on any object, including strings that are used as arguments or keys."""
    stored: tuple[str, ...] = ()
    """Names of attributes that are assigned or replaced."""
    strings: tuple[_Regex, ...] = ()
    """Regular expressions for string literals, except for docstrings."""
    source: tuple[_Regex, ...] = ()
    """Regular expressions for the whole source text."""
    paths: tuple[str, ...] = ()
    """Path patterns for new and changed files, such as `**/*.pth`."""

    @property
    def is_complete(self) -> bool:
        """True if the rule has at least one pattern."""
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
    """All code rules, and the data for the other layers."""

    rules: dict[str, CodeRule]
    """Rules by name. A rule without patterns belongs to a layer that detects violations in its own way."""
    bandit: dict[str, VerdictName]
    """Verdicts by Bandit severity (`high`, `medium` or `low`) and by Bandit test, such as `B506`.

    The verdict for a test takes precedence.
    """
    bandit_instead: dict[str, str]
    """Recommended alternatives by Bandit test, for tests whose own text does not contain one."""
    dependencies: frozenset[str]
    """Distributions that any project may use."""
    distributions: dict[str, tuple[str, ...]]
    """Possible distributions of a module, if their names differ from the module's name."""
    known: frozenset[str]
    """Well-known distributions. A distribution with a similar name may be an imitation."""
    manifests: dict[str, tuple[str, ...]]
    """Locations of the dependencies in a manifest, by file name. `*` matches any key."""
    may_take: frozenset[str]
    """Names of functions that may receive a module as a value, because they patch, reload or inspect it."""
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
        """Return the rules with changes and additions applied.

        Args:
            rows: rows by name. For a known rule, only the given fields change. For a Bandit test such as
                `B506`, the verdict changes.
            off: names of the rules to disable.
            dependencies: additional distributions that may be used without asking.
            enabled: whether the review is enabled.

        Raises:
            ValueError: a row has an unknown name and no pattern.
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
    """Return the default rules, without any changes from the settings."""
    # The settings import this module; only workers and authors of custom rules need the file.
    from importlib import resources

    import yaml

    text = (resources.files("tightloop.safety.code") / "rules.yaml").read_text("utf-8")
    table: dict[str, Any] = yaml.safe_load(text)
    return CodeRules.model_validate(table)
