"""Policy checks for the commands and network access of steps."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import urlsplit

from tightloop.plan.document import CommandRule
from tightloop.safety.commands.effects import PLACEHOLDER, exceeds, loads_code, needs_judging
from tightloop.safety.commands.rules import LOADS_CODE, UNREADABLE, check_script, find_violations_in_words, read_scripts
from tightloop.safety.commands.shell import AS_ROOT, Assignment, Call, plain
from tightloop.safety.rubric import Ruling, Topic, Verdict, Violation, strictest
from tightloop.safety.scope import is_private, match_words
from tightloop.value import shorten

SHOWN_CHARACTERS = 120
# Global git options before the subcommand that consume the next word.
_GIT_WITH_VALUE = frozenset({"-C", "-c", "--git-dir", "--work-tree", "--namespace"})


def judge_command(
    command: str, rules: Sequence[CommandRule], environment: Mapping[str, str] = MappingProxyType({})
) -> Ruling:
    """Return the strictest ruling on all simple commands of a script and its environment variables.

    For each simple command, the first matching rule applies. This includes substitutions and scripts
    passed to a shell. Only the last part of a program's path is compared. If no rule matches, the
    built-in rules for destruction, publishing and secrets apply (`tightloop/safety/commands/rules.py`).
    Cost rules are not applied, because every step has its own time limit. Scripts that cannot be parsed
    require approval.

    A variable is treated like the command `env NAME=value`, unless its name is known to be harmless. If a
    rule allows a program but the call `exceeds` the rule, another matching rule takes precedence.
    """
    text = plain(command)
    allowed: list[Call] = []
    open_: list[Call] = []
    rulings: list[Ruling] = []
    reading = read_scripts(text)
    for call in reading.calls:
        rule = _deciding(rules, call)
        if rule is None:
            open_.append(call)
        elif rule.verdict is Verdict.ALLOW:
            allowed.append(call)
        else:
            rulings.append(_apply_rule(rule, call))
    assignments = (Assignment(name, value) for name, value in environment.items())
    rulings += [
        _of_variable(assignment, rules)
        for assignment in (*assignments, *reading.assignments)
        if needs_judging(assignment)
    ]
    # If the script was only parsed partially, it may contain more than the allowed commands.
    excused = {
        violation
        for call in allowed
        if reading.is_complete
        for violation in find_violations_in_words((call.name, *call.arguments))
    }
    # Readability is a property of the whole script: a here-document may be text in any language.
    forms = {(call.name, *call.arguments) for call in open_}
    blamed = {violation for form in forms for violation in find_violations_in_words(form) if violation != UNREADABLE}
    for violation in dict.fromkeys((*check_script(text, is_strict=True), *blamed)):
        if violation.topic is not Topic.COST and (violation not in excused or violation in blamed):
            rulings.append(_judge_violation(violation, command))
    return strictest(rulings)


def judge_known_part(command: str, rules: Sequence[CommandRule]) -> Ruling:
    """Return the ruling on the simple commands in a script that contain no references.

    These commands cannot change before the step starts. Commands with references are checked at that
    time.
    """
    reading = read_scripts(plain(command))
    known_calls = [
        call for call in reading.calls if not any(PLACEHOLDER in argument for argument in (call.name, *call.arguments))
    ]
    rulings: list[Ruling] = []
    for call in known_calls:
        rule = _deciding(rules, call)
        if rule is not None:
            rulings.append(Ruling() if rule.verdict is Verdict.ALLOW else _apply_rule(rule, call))
            continue
        broken = (
            violation
            for violation in find_violations_in_words((call.name, *call.arguments))
            if violation.topic is not Topic.COST
        )
        rulings += [_judge_violation(violation, command) for violation in broken]
    return strictest(rulings)


def _deciding(rules: Sequence[CommandRule], call: Call) -> CommandRule | None:
    """Return the first rule that matches a call.

    If an `allow` rule does not cover the whole call, a later rule takes precedence.
    """
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


def _of_variable(assignment: Assignment, rules: Sequence[CommandRule]) -> Ruling:
    rule = next((rule for rule in rules if _matches(rule, assignment.call)), None)
    if rule is not None:
        return Ruling() if rule.verdict is Verdict.ALLOW else _apply_rule(rule, assignment.call)
    return (
        _judge_violation(LOADS_CODE, f"{assignment.name}={assignment.value}")
        if loads_code(assignment.name)
        else Ruling()
    )


def _matches(rule: CommandRule, call: Call) -> bool:
    pattern = _words(rule.match)
    forms: list[tuple[str, ...]] = [(call.name, *call.arguments)]
    if call.has_more_words and rule.verdict is Verdict.ALLOW:
        # A rule that allows the program does not cover the unknown arguments that xargs adds.
        forms = [("xargs", call.name, *call.arguments)]
    if AS_ROOT in call.arguments:
        bare = tuple(argument for argument in call.arguments if argument != AS_ROOT)
        # A rule that allows `make` does not allow `sudo make`; one that forbids `make` forbids both.
        forms = [("sudo", call.name, *bare)]
        forms += [(call.name, *bare)] if rule.verdict is not Verdict.ALLOW else []
    if call.name == "git" and rule.verdict is not Verdict.ALLOW:
        # Global options before the subcommand must not avoid a refusal.
        arguments = call.arguments
        while arguments and arguments[0].startswith("-"):
            arguments = arguments[2:] if arguments[0] in _GIT_WITH_VALUE else arguments[1:]
        forms.append(("git", *arguments))
    return any(match_words(pattern, form) for form in forms)


@lru_cache(maxsize=1_024)
def _words(match: str) -> tuple[str, ...]:
    first, *rest = match.split() or [""]
    return (first.rpartition("/")[2].lower() or first, *rest) if first else ()


def _apply_rule(rule: CommandRule, call: Call) -> Ruling:
    command = shorten(" ".join((call.name, *call.arguments)), SHOWN_CHARACTERS)
    why = f": {rule.reason}" if rule.reason else ""
    if rule.verdict is Verdict.ASK:
        reason = f"policy.commands requires a person's approval for {command!r} (rule {rule.match!r}){why}"
        return Ruling(Verdict.ASK, "policy.commands", reason)
    reason = f"policy.commands forbids {command!r} (rule {rule.match!r}){why}. Use another command, or change the rule"
    return Ruling(Verdict.DENY, "policy.commands", reason)


def _judge_violation(violation: Violation, command: str) -> Ruling:
    excerpt = shorten(" ".join(command.split()), SHOWN_CHARACTERS)
    verdict = violation.verdict
    effect = "rejects" if verdict is Verdict.DENY else "requires a person's approval for"
    reason = (
        f"rule {violation.rule} {effect} {excerpt!r}. Instead: {violation.suggestion}. To "
        f"allow the command anyway, add a policy.commands rule"
    )
    return Ruling(verdict, violation.rule, reason)


PORTS = {"http": 80, "https": 443}
ADDRESS_CHARACTERS = 2_000
_ENTRY = re.compile(r"(?P<below>\*\.)?(?:[\w-]+(?:\.[\w-]+)*\.?|\[[0-9a-fA-F:.]+\])(?::(?P<port>\d{1,6}))?")


class Host(NamedTuple):
    """Target host of a request."""

    name: str
    """Host name in lower case, without brackets."""
    port: int

    @property
    def authority(self) -> str:
        """Host and port, such as `127.0.0.1:8080` or `[::1]:80`."""
        return f"[{self.name}]:{self.port}" if ":" in self.name else f"{self.name}:{self.port}"


class HostRuling(NamedTuple):
    """Ruling on a request to a host."""

    refusal: str = ""
    """Reason for the refusal, with the rule that caused it. It is empty if the request is allowed."""
    private: bool = False
    """True if the name may resolve to a private address because this host and port are listed."""


def host_of(url: str) -> Host | None:
    """Return the host and port of a URL, or None if it is not an http or https URL."""
    try:
        parts = urlsplit(url)
        # `urlsplit` itself accepts an invalid port; only this attribute raises.
        port = parts.port
    except ValueError:
        return None
    # A trailing dot names the same host in the DNS.
    name = (parts.hostname or "").rstrip(".").lower()
    if parts.scheme not in PORTS or not name or len(url) > ADDRESS_CHARACTERS:
        return None
    return Host(name, port or PORTS[parts.scheme])


def find_entry_fault(entry: str) -> tuple[str, str] | None:
    """Validate an entry of `Policy.network`.

    Return the problem and a suggestion, or None if the entry is valid.
    """
    text = entry.strip()
    if "://" in text:
        host = host_of(text)
        suggestion = "" if host is None else host.name if host.port in PORTS.values() else host.authority
        return f"'{entry}' is a URL, not a host", f"Write `{suggestion or 'example.org'}`"
    match = _ENTRY.fullmatch(text)
    if match is None:
        bare = re.split(r"[/?#]", text.rpartition("@")[2])[0].strip("*.")
        suggestion = bare if _ENTRY.fullmatch(bare) else "*.example.org"
        return f"'{entry}' is not a valid host", f"Write a host such as `{suggestion}` or `example.org:8443`"
    if match["port"] and not 0 < int(match["port"]) < 65_536:
        return f"'{entry}' has an invalid port", "Use a port from 1 to 65535"
    if match["below"] and match["port"]:
        return f"'{entry}' matches no host: `*.` covers only the default ports", "List each host with its port"
    return None


def judge_url(url: str, network: Iterable[str]) -> HostRuling:
    """Return the ruling on a request to a URL.

    `network` contains the entries of `Policy.network`. The entry `example.org` allows that host on the default ports.
    `*.example.org` allows its subdomains, and `host:port` allows exactly this endpoint. Only `host:port` may be a
    private address.
    """
    host = host_of(url)
    excerpt = url[:200]
    if host is None:
        return HostRuling(
            f"'{excerpt}' is not an http or https URL. Write the full URL, for example https://example.org/page"
        )
    parts = urlsplit(url)
    # They would be stored in the history, and a user name that looks like a host hides the real one from a reader.
    if parts.username or parts.password:
        return HostRuling(
            "a URL must not contain a username or password. Name an environment variable in secret_headers instead"
        )
    rules = [rule.strip().lower() for rule in network]
    # Only an exact `host:port` may be private: a public name must not lead into this host's network.
    if host.authority in rules:
        return HostRuling(private=True)
    if host.port in PORTS.values() and any(_fits(host.name, rule) for rule in rules):
        return HostRuling()
    usual = host.port in PORTS.values() and not is_private(host.name)
    entry = host.name if usual else host.authority
    return HostRuling(
        f"policy.network does not list {host.authority}, which '{excerpt}' connects to. Add '{entry}' to allow it"
    )


def judge_secrets(url: str, variables: Iterable[str], secrets: Mapping[str, Iterable[str]]) -> str:
    """Return the reason why these worker variables must not be sent to a URL, or "" if they may be.

    `secrets` is the setting `plans.secrets`, which maps variables to hosts. The hosts have the same
    syntax as in `Policy.network`. Secrets are sent to a host without a port only over https. `host:port`
    must match exactly and is intended for local services.
    """
    host = host_of(url)
    if host is None:
        return f"'{url[:200]}' is not an http or https URL"
    for variable in variables:
        rules = [rule.strip().lower() for rule in secrets.get(variable, ())]
        by_name = any(_fits(host.name, rule) for rule in rules)
        # Secrets must not cross a network unencrypted, so a host without a port gets them over https only.
        if host.authority in rules or (by_name and url.lower().startswith("https:") and host.port == PORTS["https"]):
            continue
        if by_name:
            return f"plans.secrets allows ${variable} for {host.name} over https on port 443 only. Change the URL"
        entry = host.name if host.port == PORTS["https"] else host.authority
        return (
            f"the worker's settings do not allow sending ${variable} to {host.authority}. To allow it, add to the "
            f"worker's settings: plans: {{secrets: {{{variable}: ['{entry}']}}}}"
        )
    return ""


def _fits(name: str, rule: str) -> bool:
    if rule.startswith("*."):
        return name.endswith(rule[1:]) and len(name) > len(rule) - 1
    return name == rule.strip("[]")


def independent_hosts(sources: Iterable[object]) -> frozenset[str]:
    """Return the distinct hosts of the sources.

    A source is a URL or a mapping with a `url`. The prefix `www.` is ignored.
    """
    hosts: set[str] = set()
    for source in sources:
        url = source.get("url", "") if isinstance(source, dict) else source
        host = host_of(url) if isinstance(url, str) else None
        if host is not None:
            hosts.add(host.name.removeprefix("www."))
    return frozenset(hosts)
