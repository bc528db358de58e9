"""What the rules about code look at, and what comes of it."""

from collections.abc import Mapping
from typing import NamedTuple

from tightloop.safety.rubric import Finding, Verdict
from tightloop.value import abridge, counted

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
