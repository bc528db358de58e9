"""Hidden scenarios: what is committed to, what counts, and what their result says about a proof."""

from datetime import UTC, datetime

import pytest
from pydantic import ValidationError

from tightloop.episode.check import ProofRule
from tightloop.episode.control import Amendment
from tightloop.episode.decisions import about_drafts, make_question
from tightloop.episode.model import EpisodeRequest
from tightloop.episode.proof import Proof, ProofVerdict
from tightloop.episode.proof.verdict import add_scenarios
from tightloop.episode.scenarios import (
    HiddenScenarios,
    Scenario,
    ScenarioBaseline,
    ScenarioBundle,
    ScenarioResult,
    and_scenarios,
    proof_level,
    seen_before,
)
from tightloop.errors import InvalidRequestError
from tightloop.run.core import Evidence
from tightloop.run.question import OptionGroup, QuestionKind

NOW = datetime(2026, 3, 1, tzinfo=UTC)
FIRST, SECOND, THIRD = Scenario(run="true"), Scenario(run="false"), Scenario(run="sh hidden.sh")


def bundle(*scenarios: Scenario, salt: str = "a", **files: str) -> ScenarioBundle:
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
    with pytest.raises(ValidationError, match=r"a parent folder of .* is also listed as a file"):
        bundle(FIRST, **{"a": "", "a/b": ""})


@pytest.mark.parametrize(
    "scenario",
    [
        Scenario(run=" "),
        Scenario(run="true", timeout_s=0),
        Scenario(run="true", timeout_s=float("nan")),
        Scenario(run="true", prints="a\nb"),
    ],
)
def test_a_scenario_without_a_command_or_with_wrong_values_is_refused(scenario: Scenario) -> None:
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


DRAFTS = HiddenScenarios(digest="d" * 64, count=3)
NUMBER, WORD, KEPT = (
    Scenario(run="a", prints="42"),
    Scenario(run="b", prints=" yes "),
    Scenario(run="c", prints="1", keep=True),
)


@pytest.mark.parametrize(
    ("output", "is_printed"),
    [("42\n", True), ("debug\n 42 \n\n", True), ("42\nmore\n", False), ("142\n", False), ("", False)],
)
def test_the_last_line_counts(output: str, is_printed: bool) -> None:
    assert NUMBER.accepts_output(output) == is_printed
    assert FIRST.accepts_output(output), "without an expected line, the output does not count"


def test_the_expected_line_is_not_part_of_the_command() -> None:
    assert "42" not in NUMBER.command.model_dump_json()
    assert NUMBER.command.run.endswith("\na")
    assert FIRST.command.run == "true"
    assert WORD.accepts_output("yes\n")


def test_drafts_are_counted_beside_the_scenarios_of_the_owner() -> None:
    both = result(2, 2).with_drafts(DRAFTS, [(NUMBER, True), (WORD, False), (KEPT, True)])
    assert (both.total, both.passed, both.drafted, both.drafted_passed, both.failed_before) == (5, 4, 3, 2, 1)
    assert both.is_drafts_only
    assert both.title == "1 of 5 hidden scenarios fails"
    assert not result(1, 2).with_drafts(DRAFTS, [(NUMBER, True)]).is_drafts_only
    passed = result(2, 2).with_drafts(DRAFTS, [(NUMBER, True)] * 5)
    assert not passed.is_drafts_only
    assert proof_level(passed) == "PROVEN, also by 7 hidden scenarios (5 drafted)"
    assert and_scenarios(7, 5) == ", also 7 hidden scenarios (5 drafted)"
    evidence = add_scenarios(proof(), passed).evidence
    assert (evidence.scenarios, evidence.drafted) == (7, 5)


def test_drafts_are_withdrawn_by_number_or_all_of_them() -> None:
    one = DRAFTS.withdraw("ada decided that the scenarios are wrong", (1,))
    assert (one.withdrawn, one.count, one.digest) == ((1,), 3, DRAFTS.digest)
    assert one.withdraw("again", (1,)) == one
    every = one.withdraw("bob changed the goal")
    assert every.withdrawn == (0, 1, 2)
    assert every.changes == (
        "ada decided that the scenarios are wrong: 1 drafted scenario withdrawn (dddddddddddd)",
        "bob changed the goal: 2 drafted scenarios withdrawn (dddddddddddd)",
    )


def test_the_question_about_drafts_quotes_none_and_keeps_the_order_of_options() -> None:
    question = about_drafts(make_question(QuestionKind.PROOF, "1 of 5 fails", evidence=("x",)), (0, 2), "episode-1")
    assert question.evidence[0] == "a model drafted the failing scenarios: 1, 3"
    assert "tightloop scenarios show episode-1" in question.evidence[1]
    assert [option.name for option in question.options] == ["work", "withdraw", "accept", "cancel"]
    groups = [list(OptionGroup).index(option.group) for option in question.options]
    assert groups == sorted(groups)
    assert question.default == "work"


def test_drafting_is_bounded_and_an_amendment_ends_it() -> None:
    request = EpisodeRequest(goal="g", workspace="/w", definition_of_done=("true",), drafts=5)  # type: ignore[arg-type]
    assert Amendment(no_drafts=True).apply_to(request).drafts == 0
    assert not Amendment(no_drafts=True).empty
    for wrong in (-1, 21):
        with pytest.raises(InvalidRequestError, match="drafts must be between"):
            request.evolve(drafts=wrong).check()
