"""Rules about commands in files: scripts, CI, manifests, code that calls programs, and migrations of databases."""

import re
from collections.abc import Container, Iterable, Iterator

from tightloop.safety.change.patch import Line
from tightloop.safety.change.reading import Seen, tell
from tightloop.safety.change.tables import EXAMPLE, GENERATED, PATTERNS, TEST, VIOLATIONS, WORDS, is_data
from tightloop.safety.commands.judge import check_script
from tightloop.safety.commands.shell import plain
from tightloop.safety.commands.suspects import may_violate
from tightloop.safety.rubric import Finding, make_finding
from tightloop.safety.verdict import Verdict

COMMAND_CHARACTERS = 400
"""Of a line of code; what follows is not looked at for commands. Lines of scripts are read whole."""
SHOWN = 2
"""Findings in generated code that the one in their place shows."""
COMMANDS_LIMIT = 2_000
"""Different commands of one file that are parsed; more are left to a person."""


def scripts(seen: Seen) -> Iterator[Finding]:
    """Return commands in a file that a person would not have it run."""
    path = seen.file.path
    if is_data(path) or EXAMPLE.search(path) or (TEST.search(path) and not path.endswith((".sh", ".bash"))):
        return
    if path.endswith(".sql"):
        yield from _sql(seen)
        return
    first = seen.file.added.texts[0] if seen.file.new and seen.file.added else ""
    is_script = PATTERNS["script"].search(path) or PATTERNS["shebang"].match(first)
    yield from _commands(seen, script=is_script is not None)
    for line in seen.near(WORDS["weak_hooks"]):
        if PATTERNS["weak_hooks"].search(line.text):
            yield seen.tell("checks_weakened", line)


def join_generated(findings: Iterable[Finding], rules: Container[str] | None = None) -> list[Finding]:
    """Return findings with one in place of all in generated and vendored files, which a person answers at once.

    Libraries do many things that the model's own code may not; none of them is allowed, or forbidden, by its folder.

    Args:
        findings: of a whole change.
        rules: those that are joined; by default all.
    """
    own: list[Finding] = []
    joined: list[Finding] = []
    for finding in findings:
        is_joined = GENERATED.search(_path_of(finding)) and (rules is None or finding.rule in rules)
        (joined if is_joined else own).append(finding)
    if not joined:
        return own
    shown = "; ".join(f"{one.where}: {one.rule}: {one.evidence}" for one in joined[:SHOWN])
    more = f"; and {len(joined) - SHOWN} more" if len(joined) > SHOWN else ""
    prints = "\0".join(sorted({finding.fingerprint for finding in joined}))
    where = _path_of(joined[0])
    found = make_finding(VIOLATIONS["generated_code"], at=("", prints), where=where, evidence=shown + more)
    return [*own, found.evolve(layer=joined[0].layer)]


def _path_of(finding: Finding) -> str:
    path, _, number = finding.where.rpartition(":")
    return path if number.isdigit() else finding.where


def _commands(seen: Seen, *, script: bool) -> Iterator[Finding]:
    path = seen.file.path
    known: set[str] = set()
    for line in _lines_with_commands(seen, script=script):
        found = map(plain, _commands_in(line.text, path, script=script))
        commands = [command for command in found if command not in known and may_violate(command)]
        known.update(commands)
        if len(known) > COMMANDS_LIMIT:
            yield seen.tell("script_too_long", line, f"more than {COMMANDS_LIMIT} commands: the rest was not read")
            return
        for command in commands:
            for one in check_script(command):
                # Nobody runs a file right away: what is only to be asked about counts where it is likely to do harm.
                may_harm = one.rule == "sends_data" or (one.rule == "risky_command" and "$" in command)
                if one.verdict is Verdict.DENY or may_harm:
                    yield tell(seen.file, one, line)


def _lines_with_commands(seen: Seen, *, script: bool) -> Iterator[Line]:
    if not script and not seen.file.path.endswith((".yml", ".yaml", "package.json")):
        return seen.near(WORDS["code"])
    # Disguises are taken off a line, not the whole text: what is not ASCII may have one.
    whole = seen.fresh.whole
    return seen.all_fresh() if not whole.isascii() or may_violate(whole) else iter(())


def _commands_in(line: str, path: str, *, script: bool) -> Iterator[str]:
    stripped = line.strip()
    if stripped.startswith(("#", "//", "--", "*", "rem ")):
        return
    if path.endswith("package.json"):
        value = re.match(r"\"[\w:.-]+\"\s*:\s*\"((?:[^\"\\]|\\.)*)\"", stripped)
        if value and not re.fullmatch(r"[\^~<>=*\d].*", value[1]):
            yield value[1].replace('\\"', '"')
    elif re.search(r"\.ya?ml$", path):
        yield re.sub(r"^-?\s*(?:run|script|command)?:?\s*\|?-?\s*", "", stripped)
    elif script:
        if not re.match(r"(?:echo|printf)\b[^|;&>]*$", stripped):
            yield stripped.lstrip("@-")
    else:
        line = line[:COMMAND_CHARACTERS]
        for match in PATTERNS["in_code"].finditer(line):
            yield match[2]
        for match in PATTERNS["list_call"].finditer(line):
            yield " ".join(word.strip().strip("\"'") for word in match[1].split(","))
        if PATTERNS["whole_line"].search(line):
            yield line.strip()


def _sql(seen: Seen) -> Iterator[Finding]:
    path, added = seen.file.path, seen.file.added
    if re.search(r"down|rollback|revert|undo|seed|teardown|cleanup", path, re.IGNORECASE) or TEST.search(path):
        return
    dropping = seen.reading.live(WORDS["drop"])
    if not seen.reading.watch.near(added, dropping):
        return
    created_by = (PATTERNS["created"].search(line.text) for line in seen.among(added, ("create",)))
    created = {found[1].lower() for found in created_by if found}
    back = next((line for line in seen.among(added, ("--",)) if PATTERNS["back"].search(line.text)), None)
    for line in seen.among(added, dropping):
        if back is not None and line.number >= back.number:
            return
        name = PATTERNS["dropped_table"].search(line.text)
        if PATTERNS["drop"].match(line.text) and not (name and name[1].lower() in created):
            yield seen.tell("drops_data", line)
