"""Hidden scenarios: checks written by an owner or a model that run only in the proof and that nobody else sees.

Requests, histories and proofs contain only a commitment to them (`HiddenScenarios`) and counts, never their content.
"""

import hashlib
import json
import math
import re
from base64 import b64decode
from collections.abc import Iterable
from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from tightloop.episode.check import Check
from tightloop.value import CallerInput, Document, Value, format_count, shorten

SCENARIOS_LIMIT = 100
FILES_LIMIT = 1_000
CONTENT_CHARACTERS = 16_000_000
"""Maximum size of a bundle's files, base64."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
_CHANGES_KEPT = 20
PRINTS_CHARACTERS = 200
DRAFTS_LIMIT = 20
DRAFT_TIMEOUT_S = 60.0
"""Time limit of a drafted scenario."""
DRAFT_ROUNDS = 2
"""Number of times to tell the planner about failures if only drafted scenarios fail. Then the owner decides."""
_LONGEST_S = 86_400.0


class HiddenScenarios(CallerInput):
    """Commitment to hidden scenarios, as printed by `tightloop scenarios pack`."""

    digest: str = ""
    """SHA-256 of the scenarios and a random salt, hexadecimal. The salt prevents anyone from guessing the content."""
    count: int = 0
    """Number of scenarios. In an amendment, 0 withdraws all of them."""
    limit_s: float = 600.0
    """Sum of the scenarios' time limits in seconds."""
    changes: tuple[str, ...] = ()
    """Earlier commitments, each with the person who replaced it, oldest first. Set by tightloop."""
    withdrawn: tuple[int, ...] = ()
    """Numbers of the withdrawn drafted scenarios, starting at 0. Set by tightloop."""

    @property
    def problem(self) -> str:
        """Error in the commitment, or "" if it is valid."""
        if self.count and not _DIGEST.fullmatch(self.digest):
            return f"scenarios.digest must be 64 hexadecimal digits, got {shorten(self.digest, 80)!r}. {_PACK}"
        if not 0 <= self.count <= SCENARIOS_LIMIT:
            return f"scenarios.count must be between 0 and {SCENARIOS_LIMIT}, got {self.count}. {_PACK}"
        if not 0 < self.limit_s <= SCENARIOS_LIMIT * _LONGEST_S:
            return f"scenarios.limit_s must be a positive number of seconds, got {self.limit_s}. {_PACK}"
        return ""

    def replace_by(self, new: Self, by: str) -> Self:
        """Return the new commitment, with an entry that records which commitment it replaces."""
        was = f"{format_count(self.count, 'scenario')} ({self.digest[:12]})" if self.count else "no scenarios"
        line = f"{shorten(by, 80)} replaced {was}" if new.count else f"{shorten(by, 80)} withdrew {was}"
        return new.evolve(changes=(*self.changes, line)[-_CHANGES_KEPT:])

    def withdraw(self, reason: str, numbers: Iterable[int] | None = None) -> Self:
        """Withdraw some or all of the drafted scenarios, and record the reason."""
        gone = set(range(self.count)) if numbers is None else set(numbers)
        more = len(gone.difference(self.withdrawn))
        if not more:
            return self
        line = f"{shorten(reason, 120)}: {format_count(more, 'drafted scenario')} withdrawn ({self.digest[:12]})"
        return self.evolve(
            withdrawn=tuple(sorted(gone.union(self.withdrawn))), changes=(*self.changes, line)[-_CHANGES_KEPT:]
        )


_PACK = "Use the values that this command prints: tightloop scenarios pack FOLDER --json"


class Scenario(Check):
    """A hidden scenario.

    The scenario passes if its command exits with 0. If `prints` is set, the last line of the output must
    also match it.
    """

    prints: str = ""
    """Expected last line on standard output. Code under test never sees it."""
    keep: bool = False
    """For drafted scenarios: True if the initial tree already does this and must continue to do it."""

    @property
    def command(self) -> Check:
        """Command to run.

        If the output matters, the shell discards standard error, because it may contain warnings.
        """
        run = f"exec 2> /dev/null\n{self.run}" if self.prints else self.run
        return Check(run=run, name=self.name, timeout_s=self.timeout_s)

    def accepts_output(self, output: str) -> bool:
        """Return True if the last line of the output matches the expected line."""
        return not self.prints or last_line(output) == self.prints.strip()


def last_line(output: str) -> str:
    """Return the last line that is not blank, without surrounding spaces."""
    return next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "")


