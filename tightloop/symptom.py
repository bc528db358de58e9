"""Mechanical bugs that a ruff rule mends, and the words in a check's output that point to them."""

from tightloop.value import Value


class Symptom(Value):
    """Words in a check's output that point to a ruff rule."""

    words: str
    code: str
    cause: str
    unsafe: bool = False
    """The rule's fix is never a safe one."""


SYMPTOMS = (
    Symptom(
        words=r"cannot import name '\w+' from 'collections'",
        code="UP035",
        cause="an abstract class is imported from collections, where Python 3.10 removed it",
    ),
    Symptom(words=r"SyntaxWarning: [\"']is(?: not)?[\"'] with ", code="F632", cause="a literal is compared with `is`"),
    Symptom(
        words=r"'NotImplementedType' object is not callable|'?NotImplemented'? is not callable"
        r"|TypeError: exceptions must derive from BaseException",
        code="F901",
        cause="NotImplemented is raised where NotImplementedError is meant",
    ),
    Symptom(
        words=r"has no attribute '(?:assertEquals|assertNotEquals|assert_|assertItemsEqual|assertRaisesRegexp"
        r"|assertRegexpMatches|assertNotRegexpMatches|assertAlmostEquals|assertNotAlmostEquals|fail\w+)'"
        r"|DeprecationWarning: Please use assert\w+ instead",
        code="UP005",
        cause="a unittest alias is used that Python 3.12 removed",
    ),
    Symptom(words=r"invalid escape sequence", code="W605", cause="a string has an escape sequence that does not exist"),
    Symptom(words=r"No module named 'mock'", code="UP026", cause="mock is imported instead of unittest.mock"),
    Symptom(
        words=r"No module named 'xml\.etree\.cElementTree'|cannot import name 'cElementTree'",
        code="UP023",
        cause="cElementTree is imported, which Python 3.9 removed",
    ),
    Symptom(
        words=r"module 'numpy' has no attribute '(?:bool|int|float|complex|object|str|long|unicode)'",
        code="NPY001",
        cause="a type alias is used that numpy 1.24 removed",
    ),
    Symptom(words=r"was removed in the NumPy 2\.0 release", code="NPY201", cause="a name is used that numpy 2 removed"),
    Symptom(
        words=r"implicit Optional|default has type \"None\", argument has type",
        code="RUF013",
        cause="an argument with default None is not declared as optional",
        unsafe=True,
    ),
    Symptom(
        words=r"E +(?:AssertionError: )?assert [\[{].*[\]}] == [\[{]"
        r"|(?:Left|First list) contains .*(?:more|additional)",
        code="B006",
        cause="a collection holds more than it should: perhaps a mutable default argument is shared between calls",
        unsafe=True,
    ),
)
"""Mechanical bugs with their traces in the output of tests and type checkers."""

PROBES = (
    Symptom(words="", code="F632", cause="a literal may be compared with `is`"),
    Symptom(words="", code="F901", cause="NotImplemented may be raised instead of NotImplementedError"),
    Symptom(words="", code="B006", cause="a mutable default argument may be shared between calls", unsafe=True),
    Symptom(words="", code="E711", cause="None may be compared with `==`", unsafe=True),
    Symptom(words="", code="UP035", cause="a name may be imported from where it no longer is"),
)
"""Rules that find bugs and can mend them, tried when failing tests point to nothing."""
