"""How much of a tool's result a model is shown."""

from tightloop.value import counted

# As mini-swe-agent has it: 5,000 characters of each end.
HEAD_CHARACTERS = TAIL_CHARACTERS = 5_000
RESULT = "result:"
"""Begins the name under which `read_file` finds a result."""
ID_DIGITS = 12


def result_name(sha256: str) -> str:
    """Return the name of a stored result, as a model is told of it."""
    return f"{RESULT}{sha256[:ID_DIGITS]}"


def is_long(text: str) -> bool:
    """Return whether only the ends of a result are shown."""
    return len(text) > HEAD_CHARACTERS + TAIL_CHARACTERS


def keep_ends(text: str, sha256: str) -> str:
    """Return the head and the tail of a long result, and where the rest can be read: the artifact `sha256`.

    The text is scrubbed already: a secret that is cut in two would not be known for what it is.
    """
    if not is_long(text):
        return text
    missing = counted(len(text) - HEAD_CHARACTERS - TAIL_CHARACTERS, "character")
    mark = f"\n[... {missing} left out; all of it: read_file {result_name(sha256)} ...]\n"
    return text[:HEAD_CHARACTERS] + mark + text[-TAIL_CHARACTERS:]
