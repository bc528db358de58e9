"""Rules about commands: what destroys, what publishes, what carries data away."""

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tightloop.safety.commands.rules import RULES, SHELLS
from tightloop.safety.commands.shell import Assignment, Call, calls, plain, read_script
from tightloop.safety.commands.suspects import may_violate
from tightloop.safety.commands.tables import PATTERNS, SCRIPTS
from tightloop.safety.commands.violations import CARRIES_AWAY, HIDDEN, UNREADABLE
from tightloop.safety.rubric import Violation

SCRIPTS_LIMIT = 40
"""Scripts within one script that are read; nobody could review more."""


def find_violations(command: str) -> tuple[Violation, ...]:
    """Return the violations of a command or a line of a script; what is not a script of a shell has fewer."""
    text = plain(command)
    return check_script(text) if may_violate(text) else ()


def find_violations_in_words(words: Sequence[str]) -> tuple[Violation, ...]:
    """Return the violations of a program with its arguments, which are passed without a shell."""
    found = check_script(plain(shlex.join(plain(word) for word in words)), is_strict=True)
    # A script in one word is checked as it is, too: quoting it would hide what is quoted in it.
    inner = (one for word in words[1:] for one in _by_pattern(plain(word)))
    return tuple(dict.fromkeys((*found, *inner)))


def check_script(text: str, *, is_strict: bool = False) -> tuple[Violation, ...]:
    """Return the violations of a script, those of the scripts in it included, each once.

    Args:
        text: without disguises; see `plain`.
        is_strict: what cannot be read is a violation as well.
    """
    reading = read_scripts(text)
    found = [one for script in reading.texts for one in _by_pattern(script)]
    found += [one for call in reading.calls for rule in RULES if (one := rule(call)) is not None]
    if reading.is_too_deep:
        found.append(HIDDEN)
    if is_strict and not reading.is_complete:
        found.append(UNREADABLE)
    return tuple(dict.fromkeys(found))


class Reading(NamedTuple):
    """A script, and the scripts that its commands are given."""

    texts: tuple[str, ...]
    calls: tuple[Call, ...]
    is_complete: bool
    is_too_deep: bool
    assignments: tuple[Assignment, ...] = ()


def read_scripts(text: str) -> Reading:
    """Read a script, and those given to a shell in it, here-documents and strings of several lines."""
    waiting, seen, found, assigned = [(text, True)], {text}, list[Call](), list[Assignment]()
    is_complete, is_too_deep = True, False
    while waiting and not is_too_deep:
        inner, must_be_complete = waiting.pop()
        script = read_script(plain(inner))
        own = tuple(calls(script))
        found += own
        assigned += script.assignments
        assigned += [
            Assignment(one.partition("=")[0].rstrip("+"), one.partition("=")[2])
            for call in own
            for one in call.assigned
        ]
        # A here-document may be any text.
        is_complete = is_complete and (script.is_complete or not must_be_complete)
        more = {**dict.fromkeys(script.embedded, False), **dict.fromkeys(map(script_in, own), must_be_complete)}
        waiting += [(one, strict) for one, strict in more.items() if one and one not in seen]
        seen |= more.keys()
        is_too_deep = script.is_too_deep or len(seen) > SCRIPTS_LIMIT
    return Reading(tuple(seen), tuple(found), is_complete, is_too_deep, tuple(dict.fromkeys(assigned)))


def _by_pattern(text: str) -> Iterator[Violation]:
    # As a shell reads them: the end of a line after a backslash is nothing, and IFS is white space.
    text = re.sub(r"\$\{?IFS\}?(?:\$\d)?", " ", re.sub(r"\\\r?\n", " ", text))
    for pattern, violation in SCRIPTS:
        if pattern.search(text):
            yield violation
    if PATTERNS["dump_sites"].search(text) and re.search(r"\b(?:curl|wget|nc|requests\.|fetch\(|axios|http)", text):
        yield CARRIES_AWAY


def script_in(call: Call) -> str:
    """Return the script that a command is given, such as the argument of `sh -c`, or ""."""
    words = call.words
    if (call.name in SHELLS and call.has("-c")) or (call.name in ("su", "cmd") and call.has("-c", "/c")):
        # `cmd /c` and `su -c` take a script as well.
        return next((word for word in words if not word.startswith(("-", "/c"))), "")
    if call.name == "eval" or call.name == "ssh":
        return " ".join(words[1:] if call.name == "ssh" else words)
    if call.name == "find" and ("-exec" in words or "-execdir" in words):
        at = words.index("-exec" if "-exec" in words else "-execdir")
        return shlex.join([*(word for word in words[at + 1 :] if word not in ("{}", ";", "+")), f"{words[0]}/x"])
    if call.name in ("python", "python3", "node", "perl", "ruby") and call.has("-c", "-e"):
        quoted = re.findall(r"(?:system|popen|run|call|check_call|exec|execSync)\(\s*[\"'](.+?)[\"']", " ".join(words))
        return "\n".join(quoted)
    return ""
