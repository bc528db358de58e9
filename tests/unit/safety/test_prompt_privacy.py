"""What may leave in a prompt: which level holds, and what each level leaves of a briefing."""

import pytest

from activities.model.asking import WITHHELD, apply_privacy, redact_text
from tightloop.episode.check import CheckReport, CheckResult, CheckStatus
from tightloop.episode.planning import Briefing, ReflectCause, ReflectionBriefing, ReflectionRecord
from tightloop.errors import PlannerError, SettingsError
from tightloop.executor.message import PlanRequestMessage
from tightloop.safety.drift import PromptPrivacy
from tightloop.settings import PrivacySettings, parse_settings

CODE = "return balance * margin"
CHECK = CheckResult(
    name="pytest", run="pytest -q", status=CheckStatus.FAILED, exit_code=1, tail=f"E {CODE}", failing=("test_price",)
)
REQUEST = PlanRequestMessage(
    goal="g", outcome="failed", report=f"I wrote {CODE}", changes=("src/price.py (+1 -1)",), questions=(CODE,),
    history=("iteration 1: Fix price -> checks 0/1 -> 0/1",),
)  # fmt: skip
BRIEFING = Briefing(
    goal="make it right for jane@mail.example.org",
    checks=CheckReport(tree="t", results=(CHECK,)),
    plan_request=REQUEST,
    notes=("use the other parser",),
)


@pytest.mark.parametrize(
    ("workspace", "level"),
    [
        ("/srv/open", PromptPrivacy.FULL),
        ("/srv/bank", PromptPrivacy.SUMMARY),
        ("/srv/bank/sub/project", PromptPrivacy.SUMMARY),
        ("/srv/bank/site", PromptPrivacy.REDACTED),
        ("/srv/banker", PromptPrivacy.FULL),
        ("/srv/open/../bank", PromptPrivacy.SUMMARY),
    ],
)
def test_the_longest_folder_that_holds_a_workspace_decides(workspace: str, level: PromptPrivacy) -> None:
    settings = parse_settings(
        "privacy: {projects: {/srv/bank/: {prompts: summary}, /srv/bank/site: {prompts: redacted}}}", {}
    ).privacy
    assert settings.prompt_privacy_of(workspace) is level
    assert settings.strictest is PromptPrivacy.SUMMARY


def test_a_level_that_does_not_exist_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"privacy\.prompts must be one of full, redacted, summary"):
        parse_settings("privacy: {prompts: some}", {})
    with pytest.raises(SettingsError, match=r"privacy\.projects\./a\.prompts must be one of full"):
        parse_settings("privacy: {projects: {/a: {prompts: some}}}", {})


def test_full_changes_nothing() -> None:
    assert apply_privacy(BRIEFING) is BRIEFING
    assert PrivacySettings().strictest is PromptPrivacy.FULL


def test_redacted_takes_out_personal_data_and_leaves_code() -> None:
    sent = apply_privacy(BRIEFING.evolve(prompt_privacy=PromptPrivacy.REDACTED))
    assert sent.goal == "make it right for [pii:email]"
    assert CODE in sent.model_dump_json()


def test_a_summary_keeps_names_and_counts_and_nothing_that_was_written_or_printed() -> None:
    sent = apply_privacy(BRIEFING.evolve(prompt_privacy=PromptPrivacy.SUMMARY))
    assert CODE not in sent.model_dump_json()
    assert sent.checks is not None
    assert (sent.checks.results[0].name, sent.checks.results[0].failing) == ("pytest", ("test_price",))
    assert sent.checks.results[0].tail == WITHHELD
    assert sent.plan_request is not None
    assert sent.plan_request.changes == ("src/price.py (+1 -1)",)
    assert (sent.notes, sent.plan_request.history) == (BRIEFING.notes, REQUEST.history)


def test_the_words_of_a_failure_that_came_back_do_not_leave_in_a_summary() -> None:
    briefing = ReflectionBriefing(
        cause=ReflectCause.REPEATED_FAILURE, detail=CODE, prompt_privacy=PromptPrivacy.SUMMARY
    )
    assert apply_privacy(briefing).detail == WITHHELD


def test_a_reflection_made_from_code_is_not_shown_to_a_model_that_may_see_none() -> None:
    full = ReflectionRecord(diagnosis=CODE, action_items=("x",))
    own = full.evolve(prompt_privacy=PromptPrivacy.SUMMARY)
    assert [full.usable_at(level) for level in PromptPrivacy] == [True, True, False]
    assert own.usable_at(PromptPrivacy.SUMMARY)


def test_a_prompt_whose_author_names_no_level_is_not_sent_where_a_project_is_at_summary() -> None:
    with pytest.raises(PlannerError, match=r"privacy\.prompts is 'summary' for at least one project"):
        redact_text("a prompt", None, strictest=PromptPrivacy.SUMMARY)
    assert redact_text("to a@b.example", None, strictest=PromptPrivacy.REDACTED) == "to [pii:email]"
    assert redact_text("to a@b.example", None, strictest=PromptPrivacy.FULL) == "to a@b.example"
    assert redact_text("to a@b.example", PromptPrivacy.FULL, strictest=PromptPrivacy.SUMMARY) == "to a@b.example"
