"""Telling a command from a sentence about what should be done."""

import re

_VERBS = frozenset((
    "add", "analyze", "apply", "ask", "build", "capture", "change", "check", "collect", "compare", "create",
    "decide", "define", "derive", "describe", "design", "document", "enable", "evaluate", "examine", "explore",
    "fetch", "fix", "gather", "identify", "implement", "improve", "inject", "inspect", "instrument", "investigate",
    "list", "measure", "modify", "observe", "optimize", "plan", "prepare", "propose", "rank", "read", "refactor",
    "remove", "research", "review", "run", "search", "summarize", "synthesize", "update", "validate", "verify",
    "write",
))  # fmt: skip
_CALL = re.compile(r"^\s*[a-z_]+\([^)]*\)\s*->", re.IGNORECASE)
_ARROW = re.compile(r"\s->\s")
_SHELL = re.compile(r"\$|&&|\|\||\.\/|(^|\s)--?[a-z]|[|<>]\s*\S+\.\w+|=|^\s*#!", re.IGNORECASE | re.MULTILINE)
_PLAIN_WORD = re.compile(r"[A-Za-z][A-Za-z,;:/()\[\]+-]*")
WORDS_OF_A_SENTENCE = 3


def looks_like_prose(command: str) -> bool:
    """Return whether a command is a sentence or a sketch; careful: a doubtful one counts as a command.

    `search(query) -> links; rank(links)` and `modify client; add retry middleware` are prose, `make test` is not.
    """
    text = command.strip()
    if _CALL.match(text) or (_ARROW.search(text) and not _SHELL.search(text.replace("->", ""))):
        return True
    words = text.split()
    if not words or words[0].lower() not in _VERBS or len(words) < WORDS_OF_A_SENTENCE:
        return False
    plain = [word for word in words if _PLAIN_WORD.fullmatch(word)]
    return len(plain) >= 0.7 * len(words) and not _SHELL.search(_without_flags(text))


def _without_flags(text: str) -> str:
    """Leave out what sentences about programs hold as well: `run with -race; add tests`."""
    return re.sub(r"\bwith\s+-\w+", "", text)
