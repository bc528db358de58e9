"""Hidden scenarios: what is committed to, what counts, and what their result says about a proof."""

from datetime import UTC, datetime

import pytest
from pydantic import ValidationError

from tightloop.episode.check import Check, ProofRule
from tightloop.episode.control import Amendment
from tightloop.episode.model import EpisodeRequest
from tightloop.episode.proof import Proof, ProofVerdict
from tightloop.episode.proof.verdict import add_scenarios
from tightloop.episode.scenarios import (
    HiddenScenarios,
    ScenarioBaseline,
    ScenarioBundle,
    ScenarioResult,
    proof_level,
    seen_before,
)
from tightloop.errors import InvalidRequestError
from tightloop.run.core import Evidence

NOW = datetime(2026, 3, 1, tzinfo=UTC)
FIRST, SECOND, THIRD = Check(run="true"), Check(run="false"), Check(run="sh hidden.sh")


def bundle(*scenarios: Check, salt: str = "a", **files: str) -> ScenarioBundle:
    return ScenarioBundle(scenarios=scenarios, files=files, salt=salt)


def proof(*, seen_to_fail: bool = True, verdict: ProofVerdict = ProofVerdict.PROVEN) -> Proof:
    evidence = Evidence(files_changed=1, seen_to_fail=seen_to_fail)
    return Proof(
        episode_id="e", base_tree="a", delivered_tree="b", verdict=verdict, evidence=evidence, started=NOW, ended=NOW
    )


def result(passed: int, total: int = 7, failed_before: int = 0) -> ScenarioResult:
    return ScenarioResult(digest="d" * 64, total=total, passed=passed, failed_before=failed_before)


def test_the_same_scenarios_have_another_digest_with_another_salt() -> None:
    assert bundle(FIRST).commitment == bundle(FIRST).commitment
    assert bundle(FIRST).commitment.digest != bundle(FIRST, salt="b").commitment.digest
    assert bundle(FIRST, SECOND).commitment.count == 2
    assert bundle(FIRST, SECOND).commitment.limit_s == FIRST.timeout_s + SECOND.timeout_s


@pytest.mark.parametrize(
    "path", ["", "/etc/passwd", "../x", "a/../../x", "a//b", ".git/config", "a/.GIT/hooks/x", "a\0"]
)
def test_files_stay_inside_the_checkout(path: str) -> None:
    with pytest.raises(ValidationError, match="not a relative path"):
        bundle(FIRST, **{path: ""})


def test_a_file_is_not_below_another_one() -> None:
    with pytest.raises(ValidationError, match="below another file"):
        bundle(FIRST, **{"a": "", "a/b": ""})


@pytest.mark.parametrize(
    "scenario", [Check(run=" "), Check(run="true", timeout_s=0), Check(run="true", timeout_s=float("nan"))]
)
def test_a_scenario_without_a_command_or_with_a_wrong_limit_is_refused(scenario: Check) -> None:
    with pytest.raises(ValidationError):
        bundle(scenario)


def test_what_an_unchanged_scenario_showed_at_the_start_counts_after_an_amendment() -> None:
    baseline = ScenarioBaseline(digest="x", failed=(0, 1), odd=(1,))
    initial = bundle(FIRST, SECOND)
    assert seen_before(bundle(THIRD, SECOND), initial, baseline) == ScenarioBaseline(failed=(1,), odd=(1,))
    assert seen_before(bundle(SECOND, FIRST), initial, baseline) == ScenarioBaseline(failed=(0, 1), odd=(0,))
    # A scenario may use any of the files, so it is another one where they differ.
    assert seen_before(bundle(FIRST, SECOND, **{"a.py": ""}), initial, baseline) == ScenarioBaseline()
    assert seen_before(initial, None, None) == ScenarioBaseline()


def test_failed_scenarios_are_one_finding_that_says_only_how_many() -> None:
    doubted = add_scenarios(proof(), result(5))
    assert doubted.verdict is ProofVerdict.DOUBTED
    assert [(finding.text, finding.evidence) for finding in doubted.findings] == [("2 of 7 hidden scenarios fail", ())]
    assert add_scenarios(proof(), result(0, 1)).findings[0].text == "the hidden scenario fails"
    allowed = add_scenarios(proof(), result(6), (ProofRule.SCENARIOS_FAILED,))
    assert allowed.verdict is ProofVerdict.PROVEN
    assert allowed.findings[0].announced


def test_a_scenario_that_failed_at_the_start_makes_passing_checks_a_proof() -> None:
    unproven = proof(seen_to_fail=False, verdict=ProofVerdict.NOT_PROVEN)
    assert add_scenarios(unproven, result(7)).verdict is ProofVerdict.NOT_PROVEN
    assert add_scenarios(unproven, result(7, failed_before=1)).verdict is ProofVerdict.PROVEN


@pytest.mark.parametrize(
    ("passed", "total", "level"),
    [
        (0, 0, "PROVEN by visible checks"),
        (7, 7, "PROVEN, also by 7 hidden scenarios"),
        (1, 1, "PROVEN, also by 1 hidden scenario"),
        (6, 7, "PROVEN, also by 6 of 7 hidden scenarios"),
        (0, 7, "PROVEN by visible checks"),
    ],
)
def test_the_level_of_a_proof_says_what_proves_the_work(passed: int, total: int, level: str) -> None:
    assert proof_level(result(passed, total)) == level
    assert proof_level(None) == "PROVEN by visible checks"


def test_an_amendment_records_what_it_replaced_and_by_whom() -> None:
    request = EpisodeRequest(goal="g", workspace="/w", definition_of_done=(FIRST,), scenarios=bundle(FIRST).commitment)
    new = bundle(SECOND, THIRD).commitment
    replaced = Amendment(scenarios=new, by="ada").apply_to(request)
    withdrawn = Amendment(scenarios=HiddenScenarios(), by="bob").apply_to(replaced)
    assert replaced.scenarios is not None
    assert withdrawn.scenarios is not None
    assert (replaced.scenarios.digest, withdrawn.scenarios.count) == (new.digest, 0)
    first, second = withdrawn.scenarios.changes
    assert first.startswith("ada replaced 1 scenario (")
    assert second.startswith("bob withdrew 2 scenarios (")
    assert Amendment(goal="other").apply_to(replaced).scenarios == replaced.scenarios


@pytest.mark.parametrize(
    "scenarios", [{"digest": "../x", "count": 1}, {"digest": "a" * 64, "count": 101}, {"count": -1}, {"limit_s": 0}]
)
def test_a_commitment_that_is_none_is_refused(scenarios: dict[str, object]) -> None:
    request = EpisodeRequest(goal="g", workspace="/w", definition_of_done=(FIRST,), scenarios=scenarios)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="tightloop scenarios pack"):
        request.check()
