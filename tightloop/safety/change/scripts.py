"""Rules about commands in files: scripts, CI, manifests, code that calls programs, and migrations of databases."""

import re
from collections.abc import Iterator

from tightloop.safety.change.patch import Line
from tightloop.safety.change.reading import Seen, tell
from tightloop.safety.change.tables import EXAMPLE, GENERATED, PATTERNS, TEST, WORDS
from tightloop.safety.commands.judge import check_script
from tightloop.safety.commands.shell import plain
from tightloop.safety.commands.suspects import may_violate
from tightloop.safety.rubric import Finding
from tightloop.safety.verdict import Verdict

COMMAND_CHARACTERS = 400
"""Of a line of code; what follows is not looked at for commands. Lines of scripts are read whole."""
COMMANDS_LIMIT = 2_000
"""Different commands of one file that are parsed; more are left to a person."""


def scripts(seen: Seen) -> Iterator[Finding]:
    """Return commands in a file that a person would not have it run."""
    path = seen.file.path
    if GENERATED.search(path) or EXAMPLE.search(path) or (TEST.search(path) and not path.endswith((".sh", ".bash"))):
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
