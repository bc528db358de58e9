"""The commands of a plan against its rules; what no rule is about is held against those for every project."""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from tightloop.alignment import Stand, Topic
from tightloop.alignment_commands import of_words, offences, script_in
from tightloop.alignment_offences import Offence
from tightloop.alignment_shell import Call, calls, plain
from tightloop.plan.policy import CommandRule
from tightloop.plan.rules.ruling import Stance, Verdict, strictest
from tightloop.value import shorten

SCRIPTS_LIMIT = 40
"""Scripts within one script that are looked at."""
SHOWN_CHARACTERS = 120
_AS_ROOT = "--as-root"
_GIT_WITH_VALUE = frozenset({"-C", "-c", "--git-dir", "--work-tree", "--namespace"})
_STANCES = {Stand.NO: Stance.DENY, Stand.ASK: Stance.ASK}


class TooNestedError(ValueError):
    """A script that nobody would write is not read to its end."""


def judge_command(command: str, rules: Sequence[CommandRule]) -> Verdict:
    """Return what the rules say of a script: the strictest answer for any of its simple commands.

    For each simple command, also in substitutions and in scripts given to a shell, the first rule that matches decides.
    A program is known by the last part of its path. A command that no rule matches is held against the rules about
    destruction, publishing and secrets of every project (`tightloop/alignment_commands.py`); those about cost are left
    out, as a step has its own time limit.
    """
    allowed: list[Call] = []
    open_: list[Call] = []
    found: list[Verdict] = []
    try:
        commands = simple_commands(command)
    except TooNestedError:
        reason = f"the command has more than {SCRIPTS_LIMIT} scripts within it: nobody can read that. Write it plainly"
        return Verdict(Stance.DENY, "hidden_command", reason)
    for call in commands:
        rule = next((rule for rule in rules if _matches(rule, call)), None)
        if rule is None:
            open_.append(call)
        elif rule.verdict == Stance.ALLOW:
            allowed.append(call)
        else:
            found.append(_ruled(rule, call))
    found += [_offended(one, command) for one in _unexcused(command, allowed, open_)]
    return strictest(found)


def simple_commands(script: str) -> list[Call]:
    """Return the simple commands of a script, those in substitutions and in scripts given to a shell included.

    Raises:
        TooNestedError: there are more than `SCRIPTS_LIMIT` scripts within it.
    """
    found: list[Call] = []
    waiting = [script]
    seen = {script}
    while waiting:
        text = re.sub(r"\\\r?\n", " ", plain(waiting.pop()))
        own = list(calls(text))
        found += own
        more = {inner for inner in (*map(script_in, own), *substitutions(text)) if inner} - seen
        seen |= more
        waiting += sorted(more)
        if len(seen) > SCRIPTS_LIMIT:
            raise TooNestedError
    return found


def substitutions(text: str) -> Iterator[str]:
    """Yield what a shell would run while it expands a text: the scripts in `$(...)`, `<(...)` and backticks.

    What is within one of them is looked through as well.
    """
    quoted, at = False, 0
    while at < len(text):
        letter = text[at]
        if letter == "\\":
            at += 1
        elif letter == "'" and not quoted:
            at = _after(text, "'", at + 1)
        elif letter == '"':
            quoted = not quoted
        elif letter == "`":
            end = _after(text, "`", at + 1)
            yield text[at + 1 : end]
            at = end
        elif letter == "(" and text[at - 1 : at] in ("$", "<", ">") and text[at + 1 : at + 2] != "(":
            yield text[at + 1 : _closing(text, at)]
        at += 1


def _after(text: str, sign: str, at: int) -> int:
    found = text.find(sign, at)
    return found if found >= 0 else len(text)


def _closing(text: str, at: int) -> int:
    """Return where the parenthesis that opens at `at` is closed; those in quotes do not count."""
    depth, quoted = 0, False
    while at < len(text):
        letter = text[at]
        if letter == "\\":
            at += 1
        elif letter == "'" and not quoted:
            at = _after(text, "'", at + 1)
        elif letter == '"':
            quoted = not quoted
        elif letter in "()" and not quoted:
            depth += 1 if letter == "(" else -1
            if depth == 0:
                return at
        at += 1
    return len(text)


def _unexcused(command: str, allowed: Iterable[Call], open_: Iterable[Call]) -> Iterator[Offence]:
    """Yield the offences of a script but for those that only come from commands which a rule allows."""
    excused = {one for call in allowed for one in of_words((call.name, *call.words))}
    blamed = {one for call in open_ for one in of_words((call.name, *call.words))}
    seen = [*offences(command), *(one for inner in substitutions(plain(command)) for one in offences(inner)), *blamed]
    for one in dict.fromkeys(seen):
        if one.topic is not Topic.COST and (one not in excused or one in blamed):
            yield one


def _matches(rule: CommandRule, call: Call) -> bool:
    expression = _expression(rule.match)
    forms = [(call.name, *call.words)]
    if _AS_ROOT in call.words:
        bare = tuple(word for word in call.words if word != _AS_ROOT)
        forms = [("sudo", call.name, *bare)]
        forms += [(call.name, *bare)] if rule.verdict != Stance.ALLOW else []
    if call.name == "git" and rule.verdict != Stance.ALLOW:
        forms.append(("git", *_without_options(call.words)))
    return any(expression.fullmatch("".join(f"\0{word}" for word in form)) for form in forms)


def _without_options(words: Sequence[str]) -> Sequence[str]:
    """Return the words of git from its command on: `git -C x push` is a push, too."""
    while words and words[0].startswith("-"):
        words = words[2:] if words[0] in _GIT_WITH_VALUE else words[1:]
    return words


@lru_cache(maxsize=1_024)
def _expression(match: str) -> re.Pattern[str]:
    words = match.split()
    if words:
        words[0] = words[0].rpartition("/")[2].lower() or words[0]
    parts = ["(?:\0[^\0]*)*" if word == "**" else "\0" + _word(word) for word in words]
    return re.compile("".join(parts), re.DOTALL)


def _word(word: str) -> str:
    return "".join("[^\0]*" if part == "*" else re.escape(part) for part in re.split(r"(\*)", word))


def _ruled(rule: CommandRule, call: Call) -> Verdict:
    shown = shorten(" ".join((call.name, *call.words)), SHOWN_CHARACTERS)
    why = f": {rule.reason}" if rule.reason else ""
    if rule.verdict == Stance.ASK:
        reason = f"policy.commands wants a person to approve {shown!r} (rule {rule.match!r}){why}"
        return Verdict(Stance.ASK, "policy.commands", reason)
    reason = f"policy.commands forbids {shown!r} (rule {rule.match!r}){why}. Use another command, or change the rule"
    return Verdict(Stance.DENY, "policy.commands", reason)


def _offended(one: Offence, command: str) -> Verdict:
    shown = shorten(" ".join(command.split()), SHOWN_CHARACTERS)
    stance = _STANCES.get(one.stand, Stance.ASK)
    word = "refuses" if stance is Stance.DENY else "wants a person to approve"
    reason = f"rule {one.rule} {word} {shown!r}. Right would be: {one.mend}; or a policy.commands rule that allows it"
    return Verdict(stance, one.rule, reason)
