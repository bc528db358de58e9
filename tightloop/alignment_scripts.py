"""Rules about commands in files: scripts, CI, manifests, code that calls programs, and migrations of databases."""

import re
from collections.abc import Iterator

from tightloop.alignment import Finding, Stand, Topic
from tightloop.alignment_checks import WEAK_HOOKS, WEAK_HOOKS_WORDS, WEAKENED
from tightloop.alignment_commands import taken_apart
from tightloop.alignment_offences import Offence
from tightloop.alignment_patch import EXAMPLE, GENERATED, TEST, Line
from tightloop.alignment_reading import Seen
from tightloop.alignment_shell import plain
from tightloop.alignment_suspects import suspicious

COMMAND_CHARACTERS = 400
"""Of a line of code; what follows is not looked at for commands. Lines of scripts are read whole."""
COMMANDS_LIMIT = 2_000
"""Different commands of one file that have to be taken apart; more are left to a person."""

_TOO_LONG = ("script_too_long", Topic.DAMAGE, Stand.ASK, "a shorter script, or data in a file that is no script")
_DROPS = ("drops_data", Topic.DAMAGE, Stand.ASK, "a migration that keeps the data, or that can go back")


_SCRIPT = re.compile(
    r"\.(?:sh|bash|zsh|fish|ps1|bat|cmd|mk|sql)$|(?:^|/)(?:Makefile|Dockerfile[\w.]*|justfile|Justfile|Procfile|"
    r"Rakefile|package\.json|Taskfile\.yml|\.envrc)$|(?:^|/)\.github/workflows/|\.gitlab-ci\.yml$"
)
_IN_CODE = re.compile(
    r"(?:os\.system|os\.popen|subprocess\.\w+|check_output|execSync|child_process\.\w+|exec|spawn(?:Sync)?|"
    r"Command::new|system)\(\s*(?:\[)?[fr]?([\"'])(.+)\1"
)
_LIST = re.compile(r"(?:subprocess\.\w+|run|Popen|spawn(?:Sync)?)\(\s*\[([^\]]+)\]")
_WHOLE_LINE = re.compile(
    r"shutil\.rmtree|requests\.|httpx\.|fetch\(|rimraf|fs\.rm|Invoke-|iex\b|DownloadString|process\.env|urlopen"
)


_CODE_WORDS = (
    "system(", "popen", "subprocess.", "check_output(", "exec", "spawn", "command::new(", "run(", "rmtree",
    "requests.", "httpx.", "fetch(", "rimraf", "fs.rm", "invoke-", "iex", "downloadstring", "process.env", "urlopen",
    "child_process",
)  # fmt: skip
"""One of these stands in each line of code that calls a program, or that is itself looked at."""


def scripts(seen: Seen) -> Iterator[Finding]:
    """Return commands in a file that a person would not have it run."""
    path = seen.file.path
    if GENERATED.search(path) or EXAMPLE.search(path) or (TEST.search(path) and not path.endswith((".sh", ".bash"))):
        return
    if path.endswith(".sql"):
        yield from _sql(seen)
        return
    shebang = bool(
        seen.file.new and seen.file.added and re.match(r"#!.*\b(?:ba|z|da|k)?sh\b", seen.file.added.texts[0])
    )
    yield from _commands(seen, script=bool(_SCRIPT.search(path)) or shebang)
    for line in seen.near(WEAK_HOOKS_WORDS):
        if WEAK_HOOKS.search(line.text):
            yield seen.tell(WEAKENED, line)


def _commands(seen: Seen, *, script: bool) -> Iterator[Finding]:
    path = seen.file.path
    known: set[str] = set()
    for line in _lines_with_commands(seen, script=script):
        found = map(plain, _commands_in(line.text, path, script=script))
        commands = [command for command in found if command not in known and suspicious(command)]
        known.update(commands)
        if len(known) > COMMANDS_LIMIT:
            yield seen.tell(_TOO_LONG, line, f"more than {COMMANDS_LIMIT} commands: what follows was not looked at")
            return
        for offence in (
            offence for command in commands for offence in taken_apart(command) if _matters(offence, command)
        ):
            yield seen.tell((offence.rule, offence.topic, offence.stand, offence.mend), line)


def _lines_with_commands(seen: Seen, *, script: bool) -> Iterator[Line]:
    if not script and not seen.file.path.endswith((".yml", ".yaml", "package.json")):
        return seen.near(_CODE_WORDS)
    # Disguises are taken off a line, not the whole text: what is not ASCII may have one.
    whole = seen.fresh.whole
    return seen.all_fresh() if not whole.isascii() or suspicious(whole) else iter(())


def _matters(offence: Offence, command: str) -> bool:
    """Return whether an offence counts in a file, where nobody runs it right away."""
    return (
        offence.stand is Stand.NO
        or offence.rule == "sends_data"
        or (offence.rule == "risky_command" and "$" in command)
    )


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
        for match in _IN_CODE.finditer(line):
            yield match[2]
        for match in _LIST.finditer(line):
            yield " ".join(word.strip().strip("\"'") for word in match[1].split(","))
        if _WHOLE_LINE.search(line):
            yield line.strip()


_DROP = re.compile(
    r"^\s*(?:DROP\s+(?:TABLE|DATABASE|SCHEMA)\b|TRUNCATE\b|DELETE\s+FROM\s+\S+\s*;|"
    r"ALTER\s+TABLE\s+\S+\s+DROP\s+COLUMN\b)",
    re.IGNORECASE,
)


_DROP_WORDS = ("drop", "truncate", "delete")
_BACK = re.compile(r"--\s*(?:\+?goose\s+down|\+migrate\s+down|down|rollback|migrate:down)\b", re.IGNORECASE)
_CREATED = re.compile(r"CREATE\s+TABLE\s+(?:IF\s+NOT\s+EXISTS\s+)?([\w.\"`]+)", re.IGNORECASE)
_TABLE = re.compile(r"TABLE\s+(?:IF\s+EXISTS\s+)?([\w.\"`]+)", re.IGNORECASE)


def _sql(seen: Seen) -> Iterator[Finding]:
    path, added = seen.file.path, seen.file.added
    if re.search(r"down|rollback|revert|undo|seed|teardown|cleanup", path, re.IGNORECASE) or TEST.search(path):
        return
    dropping = seen.reading.live(_DROP_WORDS)
    if not seen.reading.watch.near(added, dropping):
        return
    created = {name.lower() for line in seen.among(added, ("create",)) for name in _CREATED.findall(line.text)}
    back = next((line for line in seen.among(added, ("--",)) if _BACK.search(line.text)), None)
    for line in seen.among(added, dropping):
        if back is not None and line.number >= back.number:
            return
        name = _TABLE.search(line.text)
        if _DROP.match(line.text) and not (name and name[1].lower() in created):
            yield seen.tell(_DROPS, line)
