"""What the tracker records: shares, thresholds that fit together, and what was spent between two moments."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightloop.cli.start import build_request
from tightloop.episode.model import EpisodeRequest, EpisodeState
from tightloop.episode.progress.classification import ALIGNMENT, LIMITS, TRACKING, Preset
from tightloop.episode.progress.tracking import Spending, Thresholds, Tracking, similarity
from tightloop.errors import InvalidRequestError, SettingsError
from tightloop.safety.rubric import Rubric
from tightloop.settings import AlignmentSettings, TrackingSettings, parse_settings

spendings = st.builds(
    Spending,
    iterations=st.integers(min_value=0, max_value=99),
    tokens=st.integers(min_value=0, max_value=10**9),
    cost_usd=st.floats(min_value=0, max_value=1e4),
    wall_time=st.timedeltas(min_value=timedelta(), max_value=timedelta(days=9)),
)


@given(*(st.integers(min_value=0, max_value=10**6),) * 3)
def test_similarity_is_a_share(lines: int, added: int, removed: int) -> None:
    assert 0.0 <= similarity(lines, added=added, removed=min(removed, lines)) <= 1.0


def test_similarity_is_what_two_trees_have_in_common() -> None:
    assert similarity(100, added=0, removed=0) == 1.0
    assert similarity(0, added=0, removed=0) == 1.0
    assert similarity(100, added=50, removed=100) == 0.0
    assert similarity(100, added=100, removed=0) == pytest.approx(2 / 3)


@given(spendings, spendings)
def test_what_was_spent_between_two_moments_is_never_negative(one: Spending, other: Spending) -> None:
    between = one.since(other)
    assert between.iterations >= 0
    assert between.tokens >= 0
    assert between.cost_usd >= 0
    assert between.wall_time >= timedelta()
    assert one.since(Spending()) == one


def test_default_thresholds_are_those_of_the_seed_and_in_order() -> None:
    assert (Thresholds().high_from, Thresholds().medium_from) == (0.6, 0.4)
    assert Thresholds().problem() == ""


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"high_from": 1.5}, "high_from must be between 0 and 1, got 1.5"),
        ({"medium_from": float("nan")}, "medium_from must be between 0 and 1, got nan"),
        ({"medium_from": 0.7}, "medium_from 0.7 must not be above high_from 0.6"),
        ({"scope_share_medium": 0.9}, "scope_share_medium 0.9 must not be above scope_share_low 0.7"),
        ({"open_items_medium": 6}, "open_items_medium 6 must not be above open_items_low 5"),
        ({"no_change_low": 0}, "no_change_low must be at least 1, got 0"),
        ({"same_error_low": 1}, "same_error_low must be at least 2, got 1"),
        ({"cost_low_factor": float("nan")}, "cost_low_factor must be at least 1, got nan"),
        ({"tokens_per_progress": 0}, "tokens_per_progress must be above 0, or empty for no limit, got 0"),
        ({"hours_per_progress": -1.0}, "hours_per_progress must be above 0, or empty for no limit, got -1"),
    ],
)
def test_thresholds_that_do_not_fit_together_are_named(wrong: dict[str, float], problem: str) -> None:
    thresholds = Thresholds.model_validate(wrong)
    assert thresholds.problem() == problem
    request = EpisodeRequest(goal="g", workspace="/w", definition_of_done=("true",), thresholds=thresholds)
    with pytest.raises(InvalidRequestError, match="thresholds: "):
        request.check()


def test_settings_give_every_threshold() -> None:
    names = set(Thresholds.model_fields)
    assert names <= set(TrackingSettings.model_fields)
    assert TrackingSettings().as_thresholds() == Thresholds()
    changed = TrackingSettings(tokens_per_progress=None, reasons_low=4, hours_per_progress=0.5).as_thresholds()
    assert (changed.tokens_per_progress, changed.reasons_low, changed.hours_per_progress) == (None, 4, 0.5)


def test_presets_are_in_order_and_each_gives_every_value() -> None:
    steps = [TrackingSettings(preset=preset) for preset in Preset]
    for preset, step in zip(Preset, steps, strict=True):
        assert step.as_thresholds().problem() == ""
        assert set(TRACKING[preset]) == {*Thresholds.model_fields, *LIMITS}
        assert set(ALIGNMENT[preset]) == set(Rubric.model_fields) - {"enabled", "allow"}
        assert AlignmentSettings(preset=preset).rubric == Rubric(**ALIGNMENT[preset])
    assert (steps[1], AlignmentSettings(preset=Preset.NORMAL)) == (TrackingSettings(), AlignmentSettings())
    careful, normal, bold = (TRACKING[preset] for preset in Preset)
    falling = {"high_from", "medium_from", "growth_keeps"}
    for name in normal:
        values = (careful[name], normal[name], bold[name])
        assert list(values) == sorted(values, reverse=name in falling), name
    assert all(
        sorted(ALIGNMENT[preset][name] for preset in Preset) == [ALIGNMENT[preset][name] for preset in Preset]
        for name in ALIGNMENT[Preset.NORMAL]
    )


def test_single_values_win_over_the_preset_in_settings_and_requests() -> None:
    settings = parse_settings("tracking: {preset: careful, reasons_low: 7}\nalignment: {preset: bold}", {})
    assert (settings.tracking.reasons_low, settings.tracking.deviation_limit) == (7, 1)
    assert settings.alignment.rubric.deleted_files == ALIGNMENT[Preset.BOLD]["deleted_files"]
    request = EpisodeRequest.model_validate({"preset": "bold", "deviation_limit": 9, "thresholds": {"reasons_low": 7}})
    assert (request.deviation_limit, request.repeat_error_limit) == (9, 6)
    assert (request.thresholds.reasons_low, request.thresholds.same_error_low) == (7, 5)
    assert EpisodeRequest.model_validate(request.model_dump(mode="json")) == request
    with pytest.raises(SettingsError, match=r"tracking\.preset must be one of careful, normal, bold, got 'wild'"):
        parse_settings("tracking: {preset: wild}", {})


def test_preset_of_a_request_wins_over_the_settings() -> None:
    settings = parse_settings("tracking: {preset: careful, no_change_low: 5}", {})
    request = {"goal": "g", "workspace": "/w", "definition_of_done": ["true"]}
    kept = build_request(settings, request)
    assert (kept.preset, kept.deviation_limit, kept.thresholds.no_change_low) == (Preset.CAREFUL, 1, 5)
    normal = build_request(settings, {**request, "thresholds": {"high_from": 0.9}}, {"preset": "normal"})
    assert normal == EpisodeRequest.model_validate({**request, "planner": "auto", "budget": normal.budget})


def test_episode_that_bears_the_same_error_for_long_is_not_called_off_its_course_for_it() -> None:
    assert Thresholds().patient(3) == Thresholds()
    assert Thresholds().patient(1) == Thresholds()
    patient = Thresholds(iterations_per_progress=None).patient(50)
    assert (patient.same_error_low, patient.no_change_low, patient.iterations_per_progress) == (50, 49, None)
    assert Thresholds().patient(50).iterations_per_progress == 51
    assert patient.problem() == ""


def test_records_of_before_are_still_read() -> None:
    reason = {"kind": "ratio", "implies": "LOW", "detail": "0.100 of the tree is unchanged"}
    old = {"probability_class": "LOW", "ratio": 0.1, "reasons": [reason], "files_changed": 3}
    assert Tracking.model_validate(old).memory is None
    assert EpisodeState.model_validate({"trees": ["a"]}).memory is None
    assert Thresholds.model_validate({"high_from": 0.7, "medium_from": 0.2}).reasons_low == Thresholds().reasons_low
