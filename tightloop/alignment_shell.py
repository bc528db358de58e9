"""Reading commands as a shell and a person's eye would: disguises taken off, scripts split into simple commands."""

import re
import shlex
import unicodedata
from collections.abc import Iterator
from typing import NamedTuple

LONGEST = 20_000
"""Characters of a script that are looked at."""

_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0]|[\U000e0000-\U000e007f]"
)
_LOOKALIKES = str.maketrans(
    "аеорсухіјѕԁһӏѡКМНТАВЕОРСХԛΑΒΕΖΗΙΚΜΝΟΡΤΥΧορνικα‐‑‒–—―−⁃﹣－∕⁄╱｜∣⼁ɡɑı‘’“”",
    "aeopcyxijsdhlwKMHTABEOPCXqABEZHIKMNOPTYXopvika----------///|||gai''\"\"",
)
"""Letters of other scripts, dashes and strokes that look like those of commands (after Unicode TR 39)."""


def plain(text: str) -> str:
    """Return a text as it looks: without invisible characters, letters that only look Latin made Latin."""
    if text.isascii():
        return text[:LONGEST]
    # Looking alike comes first: NFKC would leave them, and makes new ones only of compatibility forms.
    bare = _INVISIBLE.sub("", text[:LONGEST]).translate(_LOOKALIKES)
    return unicodedata.normalize("NFKC", bare).translate(_LOOKALIKES)


class Call(NamedTuple):
    """One simple command of a script."""

    name: str
    words: tuple[str, ...]
    """Its arguments."""
    fed_by: str = ""
    """The command whose output it reads."""
    feeds: str = ""

    def has(self, *flags: str) -> bool:
        """Return whether a flag is there; of short ones (`-f`), also in a bundle (`-xdf`)."""
        for flag in flags:
            short = len(flag) == 2 and flag[0] == "-"
            for word in self.words:
                if word == flag or (word.startswith(flag + "=") and not short):
                    return True
                if short and re.fullmatch(r"-[A-Za-z]+", word) and flag[1] in word:
                    return True
        return False

    @property
    def operands(self) -> tuple[str, ...]:
        """The arguments that are no flags."""
        return tuple(word for word in self.words if not word.startswith("-"))

    def starts(self, *words: str) -> bool:
        """Return whether the arguments begin with these, flags left out."""
        return self.operands[: len(words)] == words


_WRAPPERS = frozenset(
    [
        "sudo",
        "doas",
        "env",
        "nohup",
        "time",
        "nice",
        "ionice",
        "exec",
        "command",
        "builtin",
        "setsid",
        "stdbuf",
        "then",
        "do",
        "else",
        "if",
        "while",
        "until",
        "!",
        "{",
        "(",
        "xargs",
        "timeout",
        "busybox",
        "run:",
        "-",
        "$",
        "@",
        "&",
    ]
)


def calls(text: str) -> Iterator[Call]:
    """Split a script into its simple commands."""
    for line in text.splitlines():
        pipe: list[list[str]] = [[]]
        for token in _tokens(line):
            if re.fullmatch(r"[;&|()]+", token):
                if token in ("|", "|&"):
                    pipe.append([])
                else:
                    yield from _piped(pipe)
                    pipe = [[]]
            else:
                pipe[-1].append(token)
        yield from _piped(pipe)


_QUOTING = re.compile(r"[\"'\\]")
_TOKEN = re.compile(r"[;&|()]+|[^ \t\r\n;&|()]+")


def _tokens(line: str) -> list[str]:
    if not _QUOTING.search(line):
        # As shlex reads it, but ten times as fast.
        return _TOKEN.findall(line.partition("#")[0])
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|()")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    try:
        return list(lexer)
    except ValueError:
        return re.findall(r"[;&|()]+|[^\s;&|()]+", line.replace('"', "").replace("'", ""))


def _piped(pipe: list[list[str]]) -> Iterator[Call]:
    calls = [call for words in pipe if (call := _call(words)) is not None]
    names = [call.name for call in calls]
    for at, call in enumerate(calls):
        before = " ".join((names[at - 1], *calls[at - 1].words)) if at else ""
        yield call._replace(fed_by=before, feeds=names[at + 1] if at + 1 < len(names) else "")


def _call(words: list[str]) -> Call | None:
    rest = [word for word in words if word]
    root = False
    while rest:
        head = rest[0].removeprefix("@")
        bare = head.rpartition("/")[2]
        if re.fullmatch(r"\w+=.*", head) or bare in ("RUN", "CMD", "ENTRYPOINT"):
            rest = rest[1:]
        elif bare in _WRAPPERS:
            root = root or bare in ("sudo", "doas")
            rest = rest[1:]
            while (
                rest
                and bare in ("sudo", "doas", "env", "xargs", "timeout", "nice", "stdbuf")
                and (rest[0].startswith("-") or re.fullmatch(r"\d+[smhd]?|\w+=\S*", rest[0]))
            ):
                rest = rest[1:]
        else:
            break
    if not rest:
        return None
    name = rest[0].removeprefix("@").rpartition("/")[2].replace("\\", "").lower()
    if not root:
        return Call(name, tuple(rest[1:]))
    # The rights of root are a mark of their own, kept as a last word that no program knows.
    return Call(name, (*rest[1:], "--as-root"))
