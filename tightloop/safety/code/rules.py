"""The rules about code, as a table (`rules.yaml`) that settings may change; what they look at, and what comes of it."""

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, Field, WithJsonSchema

from tightloop.errors import did_you_mean
from tightloop.safety.rubric import Finding, Topic, Verdict, Violation
from tightloop.value import Document, abridge, counted

MESSAGE_CHARACTERS = 3_000


class CodeFile(NamedTuple):
    """One changed file."""

    path: str
    """Relative to the root, with slashes."""
    before: str | None
    """None: there was no such file."""
    after: str
    """Empty where the file was deleted."""


class ProjectFacts(NamedTuple):
    """What is known of a project apart from the change."""

    modules: frozenset[str] = frozenset()
    """Names that its own modules and packages are imported by."""
    distributions: frozenset[str] = frozenset()
    """Distributions that it depends on, as its manifests spell them, and names of packages of other ecosystems."""
    imports: frozenset[str] = frozenset()
    """Top-level modules that its unchanged files import."""
    installed: Mapping[str, tuple[str, ...]] = {}
    """Distributions by the top-level module that they install, as `importlib.metadata.packages_distributions`."""
    allowed: frozenset[str] = frozenset()
    """Fingerprints of findings that a person allowed."""
    refused: frozenset[str] = frozenset()
    """Fingerprints of findings that a person refused: they are not asked about again."""


class CodeReview(NamedTuple):
    """What came of reviewing code before it is run."""

    verdict: Verdict = Verdict.ALLOW
    """The strictest of the findings."""
    findings: tuple[Finding, ...] = ()
    """Those that nobody has allowed, the forbidden ones first; bounded. Each names its layer."""

    @property
    def layers(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(finding.layer for finding in self.findings))

    @property
    def message(self) -> str:
        """What to change, for the model that wrote the code; at most `MESSAGE_CHARACTERS`, empty if all is allowed."""
        if not self.findings:
            return ""
        denied = sum(finding.verdict is Verdict.DENY for finding in self.findings)
        lines = [f"Nothing was run: {counted(len(self.findings), 'finding')} in the changed code."]
        for finding in self.findings:
            who = "refused by a person" if finding.refused else _WHO[finding.verdict]
            lines.append(f"- {finding.where}: {finding.rule} ({finding.layer}), {who}: {finding.evidence}")
            lines.append(f"  instead: {finding.suggestion}")
        last = "Change what is forbidden" if denied else "Change it"
        lines.append(f"{last}, and run it again. What a person has to allow can also wait for the answer.")
        return abridge("\n".join(lines), MESSAGE_CHARACTERS)


_WHO = {Verdict.ALLOW: "allowed", Verdict.ASK: "a person has to allow it", Verdict.DENY: "forbidden"}


class Layer(StrEnum):
    """The layers that code passes before it is run."""

    AST = "ast"
    """Patterns over the syntax tree: text that becomes code, names that are hidden."""
    BANDIT = "bandit"
    """The tests of Bandit."""
    DEPENDENCIES = "dependencies"
    """Packages that the project did not use before."""
    ACCESS = "access"
    """Network, other programs and the system."""
    COMMANDS = "commands"
    """Rules about shell commands, for those in code and scripts."""


def _compiled(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
    return pattern


def _choice(words: type[StrEnum]) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "enum": [word.value for word in words]})


_Names = tuple[Annotated[str, Field(pattern=r"^[\w*?\[\]]+(?:\.[\w*?\[\]]+)*$", examples=["os.system"])], ...]
_Regex = Annotated[
    str,
    AfterValidator(_compiled),
    WithJsonSchema({"type": "string", "pattern": ".", "examples": [r"a regular expression, (?:^|/)\.ssh/"]}),
]
VerdictName = Annotated[Verdict, _choice(Verdict)]


