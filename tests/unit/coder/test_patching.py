"""Search and replace: one exact place or nothing, never by similarity."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tightloop.coder.patching import PatchedText, PatchFailure, patch

FILE = (
    "def f():\n    return 1\n\n\nclass C:\n    def g(self):\n        if self:\n            return 2\n        return 3\n"
)
LINES = st.lists(st.text("ab \t(é\x0c", max_size=6), min_size=1, max_size=8).map("\n".join)


def patched(text: str, old: str, new: str) -> PatchedText:
    found = patch(text, old, new)
    assert isinstance(found, PatchedText), found
    return found


def missed(text: str, old: str, new: str) -> PatchFailure:
    found = patch(text, old, new)
    assert isinstance(found, PatchFailure), found
    return found


def test_one_place_is_replaced_and_its_line_is_told() -> None:
    found = patched(FILE, "        return 3\n", "        return 4\n        # done\n")
    assert found.text == FILE.replace("return 3\n", "return 4\n        # done\n")
    assert (found.line, found.how) == (9, "")


def test_a_part_of_a_line_is_replaced() -> None:
    assert patched("a = f(1) + g(2)\n", "f(1)", "f(10)").text == "a = f(10) + g(2)\n"


def test_several_places_are_told_by_their_lines() -> None:
    found = missed("x = 1\ny = 2\nx = 1\n", "x = 1", "x = 2")
    assert found.reason.startswith("`old` occurs 2 times, at lines 1, 3. ")


def test_overlapping_places_are_several() -> None:
    assert "at lines 1, 1." in missed("aaa", "aa", "b").reason


def test_blanks_at_line_ends_do_not_matter() -> None:
    found = patched("a  \nb\t\nc\n", "a\nb\n", "A\nB\n")
    assert (found.text, found.how) == ("A\nB\nc\n", "without trailing whitespace")


def test_lines_of_old_with_blanks_at_their_ends_are_found() -> None:
    assert patched("a\nb\nc\n", "a \nb  \n", "A\nB\n").text == "A\nB\nc\n"


@pytest.mark.parametrize("shift", ["", "    ", "      ", "\t"])
def test_a_uniform_shift_of_all_lines_is_carried_over(shift: str) -> None:
    text = "class C:\n    def f(self):\n        return 1\n    x = 1\n"
    old = f"{shift}def f(self):\n{shift}    return 1\n"
    new = f"{shift}def f(self):\n\n{shift}    if self:\n{shift}        return 2\n"
    if shift in ("", "      "):
        wanted = "class C:\n    def f(self):\n\n        if self:\n            return 2\n    x = 1\n"
        assert patched(text, old, new).text == wanted
    elif shift == "\t":
        assert "cannot find `old` in the file" in missed(text, old, new).reason


def test_a_shift_that_is_not_uniform_is_a_miss() -> None:
    assert isinstance(missed("  a\n    b\n", "a\nb\n", "c\nd\n"), PatchFailure)


def test_new_lines_that_are_less_indented_than_the_shift_are_a_miss() -> None:
    assert isinstance(missed("a\nb\n", "    a\n    b\n", "    a\n  c\n"), PatchFailure)


def test_what_is_only_similar_is_never_replaced() -> None:
    found = missed(FILE, "def f(x):\n    return 1\n", "")
    assert "\n1\tdef f():\n2\t    return 1\n" in found.reason


def test_a_miss_shows_the_nearest_lines_with_their_numbers() -> None:
    text = "".join(f"line {number} of {number * 7}\n" for number in range(1, 200))
    reason = missed(text, "line 90 of 630\nline 91 of 637\nline 92 of 999\n", "x").reason
    assert "\n90\tline 90 of 630" in reason
    assert "200" not in reason


def test_a_file_without_anything_alike_is_said_to_have_nothing() -> None:
    assert "or any similar line" in missed("aaaa\nbbbb\n", "zzzzzzzz", "y").reason


def test_an_edit_that_was_made_is_told_to_be_made() -> None:
    once = patched(FILE, "    return 1\n\n", "    return 10\n\n").text
    assert missed(once, "    return 1\n\n", "    return 10\n\n").reason.startswith("already applied")


def test_an_insertion_is_not_made_twice() -> None:
    old, new = "def f():\n", "def f():\n    # first\n"
    once = patched(FILE, old, new).text
    found = missed(once, old, new)
    assert found.reason.startswith("already applied")
    assert once.count("# first") == 1


def test_an_insertion_by_another_indentation_is_not_made_twice() -> None:
    text = "class C:\n        x = 1\n"
    once = patched(text, "  x = 1\n", "  x = 1\n  y = 2\n")
    assert once.text == "class C:\n        x = 1\n        y = 2\n"
    assert missed(once.text, "  x = 1\n", "  x = 1\n  y = 2\n").reason.startswith("already applied")


@pytest.mark.parametrize("old", ["", "\ufeff"])
def test_nothing_cannot_be_replaced(old: str) -> None:
    assert "old is empty" in missed(FILE, old, "x").reason


def test_no_change_is_told() -> None:
    assert "identical" in missed(FILE, "return 1", "return 1").reason


class TestLineEnds:
    def test_crlf_is_kept_whatever_the_model_writes(self) -> None:
        text = "a\r\nb\r\nc\r\n"
        assert patched(text, "a\nb\n", "A\nX\nB\n").text == "A\r\nX\r\nB\r\nc\r\n"
        assert patched(text, "a\r\nb\r\n", "A\n").text == "A\r\nc\r\n"

    def test_a_part_of_a_line_gets_the_line_ends_of_the_file(self) -> None:
        assert patched("ab\r\ncd\r\n", "b", "1\n2").text == "a1\r\n2\r\ncd\r\n"

    def test_the_rest_of_a_mixed_file_stays_as_it_is(self) -> None:
        text = "a\r\nb\nc\r\nd\n\r\r\n"
        assert patched(text, "b\n", "B\nB2\n").text == "a\r\nB\nB2\nc\r\nd\n\r\r\n"
        assert patched(text, "c\n", "C\n").text == "a\r\nb\nC\r\nd\n\r\r\n"

    def test_a_missing_line_end_of_the_last_line_stays_missing(self) -> None:
        assert patched("a\nb", "b\n", "c\nd\n").text == "a\nc\nd"
        assert patched("a\nb", "b", "c").text == "a\nc"
        assert patched("a\nb", "b\n", "").text == "a"

    def test_a_byte_order_mark_stays_where_it_is(self) -> None:
        assert patched("\ufeff  a\nb\n", "a\nb\n", "A\nB\n").text == "\ufeff  A\nB\n".replace("  A", "  A")
        assert patched("\ufeffa \nb\n", "a\nb\n", "A\n").text == "\ufeffA\n"

    @given(text=LINES, data=st.data())
    def test_all_but_the_place_stays_byte_for_byte(self, text: str, data: st.DataObject) -> None:
        ends = data.draw(
            st.lists(st.sampled_from(["\n", "\r\n"]), min_size=text.count("\n"), max_size=text.count("\n"))
        )
        parts = text.split("\n")
        raw = "".join(part + end for part, end in zip(parts, [*ends, ""], strict=True))
        start = data.draw(st.integers(0, len(text)))
        old = text[start : data.draw(st.integers(start, len(text)))]
        found = patch(raw, old, "NEW")
        if isinstance(found, PatchedText) and not found.how:
            before, after = found.text.split("NEW")
            assert raw.startswith(before)
            assert raw.endswith(after)
            assert (before + after).replace("\r\n", "\n") == (
                text[: text.find(old)] + text[text.find(old) + len(old) :]
            )


def count(text: str, part: str) -> int:
    return sum(text.startswith(part, at) for at in range(len(text)))


@given(before=LINES, old=LINES, new=LINES, after=LINES)
def test_an_edit_is_taken_back_by_its_reverse(before: str, old: str, new: str, after: str) -> None:
    # Where one holds the other, the reverse is taken for an edit that was made; blanks in front are about indentation.
    assume(old.lstrip() == old and new.lstrip() == new and old not in new and new not in old)
    text = before + old + after
    made = before + new + after
    if count(text, old) == count(made, new) == 1:
        assert patched(text, old, new).text == made
        assert patched(made, new, old).text == text


@given(text=LINES, old=LINES, new=LINES)
def test_making_an_edit_again_changes_nothing_or_another_exact_place(text: str, old: str, new: str) -> None:
    found = patch(text, old, new)
    if isinstance(found, PatchedText) and found.text.count(new) == 1 and new.strip() and old in new:
        again = patch(found.text, old, new)
        assert not isinstance(again, PatchedText) or again.text.count(new) > 1


@given(text=LINES, old=LINES, new=LINES)
def test_whatever_is_replaced_was_there_once_but_for_blanks(text: str, old: str, new: str) -> None:
    found = patch(text, old, new)
    if isinstance(found, PatchedText):
        squeezed = ["".join(part.split()) for part in (text, old)]
        assert squeezed[1] in squeezed[0]


@given(text=st.text(), old=st.text(), new=st.text())
def test_no_text_breaks_it(text: str, old: str, new: str) -> None:
    assert isinstance(patch(text, old, new), PatchedText | PatchFailure)


def test_eight_megabytes_of_one_letter_are_read_in_time() -> None:
    assert "1000 times" in missed("a" * 8_000_000, "a", "b").reason
    assert isinstance(missed("a\n" * 500_000, "b\na\n", "c"), PatchFailure)
