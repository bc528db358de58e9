"""Judges the commands of a plan by its rules, and by those for every project where none matches."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType

from tightloop.plan.document.policy import CommandRule
from tightloop.safety.commands.effects import exceeds, loads_code, needs_judging
from tightloop.safety.commands.judge import check_script, find_violations_in_words, read_scripts
from tightloop.safety.commands.places import PLACEHOLDER
from tightloop.safety.commands.shell import AS_ROOT, Assignment, Call, plain
from tightloop.safety.commands.violations import LOADS_CODE, UNREADABLE
from tightloop.safety.glob import match_words
from tightloop.safety.rubric import Topic, Violation
from tightloop.safety.verdict import Ruling, Verdict, strictest
from tightloop.value import shorten

SHOWN_CHARACTERS = 120
# Options of git itself that stand before the subcommand and take the next word.
_GIT_WITH_VALUE = frozenset({"-C", "-c", "--git-dir", "--work-tree", "--namespace"})


def judge_command(
    command: str, rules: Sequence[CommandRule], environment: Mapping[str, str] = MappingProxyType({})
) -> Ruling:
    """Return the ruling on a script: the strictest for any of its simple commands and of the variables it is given.

    For each simple command, also in substitutions and in scripts given to a shell, the first rule that matches decides.
    A program is known by the last part of its path. A command that no rule matches is checked by the rules for every
    project (`safety/commands/judge.py`) about destruction, publishing and secrets; those about cost are left out, as a
    step has its own time limit. A script that cannot be read needs a person's approval.

    A variable is judged as the command `env NAME=value`, unless its name is known to be harmless. A rule that allows a
    program does not allow what `exceeds` it, where another rule has a say.
    """
    text = plain(command)
    allowed: list[Call] = []
    open_: list[Call] = []
    found: list[Ruling] = []
    reading = read_scripts(text)
    for call in reading.calls:
        rule = _deciding(rules, call)
        if rule is None:
            open_.append(call)
        elif rule.verdict is Verdict.ALLOW:
            allowed.append(call)
        else:
            found.append(_ruled(rule, call))
    given = (Assignment(name, value) for name, value in environment.items())
    found += [_of_variable(one, rules) for one in (*given, *reading.assignments) if needs_judging(one)]
    # What cannot be read whole may be more than the commands that are allowed.
    excused = {
        one for call in allowed if reading.is_complete for one in find_violations_in_words((call.name, *call.words))
    }
    # Whether all can be read is asked of the whole script: a here-document may be text in any language.
    forms = {(call.name, *call.words) for call in open_}
    blamed = {one for words in forms for one in find_violations_in_words(words) if one != UNREADABLE}
    for one in dict.fromkeys((*check_script(text, is_strict=True), *blamed)):
        if one.topic is not Topic.COST and (one not in excused or one in blamed):
            found.append(_violated(one, command))
    return strictest(found)


def judge_known_part(command: str, rules: Sequence[CommandRule]) -> Ruling:
    """Return the ruling on the simple commands of a script that hold no placeholder of a reference.

    What a reference stands for is judged when its step starts; the rest is the same then.
    """
    reading = read_scripts(plain(command))
    known = [call for call in reading.calls if not any(PLACEHOLDER in word for word in (call.name, *call.words))]
    found: list[Ruling] = []
    for call in known:
        rule = _deciding(rules, call)
        if rule is not None:
            found.append(Ruling() if rule.verdict is Verdict.ALLOW else _ruled(rule, call))
            continue
        broken = (one for one in find_violations_in_words((call.name, *call.words)) if one.topic is not Topic.COST)
        found += [_violated(one, command) for one in broken]
    return strictest(found)


def _deciding(rules: Sequence[CommandRule], call: Call) -> CommandRule | None:
    """Return the first rule that matches; one that allows less than the call does leaves it to a later one."""
    matching = (rule for rule in rules if _matches(rule, call))
    first = next(matching, None)
    if first is None or first.verdict is not Verdict.ALLOW:
        return first
    later = (
        rule
        for rule in (first, *matching)
        if rule.verdict is not Verdict.ALLOW or not exceeds(call, rule.match.split())
    )
    return next(later, first)


def _of_variable(one: Assignment, rules: Sequence[CommandRule]) -> Ruling:
    rule = next((rule for rule in rules if _matches(rule, one.call)), None)
    if rule is not None:
        return Ruling() if rule.verdict is Verdict.ALLOW else _ruled(rule, one.call)
    return _violated(LOADS_CODE, f"{one.name}={one.value}") if loads_code(one.name) else Ruling()


def _matches(rule: CommandRule, call: Call) -> bool:
    pattern = _words(rule.match)
    forms: list[tuple[str, ...]] = [(call.name, *call.words)]
    if call.has_more_words and rule.verdict is Verdict.ALLOW:
        forms = [("xargs", call.name, *call.words)]
    if AS_ROOT in call.words:
        bare = tuple(word for word in call.words if word != AS_ROOT)
        # A rule that allows `make` does not allow `sudo make`; one that forbids it forbids both.
        forms = [("sudo", call.name, *bare)]
        forms += [(call.name, *bare)] if rule.verdict is not Verdict.ALLOW else []
    if call.name == "git" and rule.verdict is not Verdict.ALLOW:
        words = call.words
        while words and words[0].startswith("-"):
            words = words[2:] if words[0] in _GIT_WITH_VALUE else words[1:]
        forms.append(("git", *words))
    return any(match_words(pattern, form) for form in forms)


@lru_cache(maxsize=1_024)
def _words(match: str) -> tuple[str, ...]:
    first, *rest = match.split() or [""]
    return (first.rpartition("/")[2].lower() or first, *rest) if first else ()


def _ruled(rule: CommandRule, call: Call) -> Ruling:
    shown = shorten(" ".join((call.name, *call.words)), SHOWN_CHARACTERS)
    why = f": {rule.reason}" if rule.reason else ""
    if rule.verdict is Verdict.ASK:
        reason = f"policy.commands wants a person to approve {shown!r} (rule {rule.match!r}){why}"
        return Ruling(Verdict.ASK, "policy.commands", reason)
    reason = f"policy.commands forbids {shown!r} (rule {rule.match!r}){why}. Use another command, or change the rule"
    return Ruling(Verdict.DENY, "policy.commands", reason)


def _violated(one: Violation, command: str) -> Ruling:
    shown = shorten(" ".join(command.split()), SHOWN_CHARACTERS)
    verdict = one.verdict
    word = "refuses" if verdict is Verdict.DENY else "wants a person to approve"
    reason = (
        f"rule {one.rule} {word} {shown!r}. Right would be: {one.suggestion}; or a policy.commands rule that allows it"
    )
    return Ruling(verdict, one.rule, reason)