class ScenarioBundle(Document):
    """Hidden scenarios and their files.

    The content is covered by a digest and stored in an encrypted bundle.
    """

    scenarios: Annotated[tuple[Scenario, ...], Field(min_length=1, max_length=SCENARIOS_LIMIT)]
    files: Annotated[dict[str, str], Field(max_length=FILES_LIMIT)] = Field(default_factory=dict)
    """Files to write into the checkout, base64, by relative path. They replace delivered files with the same path."""
    salt: str = ""

    @field_validator("scenarios")
    @classmethod
    def _check_scenarios(cls, scenarios: tuple[Scenario, ...]) -> tuple[Scenario, ...]:
        for scenario in scenarios:
            if scenario.problem:
                raise ValueError(scenario.problem)
            if scenario.known_failures:
                raise ValueError("a scenario cannot have known_failures, because its output is not read")
            if len(scenario.prints) > PRINTS_CHARACTERS or len(scenario.prints.strip().splitlines()) > 1:
                raise ValueError(f"prints must be one line of at most {PRINTS_CHARACTERS} characters")
            # NaN fails this comparison too.
            if not 0 < scenario.timeout_s <= _LONGEST_S:
                raise ValueError(f"timeout_s must be between 0 and {_LONGEST_S:g}, got {scenario.timeout_s}")
        return scenarios

    @model_validator(mode="after")
    def _check_files(self) -> Self:
        for path in self.files:
            parts = path.split("/")
            if not path or "\0" in path or any(part in ("", ".", "..") or part.lower() == ".git" for part in parts):
                raise ValueError(f"files: {path!r} is not a relative path inside the checkout")
            if any("/".join(parts[:end]) in self.files for end in range(1, len(parts))):
                raise ValueError(f"files: a parent folder of {path!r} is also listed as a file")
        if sum(map(len, self.files.values())) > CONTENT_CHARACTERS:
            raise ValueError(f"the files are larger than {CONTENT_CHARACTERS * 3 // 4_000_000} MB")
        return self

    @property
    def content(self) -> bytes:
        """Bytes that the digest covers. Equal bundles have equal bytes."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True).encode()

    @property
    def commitment(self) -> HiddenScenarios:
        """Commitment to this bundle."""
        limit_s = math.fsum(scenario.timeout_s for scenario in self.scenarios)
        digest = hashlib.sha256(self.content).hexdigest()
        return HiddenScenarios(digest=digest, count=len(self.scenarios), limit_s=limit_s)

    @property
    def file_contents(self) -> dict[str, bytes]:
        """Decoded files by path."""
        return {path: b64decode(content) for path, content in self.files.items()}


class ScenarioBaseline(Value):
    """Results of hidden scenarios on the initial tree. Scenarios are numbered from 0."""

    digest: str = ""
    failed: tuple[int, ...] = ()
    odd: tuple[int, ...] = ()
    """Scenarios in which a program ended early, or a named test runner did not start, even on the initial tree."""


def seen_before(
    current: ScenarioBundle, initial: ScenarioBundle | None, baseline: ScenarioBaseline | None
) -> ScenarioBaseline:
    """Return the initial results that still apply to the current scenarios.

    A scenario that was amended has no initial result. If the bundle's files have changed, none of the
    initial results apply.
    """
    if initial is None or baseline is None or initial.files != current.files:
        return ScenarioBaseline()
    old = {scenario: number for number, scenario in enumerate(initial.scenarios)}
    numbers = [(number, old.get(scenario)) for number, scenario in enumerate(current.scenarios)]
    return ScenarioBaseline(
        failed=tuple(number for number, before in numbers if before in baseline.failed),
        odd=tuple(number for number, before in numbers if before in baseline.odd),
    )


class ScenarioResult(Value):
    """Result of running hidden scenarios on the delivered tree."""

    digest: str = ""
    """Digest of the owner's scenarios. Empty if there are none."""
    total: int = 0
    """Number of scenarios, including drafted ones."""
    passed: int = 0
    failed_before: int = 0
    """Number of passed scenarios that failed on the initial tree."""
    drafted: int = 0
    """Number of scenarios that a model drafted."""
    drafted_passed: int = 0
    drafts_digest: str = ""
    """Digest of the drafted scenarios, including withdrawn ones."""
    changes: tuple[str, ...] = ()
    """Earlier commitments; see `HiddenScenarios.changes`."""

    @property
    def failed(self) -> int:
        """Number of scenarios that did not pass."""
        return self.total - self.passed

    @property
    def is_drafts_only(self) -> bool:
        """True if some scenarios failed and all of the failed scenarios were drafted."""
        return 0 < self.failed == self.drafted - self.drafted_passed

    @property
    def title(self) -> str:
        """Sentence about the failed scenarios. Only the owner of the scenarios sees more."""
        if self.total == 1:
            return "the hidden scenario fails"
        return f"{self.failed} of {self.total} hidden scenarios {'fails' if self.failed == 1 else 'fail'}"

    def with_drafts(self, drafts: HiddenScenarios, outcomes: Iterable[tuple[Scenario, bool]]) -> Self:
        """Add the results of drafted scenarios.

        Each outcome is a scenario and a flag that is True if the scenario passed.
        """
        run = list(outcomes)
        passed = [scenario for scenario, is_passed in run if is_passed]
        return self.evolve(
            total=self.total + len(run),
            passed=self.passed + len(passed),
            failed_before=self.failed_before + sum(not scenario.keep for scenario in passed),
            drafted=len(run),
            drafted_passed=len(passed),
            drafts_digest=drafts.digest,
            changes=(*self.changes, *drafts.changes),
        )


def and_scenarios(passed: int, drafted: int = 0) -> str:
    """Return a phrase such as `, also 7 hidden scenarios (5 drafted)`.

    The phrase is appended to a sentence about passing checks.
    """
    return f", also {_format_scenarios(passed, drafted)}" if passed else ""


def proof_level(result: ScenarioResult | None) -> str:
    """Return the level of a proof without findings.

    For example: `PROVEN, also by 7 hidden scenarios (5 drafted)`.
    """
    if result is None or not result.passed:
        return "PROVEN by visible checks"
    of_all = f"{result.passed} of " if result.failed else ""
    return f"PROVEN, also by {of_all}{_format_scenarios(result.total, result.drafted)}"


def _format_scenarios(count: int, drafted: int) -> str:
    return format_count(count, "hidden scenario") + (f" ({drafted} drafted)" if drafted else "")
