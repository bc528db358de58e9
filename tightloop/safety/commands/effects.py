"""What commands do besides what their names say: files that they write, and code that options and variables run."""

import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from tightloop.safety.commands.judge import read_scripts
from tightloop.safety.commands.shell import AS_ROOT, Assignment, Call
from tightloop.value.toml import read_toml

_DATA = read_toml("tightloop.safety.commands", "effects.toml")
_HARMLESS, _LOADS_CODE, _EXPORTED = (
    tuple(_DATA["environment"][name]) for name in ("harmless", "loads_code", "exported")
)
_WRITES: dict[str, dict[str, Any]] = _DATA["writes"]
_RUNS: dict[str, list[str]] = _DATA["runs"]
_REDIRECT = re.compile(r"(?:\d*|\{\w+\})(&>>?|>>|>\||>&|<>|>|<<<|<<-?|<&|<)(.*)", re.DOTALL)
_WRITING = frozenset({"&>", "&>>", ">>", ">|", ">&", "<>", ">"})
# Neither devices nor temporary folders are files of anybody's.
_NOWHERE = re.compile(r"/dev/(?:null|stdout|stderr|tty|fd/\d+)|(?:/var)?/tmp/.*|\d+-?|-")
# What a shell replaces, and what leads out of the tree.
_OPEN = re.compile(r"[$`*?\[{~]|^/")
_LEAST_LONG_OPTION = 4
"""Characters of a long option that are enough to stand for it: most programs take any prefix that is not ambiguous."""


class Write(NamedTuple):
    """A file that a command writes."""

    path: str
    """As it is written."""
    by: str
    """The option or operator by which it is written; empty: it is what the program is for."""

    @property
    def is_known(self) -> bool:
        """Whether it is a path below the folder of the command that can be read from the text."""
        return not _OPEN.search(self.path)


class Paths(NamedTuple):
    """Files that a script writes, relative to the root of the tree."""

    certain: tuple[str, ...] = ()
    possible: tuple[str, ...] = ()
    """Where the script changes its folder: what they may be."""


def writes(call: Call) -> Iterator[Write]:
    """Yield the files that a call writes, as far as its text says so."""
    arguments = _arguments(call)
    targets, more = _redirected(call.redirects)
    yield from targets
    table = _WRITES.get(call.name)
    if table is None:
        return
    arguments += more
    if table.get("when") and not any(_is(word, option) for word in arguments for option in table["when"]):
        return
    options = table.get("options", ())
    for at, word in enumerate(arguments):
        for option in options:
            if _is(word, option):
                inside = _value_of(word, option)
                value = inside if inside is not None else next(iter(arguments[at + 1 : at + 2]), "")
                yield Write(value, option)
        if table.get("prefix") and word.startswith(table["prefix"]):
            yield Write(word.removeprefix(table["prefix"]), "")
    for path in _operands(table, arguments):
        # `host:path` is a file of another host.
        if call.name != "rsync" or ":" not in path:
            yield Write(path, "")


def exceeds(call: Call, allowed: Sequence[str]) -> bool:
    """Return whether a call does more than a rule which allows these words says.

    It writes where nobody can tell from the text, or has an option that runs another program, and the rule does not
    name that option.
    """
    runs = any(
        _is(word, option) and option not in allowed for option in _RUNS.get(call.name, ()) for word in call.words
    )
    return runs or any(
        write.by and write.by not in allowed and not write.is_known and not _NOWHERE.fullmatch(write.path)
        for write in writes(call)
    )


@lru_cache(maxsize=256)
def written_paths(command: str, folder: str = "") -> Paths:
    """Return the files that a script writes below the root, where its text says which.

    Args:
        command: without disguises; see `plain`.
        folder: below the root, in which it starts.
    """
    found = read_scripts(command).calls
    moves = [word for call in found if call.name in ("cd", "pushd") for word in _arguments(call)[:1]]
    moves += [word for call in found for word in _after(call.words, "-C")]
    known = [
        write.path
        for call in found
        for write in writes(call)
        if write.path and write.is_known and not _NOWHERE.fullmatch(write.path)
    ]
    if not moves:
        return Paths(certain=_below(known, [folder]))
    bases = [folder, *(posixpath.join(folder, move) for move in moves if not _OPEN.search(move))]
    return Paths(possible=_below(known, bases))


