"""Numbers that checks print: which of them say that the goal is nearer."""

import pytest

from tightloop.episode.failure import read_output
from tightloop.episode.progress.tracking import Count, update_count


def course(text: str, *numbers: float | str) -> list[str]:
    """Return what each output says, beginning with the second one."""
    count, found = Count(), []
    for number in numbers:
        count = update_count(count, [read_output(text.format(number))])
        found.append("better" if count.better else "worse" if count.worse else "-")
    return found[1:]


@pytest.mark.parametrize(
    ("text", "numbers", "expected"),
    [
        ("{} failed", (9, 7, 8, 6), "better worse better"),
        ("{} passed, 2 failing", (3, 4, 4), "- -"),
        ("{} passed, 0 failing", (3, 4, 4), "better -"),
        ("test: {} failures", (9, 8, 9), "better worse"),
        ("{} rows, 90 ms", (9, 6, 4), "- -"),
        ("val_loss {} (goal: 0.40)", (0.91, 0.84, 0.86, 0.7), "better - better"),
        ("perft(4) = {}, expected 197281", (8902, 197742, 197200), "better better"),
        ("{} ns/op", (812, 799, 805, 640), "better - better"),
        ("mean: {} ms, must be below 300 ms", (511, 512, 509, 513), "- - -"),
        ("accuracy: {}", (0.61, 0.7, 0.69, 0.74), "better - better"),
        ("{} of 20 parts", (11, 12, 13, 12, 11), "- better worse worse"),
        ("conflicts: {}", (80, 84, 70, 66, 71, 50), "- - better - better"),
        ("worker {} is stuck", (4037, 4074, 4111, 4148), "- - -"),
        ("{} tests run, 5 failed", (20, 19, 18), "worse worse"),
        ("coverage: {}% of statements", (41, 46, 45, 53), "better - better"),
        ("case {}: wrong output", (2, 3, 7), "better better"),
        ("off by {}", (26.6, 5.4, 10.6, 2.6), "better - better"),
        ("{} blocks are definitely lost", (12, 9, 11, 8), "better worse better"),
        ("{} s for the import, 20.0 allowed", (87.0, 79.0, 79.4, 71.0), "better - better"),
        ("3 failed in {} s", (8.7, 7.9, 6.1), "- -"),
        ("{} files are not formatted", (9, 7, 8), "better worse"),
        ("page {} is missing", (4, 5, 6), "- -"),
        ("loss {}", ("2e-3", "1e-3"), "better"),
        ("{} errors", ("1,204", "998", "1,003"), "better worse"),
        ("3 errors in utf-{}", (16, 8, 7), "- -"),
        ("{} is not ready", (13, 26, 39), "- -"),
    ],
)
def test_number_is_followed_to_its_aim(text: str, numbers: tuple[float | str, ...], expected: str) -> None:
    assert course(text, *numbers) == expected.split()


def test_expected_value_that_runs_after_the_result_gets_no_nearer() -> None:
    count = Count()
    for number in range(41, 47):
        count = update_count(count, [read_output(f"expected: <{number}> but was: <{number + 1}>")])
        assert not count.better


def test_tests_that_fail_anew_are_no_damage_while_as_many_pass_as_before() -> None:
    count, found = Count(), []
    for passed, failed in ((5, 0), (5, 1), (5, 2), (4, 3)):
        count = update_count(count, [read_output(f"{passed} passed, {failed} failed")])
        found.append(count.worse)
    assert found == [False, False, False, True]


def test_number_without_words_that_is_lower_than_ever_is_a_sign() -> None:
    count, found = Count(), []
    for number in (12, 9, 11, 8, 8):
        count = update_count(count, [read_output(f"{number} knots")])
        found.append(count.lowest)
    assert found == [False, True, False, True, False]


def test_other_numbers_begin_anew() -> None:
    first = update_count(Count(), [read_output("9 failed")])
    assert not update_count(first, [read_output("1 failed of 3")]).better