class CodeRule(Document):
    """A rule about code: what it looks for, and what follows. One thing of one list is enough."""

    verdict: VerdictName = Verdict.ASK
    """`allow` turns the rule off, `ask` asks a person, `deny` sends the code back to whoever wrote it."""
    layer: Annotated[Layer, _choice(Layer)] = Layer.AST
    """A use of `access` is reported once for each file, others wherever they are."""
    topic: Annotated[Topic, _choice(Topic)] = Topic.CODE
    """The question of the rubric that it belongs to."""
    suggestion: str = ""
    """What to write instead."""
    uses: _Names = ()
    """Full names of modules, functions and classes, whatever they are called in the file: `os.system`, `socket`.
    What is inside of them counts too; `*` stands for any letters."""
    calls: _Names = ()
    """The same, only where it is called."""
    through: _Names = ()
    """With these, `uses` counts only where an argument is made by one of them."""
    computed: _Names = ()
    """Functions and mappings, where the name that is looked up in them is computed."""
    values: _Names = ()
    """Modules that are passed on as values, so that nobody sees what is used of them."""
    attributes: tuple[str, ...] = ()
    """Names of attributes of anything, also as a text that is an argument or a key."""
    stored: tuple[str, ...] = ()
    """Names of attributes that are assigned or replaced."""
    strings: tuple[_Regex, ...] = ()
    """Regular expressions for texts in the code; not for documentation."""
    source: tuple[_Regex, ...] = ()
    """Regular expressions for the source as a whole."""
    paths: tuple[str, ...] = ()
    """Patterns for paths of new and changed files, such as `**/*.pth`."""

    @property
    def is_complete(self) -> bool:
        """Whether it looks for something."""
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
    """All rules, and what else the layers need to know."""

    rules: dict[str, CodeRule]
    """By name. Those without patterns belong to a layer that looks for itself."""
    bandit: dict[str, VerdictName]
    """Verdicts by Bandit's severities (`high`, `medium`, `low`) and by its tests (`B506`), which win."""
    bandit_instead: dict[str, str]
    """Of tests of Bandit: what to write instead, where its own text does not say it."""
    dependencies: frozenset[str]
    """Distributions that any project may use."""
    distributions: dict[str, tuple[str, ...]]
    """Distributions by the module that they install, where the names differ; any of them may be meant."""
    known: frozenset[str]
    """Well-known distributions: a name that is nearly one of them may be meant to be taken for it."""
    manifests: dict[str, tuple[str, ...]]
    """Places of dependencies in manifests, by the name of the file; `*` stands for any key."""
    may_take: frozenset[str]
    """Names of functions that may take a module as a value: they patch, reload or inspect it."""
    off: tuple[str, ...] = ()
    """Rules that are off, those about commands included."""
    enabled: bool = True

    def violation(self, name: str) -> Violation:
        rule = self.rules[name]
        return Violation(name, rule.topic, rule.verdict, rule.suggestion)

    def is_on(self, name: str) -> bool:
        return self.enabled and name not in self.off and self.rules[name].verdict is not Verdict.ALLOW

    def changed(
        self,
        rows: Mapping[str, CodeRule],
        *,
        off: Iterable[str] = (),
        dependencies: Iterable[str] = (),
        enabled: bool = True,
    ) -> "CodeRules":
        """Return the rules with changed and additional rows.

        Args:
            rows: by name; of a known rule only the fields that are given are changed, of a test of Bandit (`B506`)
                the verdict.
            off: names of rules that are off.
            dependencies: distributions that may be used without a question, besides those of the table.
            enabled: look for anything at all.

        Raises:
            ValueError: a name is not known and the row has no pattern.
        """
        rules, bandit = dict(self.rules), dict(self.bandit)
        for name, row in rows.items():
            if _OF_BANDIT.fullmatch(name):
                bandit[name] = row.verdict
                continue
            given = {field: getattr(row, field) for field in row.model_fields_set}
            if name not in rules and not row.is_complete:
                raise ValueError(f"{name!r} is not a rule, and it looks for nothing. {did_you_mean(name, rules)}")
            rules[name] = rules[name].evolve(**given) if name in rules else row
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
    """Return the name of a distribution as package indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


@cache
def default_rules() -> CodeRules:
    """Return the rules as they are delivered."""
    # The settings import this module; only workers, and who writes rules of their own, read the file.
    from importlib import resources

    import yaml

    text = (resources.files("tightloop.safety.code") / "rules.yaml").read_text("utf-8")
    table: dict[str, Any] = yaml.safe_load(text)
    return CodeRules.model_validate(table)
