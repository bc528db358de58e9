"""What the tracker records: shares, thresholds that fit together, and what was spent between two moments."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightloop.cli.start import build_request
from tightloop.episode.model import EpisodeState
from tightloop.episode.progress.tracking import Spending, Thresholds, Tracking, similarity
from tightloop.errors import SettingsError
from tightloop.safety.rubric import Rubric
from tightloop.settings import AlignmentSettings, parse_settings
from tightloop.settings.execution import ALIGNMENT, Preset

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


def test_presets_of_the_rubric_are_in_order() -> None:
    careful, normal, bold = (AlignmentSettings(preset=preset).rubric for preset in Preset)
    assert normal == Rubric()
    assert (
        set(ALIGNMENT[Preset.CAREFUL]) == set(ALIGNMENT[Preset.BOLD]) == set(Rubric.model_fields) - {"enabled", "allow"}
    )
    assert all(getattr(careful, name) < getattr(normal, name) < getattr(bold, name) for name in ALIGNMENT[Preset.BOLD])


def test_single_values_win_over_the_preset() -> None:
    settings = parse_settings("alignment: {preset: bold, suppressions: 1}", {})
    assert (settings.alignment.rubric.suppressions, settings.alignment.rubric.deleted_files) == (1, 50)
    with pytest.raises(SettingsError, match=r"alignment\.preset must be one of careful, normal, bold, got 'wild'"):
        parse_settings("alignment: {preset: wild}", {})


def test_request_wins_over_the_settings() -> None:
    settings = parse_settings("tracking: {pause_after: 7, unattended: true}", {})
    request = {"goal": "g", "workspace": "/w", "definition_of_done": ["true"]}
    kept, own = build_request(settings, request), build_request(settings, request, {"pause_after": 2})
    assert [(one.pause_after, one.unattended) for one in (kept, own)] == [(7, True), (2, True)]


def test_records_of_before_are_still_read() -> None:
    reason = {"kind": "ratio", "implies": "LOW", "detail": "0.100 of the tree is unchanged"}
    old = {"probability_class": "LOW", "ratio": 0.1, "reasons": [reason], "files_changed": 3}
    assert Tracking.model_validate(old).memory is None
    assert EpisodeState.model_validate({"trees": ["a"]}).memory is None
    assert Thresholds.model_validate({"high_from": 0.7, "medium_from": 0.2}).reasons_low == Thresholds().reasons_low
