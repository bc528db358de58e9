"""Tells quickly that a text violates no rule about commands, so that only the others need to be parsed.

A text may violate a rule if it contains the name of a program, or a word, that some rule needs. Quotes and backslashes
are removed first, as a shell does, and what separates words for a shell separates them here: too much passes, never too
little. A test compares it with the rules themselves.
"""

import re

from tightloop.safety.commands.tables import PATTERNS, WORDS

_NAMES = frozenset(WORDS["suspect_names"])
_TAKEN_OUT = str.maketrans("", "", "'\"\\")
_SEPARATORS = str.maketrans(dict.fromkeys(";&|()@/#`", " "))
_FIELDS = re.compile(r"\$\{?ifs\}?(?:\$\d)?")


def may_violate(text: str) -> bool:
    """Return whether a text of one or many lines may violate a rule about commands; False is certain.

    The text is without disguises; see `plain`.
    """
    bare = _FIELDS.sub(" ", text.replace("\\\n", " ").replace("\\\r\n", " ").translate(_TAKEN_OUT).lower())
    return (
        # Escapes may spell any name.
        "$'" in text
        or not _NAMES.isdisjoint(bare.translate(_SEPARATORS).split())
        or any(word in bare for word in WORDS["suspects"])
        or PATTERNS["suspects"].search(bare) is not None
    )
