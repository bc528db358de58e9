"""Tests inside product files, before and after the work."""

import pytest

from tightloop.episode.proof.inner_tests import lost_inner_tests

CODE = "pub fn add(a: i64, b: i64) -> i64 { a + b }\n"
TESTS = """
#[cfg(test)]
mod tests {
    use super::*;

    // assert_eq!(add(9, 9), 0) in a comment
    #[test]
    fn adds() {
        assert_eq!(add(2, 2), 4, "sum of {}", 2);
        assert!(add(1, 0) == 1);
    }

    #[test]
    fn says() {
        assert_eq!(format!("{}", '}'), "}");
    }
}
"""
OLD = CODE + TESTS


def lost(new: str, **others: str) -> tuple[str, ...]:
    return lost_inner_tests(
        "src/lib.rs", OLD, new, {path.replace("_", "/") + ".rs": text for path, text in others.items()}
    )


ONE_MORE = "    #[test]\n    fn more() {\n        assert!(true);\n    }\n\n    #[test]\n    fn says"
SHORT = 'assert_eq!(add(2, 2), 4, "sum of {}", 2)'
LONG = 'assert_eq!(\n            add(2, 2),\n            4,\n            "sum of {}",\n            2,\n        )'


@pytest.mark.parametrize(
    "new",
    [
        OLD.replace("a + b", "b + a"),
        OLD.replace("    #[test]\n    fn says", ONE_MORE),
        OLD.replace("fn adds", "fn adds_two_numbers"),
        OLD.replace(SHORT, LONG),
        OLD.replace("add(", "plus("),
        OLD.replace("9, 9", "8, 8"),
    ],
    ids=["other code", "one more", "renamed test", "formatted", "renamed function", "comment"],
)  # fmt: skip
def test_tests_that_stay_are_not_lost(new: str) -> None:
    assert lost(new) == ()


def test_tests_that_moved_to_another_file_are_not_lost() -> None:
    moved = TESTS.replace("use super::*", "use calc::*")
    assert lost(CODE, tests_calc=moved) == ()


@pytest.mark.parametrize(
    ("new", "line"),
    [
        (OLD.replace("2), 4", "2), 0"), 'adds: assert_eq ! ( add ( 2 , 2 ) , 4 , "sum of {}" , 2 )'),
        (OLD.replace("    #[test]\n    fn adds", "    #[test]\n    #[ignore]\n    fn adds"), "adds: #[test] #[ignore]"),
        (OLD.replace("fn adds() {", "fn adds() {\n        return;"), "adds: has a new return"),
        (CODE, "adds: assert ! ( add ( 1 , 0 ) == 1 )"),
        (OLD.replace('"}");', '"}}");'), 'says: assert_eq ! ( format ! ( "{}" , \' } \' ) , "}" )'),
    ],
)
def test_assertions_that_changed_are_lost(new: str, line: str) -> None:
    assert line in lost(new)


def test_examples_in_the_documentation_count() -> None:
    old = "/// ```\n/// assert_eq!(calc::add(2, 2), 4);\n/// ```\n" + CODE
    assert lost_inner_tests("src/lib.rs", old, old.replace("), 4", "), 0"))
    assert not lost_inner_tests("src/lib.rs", old, old.replace("a + b", "b + a"))
