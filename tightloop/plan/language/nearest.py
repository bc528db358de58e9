"""The expression that was probably meant by a text that is none: other languages' operators, bare names, words."""

import re

from tightloop.errors import ExpressionError
from tightloop.plan.language.expression import EXPRESSION_CHARACTERS, parse_expression

PROSE_HINT = "Write an expression such as `${exit_code} == 0`, or `prose: ...` for what only a person can judge"
_FILES = re.compile(r"\b(?:os|pathlib|shutil)\.|\bPath\(|\bopen\(|\bfile_exists\b|\bisfile\b|^\s*-[efds]\s|^\[\[? ")
_FILES_HINT = (
    "Expressions do not see files: test it in a command (`test -e x`), or declare `outputs: {x: file:x}` and write "
    "`exists(${outputs.x})`"
)
_QUOTED = re.compile(r"('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")")
_OWN = r"exit_code|status|outputs\.\w+|inputs\.\w+|plan\.\w+|item(?:\.\w+)?"
# In this order: each is applied to what the ones before left, outside of quoted texts.
_REWRITES = tuple(
    (re.compile(pattern, re.IGNORECASE), new)
    for pattern, new in (
        (r"\{\{\s*([\w.*-]+)\s*\}\}", r"${\1}"),
        (r"\$\(\(\s*|\s*\)\)", ""),
        (r"\b(?:the )?(?:exit|return|status) ?code\b|\breturncode\b|\brc\b|\$\?", "exit_code"),
        (r"\$([A-Za-z_][\w.]*)", r"\1"),
        (r"\s+-(?:eq)\s+", " == "),
        (r"\s+-(?:ne)\s+", " != "),
        (r"\b(?:must|should|has to) be\b", "is"),
        (r"\b(?:is|are) (?:not|different from)\b|\bis n't\b|\bisn't\b|<>|/=", "!="),
        (r"\bis (?:at least|no less than)\b|\bis greater than or equal to\b", ">="),
        (r"\bis (?:at most|no more than)\b|\bis less than or equal to\b", "<="),
        (r"\bis (?:greater|more|larger) than\b", ">"),
        (r"\bis (?:less|smaller|fewer) than\b", "<"),
        (r"\b(?:is|equals|is equal to|eq)\b", "=="),
        (r"\bzero\b", "0"),
        (r"(?<![\w.{$])stdout\b", "outputs.stdout"),
        (r"===|(?<![=!<>])=(?!=)", "=="),
        (r"!==", "!="),
        (r"&&", " and "),
        (r"\|\|", " or "),
        (r"!(?!=)\s*", "not "),
        (rf"(?<![\w{{.$])({_OWN})(?![\w(}}])", r"${\1}"),
    )
)
_CONTAINS = re.compile(r"(\$\{[^}]*\}) contains (.+)$")
_BARE = re.compile(r"(\$\{[^}]*\} [=!]= )([A-Za-z][\w-]*)$")


def nearest_expression(text: str) -> str:
    """Return how to write what a text means: the nearest expression that can be read, or the forms that there are."""
    if len(text) > EXPRESSION_CHARACTERS:
        return PROSE_HINT
    if _FILES.search(text):
        return _FILES_HINT
    parts = _QUOTED.split(text.strip())
    # A text that is quoted as a whole was quoted twice.
    if len(parts) == 3 and not parts[0] and not parts[2]:
        parts = _QUOTED.split(parts[1][1:-1])
    for pattern, new in _REWRITES:
        parts = [part if place % 2 else pattern.sub(new, part) for place, part in enumerate(parts)]
    meant = " ".join("".join(parts).split())
    meant = _CONTAINS.sub(r"\2 in \1", meant)
    meant = _BARE.sub(lambda found: f"{found[1]}'{found[2]}'", meant)
    try:
        if meant != text and parse_expression(meant).references:
            return f"Write `{meant}`"
    except ExpressionError:
        pass
    return PROSE_HINT