def needs_judging(assignment: Assignment) -> bool:
    """Return whether a variable may change what programs do, as far as its name says."""
    if loads_code(assignment.name):
        return True
    if assignment.reaches_programs:
        return not _named(assignment.name, _HARMLESS)
    return _named(assignment.name, _EXPORTED) and not _named(assignment.name, _HARMLESS)


def loads_code(name: str) -> bool:
    """Return whether a variable of this name makes programs run code that it names."""
    return _named(name, _LOADS_CODE)


def _named(name: str, patterns: Iterable[str]) -> bool:
    return any(name.startswith(one[:-1]) if one.endswith("*") else name == one for one in patterns)


def _arguments(call: Call) -> tuple[str, ...]:
    words = call.words[:-1] if call.words[-1:] == (AS_ROOT,) else call.words
    return words[: max(len(words) - len(call.redirects), 0)]


def _redirected(words: Iterable[str]) -> tuple[list[Write], tuple[str, ...]]:
    """Return what redirections write, and words behind them that are arguments again."""
    found, more, operator = list[Write](), list[str](), ""
    for word in words:
        match = _REDIRECT.fullmatch(word) if not operator else None
        if match is not None:
            operator, word = match[1], match[2]
            if not word:
                continue
        if not operator:
            more.append(word)
        # `> >(tee x)` writes to a program, which is a call of its own.
        elif operator in _WRITING and not word.startswith((">(", "<(")):
            found.append(Write(word, operator))
        operator = ""
    return found, tuple(more)


def _operands(table: dict[str, Any], arguments: tuple[str, ...]) -> tuple[str, ...]:
    which = table.get("operands")
    if which is None:
        return ()
    valued = (*table.get("valued", ()), *table.get("options", ()))
    found, skip, ended = list[str](), False, False
    for word in arguments:
        if skip:
            skip = False
        elif word == "--" and not ended:
            ended = True
        elif word.startswith("-") and word != "-" and not ended:
            skip = word in valued
        else:
            found.append(word)
    if which == "rest" and any(_is(word, option) for word in arguments for option in table.get("script", ())):
        which = "all"
    parts = {
        "all": slice(None),
        "last": slice(-1, None),
        "first": slice(1),
        "second": slice(1, 2),
        "rest": slice(1, None),
    }
    return tuple(found[parts[which]]) if which != "last" or len(found) > 1 else ()


def _is(word: str, option: str) -> bool:
    """Return whether a word is an option, with its value or without it, abbreviated or in a bundle of short ones."""
    if word == option:
        return True
    if option.startswith("--"):
        name = word.partition("=")[0]
        return len(name) >= _LEAST_LONG_OPTION and option.startswith(name) and name.startswith("--")
    if len(option) != 2 or word.startswith("--"):
        return False
    return word.startswith("-") and option[1] in word[1:] and (word[1] == option[1] or word[1:].isalpha())


def _value_of(word: str, option: str) -> str | None:
    """Return the value that is in the word of an option itself; None: it is the next word."""
    if word.startswith("--"):
        _, equals, value = word.partition("=")
        return value if equals else None
    return word.partition(option[1])[2] or None if len(option) == 2 else None


def _after(words: Sequence[str], option: str) -> Iterator[str]:
    return (words[at + 1] for at, word in enumerate(words[:-1]) if word == option)


def _below(paths: Iterable[str], bases: Iterable[str]) -> tuple[str, ...]:
    """Return paths relative to the root, without those that leave it."""
    joined = (posixpath.normpath(posixpath.join(base, path)) for path in paths for base in bases)
    return tuple(dict.fromkeys(one for one in joined if one != "." and not one.startswith(("..", "/"))))
