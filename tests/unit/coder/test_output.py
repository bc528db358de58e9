"""What a model is shown of a long result."""

from hypothesis import given
from hypothesis import strategies as st

from tightloop.coder.model import HEAD_CHARACTERS, TAIL_CHARACTERS, is_long, keep_ends, number_lines, result_name

SHA = "ab12" * 16


def test_head_and_tail_are_kept_and_the_rest_is_named() -> None:
    text = "h" * HEAD_CHARACTERS + "m" * 77 + "t" * TAIL_CHARACTERS
    kept = keep_ends(text, SHA)
    assert kept.startswith(
        "h" * HEAD_CHARACTERS + "\n[... 77 characters omitted; to read everything: read_file result:ab12ab12ab12"
    )
    assert kept.endswith("...]\n" + "t" * TAIL_CHARACTERS)


def test_one_character_is_counted_as_one() -> None:
    assert "1 character omitted" in keep_ends("x" * (HEAD_CHARACTERS + TAIL_CHARACTERS + 1), SHA)


@given(st.integers(0, HEAD_CHARACTERS + TAIL_CHARACTERS))
def test_what_is_short_stays_as_it_is(size: int) -> None:
    assert not is_long("x" * size)
    assert keep_ends("x" * size, SHA) == "x" * size


def test_lines_are_numbered_in_one_column_and_cut() -> None:
    assert number_lines(["a", "b"], 9) == " 9\ta\n10\tb"
    assert number_lines(["x" * 501]).endswith(" [... 1 more]")
    assert result_name(SHA) == "result:ab12ab12ab12"
