"""Values tolerate what later versions add, documents refuse what is misspelt, clipped text keeps its end."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tightloop.episode.budget import Budget
from tightloop.episode.control import EpisodeInput
from tightloop.episode.model import EpisodeRequest
from tightloop.errors import InvalidRequestError
from tightloop.loop.model import LoopRequest
from tightloop.value import Document, Value, abridge, clip, first_problem, shorten
from tightloop.value.scrub import scrub


class Parcel(Value):
    weight: int = 1


class Form(Document):
    name: str = ""


def test_value_ignores_fields_of_a_later_version() -> None:
    assert Parcel.model_validate({"weight": 2, "colour": "red"}) == Parcel(weight=2)


def test_abridged_failure_keeps_its_first_words_and_its_last_line() -> None:
    said = abridge("exit code 1: " + "line\n" * 200 + "E   AssertionError: 3 != 4", 100)
    assert len(said) <= 100
    assert said.startswith("exit code 1: line")
    assert said.count("[...]") == 1
    assert said.endswith("line\nE   AssertionError: 3 != 4")
    assert abridge("short", 100) == "short"


class Wide(Document):
    names: tuple[str, ...] = ()
    parcel: Parcel = Parcel()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"names": "a"}, 'names: must be a list, not "a"'),
        ({"names": [None]}, "names.0: must be a string, not null"),
        ({"parcel": {"weight": "heavy"}}, 'parcel.weight: must be a whole number, not "heavy"'),
        ({"parcel": 3}, "parcel: must be fields, not 3"),
        ({"parcle": {"weight": 1}}, "unknown field 'parcle'"),
    ],
)
def test_first_problem_is_told_without_words_of_python(given: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError) as raised:
        Wide.model_validate(given)
    assert first_problem(raised.value) == said


def test_document_refuses_a_misspelt_field() -> None:
    with pytest.raises(ValidationError, match="nmae"):
        Form.model_validate({"nmae": "x"})


def test_values_cannot_be_changed_in_place() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Parcel().weight = 3


def test_copies_share_the_names_of_what_was_set_and_leave_those_of_others_alone() -> None:
    plain = Parcel()
    first, second = plain.evolve(weight=3), Parcel().evolve(weight=4)
    assert first.model_fields_set is second.model_fields_set
    assert first.evolve(**{name: getattr(first, name) for name in Parcel.model_fields}) == first
    assert (plain.model_fields_set, first.model_fields_set) == (set(), {"weight"})


@given(st.text(max_size=60), st.integers(min_value=0, max_value=60))
def test_clipped_text_is_never_longer_than_allowed(text: str, limit: int) -> None:
    assert len(clip(text, limit)) <= limit


@given(st.text("ab \n[.]é", min_size=30, max_size=60), st.integers(min_value=10, max_value=29))
def test_clipped_text_is_marked_and_keeps_its_end(text: str, limit: int) -> None:
    assert clip(text, limit) == "[...] " + text[-(limit - 6) :]


@given(st.text(max_size=20))
def test_short_text_is_not_clipped(text: str) -> None:
    assert clip(text, 20) == text


KEYS = (
    "sk-" + "proj-9f3Kq2Lx71Zb84Tn56Vw",
    "ghp_" + "9f3Kq2Lx71Zb84Tn56Vw0123456789abcdef",
    "-----BEGIN PRIVATE " + "KEY-----\n" + "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n" * 24 + "-----END PRIVATE " + "KEY-----",
    "jane.planted@customer.example.com",
)


@pytest.mark.parametrize("secret", KEYS)
@pytest.mark.parametrize("cut", [shorten, clip])
def test_wherever_a_text_is_cut_no_part_of_a_secret_is_left_for_the_scrubber_to_miss(
    cut: Callable[[str, int], str], secret: str
) -> None:
    text = f"{'word ' * 30}it says {secret} and then {'more ' * 30}"
    pieces = {secret[at : at + 5] for at in range(len(secret) - 5)} - {"-----"}
    limits = range(20, len(text) + 1, max(len(text) // 400, 1))
    shown = [scrub(cut(text, limit)) for limit in limits]
    assert [(limit, text) for limit, text in zip(limits, shown, strict=True) if any(p in text for p in pieces)] == []
    assert any("[secret:" in text or "[pii:" in text for text in shown)
    assert all(len(cut(text, limit)) <= limit for limit in limits)


@pytest.mark.parametrize(
    "read", [EpisodeRequest.model_validate, EpisodeInput.model_validate, LoopRequest.model_validate]
)
def test_executor_is_named_by_a_text_and_durations_as_people_write_them(read: Callable[[Any], Any]) -> None:
    fields = {"goal": "g", "workspace": "/w", "executor": "codex", "budget": {"max_wall_time": "2h"}}
    request = read({**fields, "pause_timeout": "3d"})
    assert request.executor.name == "codex"
    assert request.pause_timeout == timedelta(days=3)


@pytest.mark.parametrize("written", ["2h", "120m", "120 min", "7200s", 7200, "02:00:00", "PT2H"])
def test_every_usual_form_of_a_duration_is_read(written: object) -> None:
    assert Budget.model_validate({"max_wall_time": written}).max_wall_time == timedelta(hours=2)


def test_what_is_not_a_duration_is_refused_with_a_right_one() -> None:
    with pytest.raises(InvalidRequestError, match="max_wall_time: must be a duration such as 2h, 90m or 5400"):
        Budget(max_wall_time="soon")  # type: ignore[arg-type]
