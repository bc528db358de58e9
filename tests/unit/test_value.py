"""Values tolerate what later versions add, documents refuse what is misspelt, clipped text keeps its end."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tightloop.value import Document, Value, clip, shorten
from tightloop.value.scrub import scrub


class Parcel(Value):
    weight: int = 1


class Form(Document):
    name: str = ""


def test_value_ignores_fields_of_a_later_version() -> None:
    assert Parcel.model_validate({"weight": 2, "colour": "red"}) == Parcel(weight=2)


def test_document_refuses_a_misspelt_field() -> None:
    with pytest.raises(ValidationError, match="nmae"):
        Form.model_validate({"nmae": "x"})


def test_values_cannot_be_changed_in_place() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Parcel().weight = 3


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
