"""Rules for commands."""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tightloop.safety.commands.shell import AS_ROOT, Assignment, Call, calls, plain, read_script
from tightloop.safety.rubric import Verdict, Violation
from tightloop.safety.scope import read_tables
from tightloop.value.toml import read_toml

_DATA = read_toml("tightloop.safety.commands", "rules.toml")
PATTERNS, WORDS, VIOLATIONS = read_tables(_DATA)
GIT: dict[str, dict[str, list[str]]] = _DATA["git"]
PROGRAMS = {
    name: (re.compile(pattern, re.VERBOSE), VIOLATIONS[violation])
    for violation, programs in _DATA["programs"].items()
    for name, pattern in programs.items()
}
SCRIPTS = [(re.compile(row["pattern"], re.VERBOSE), VIOLATIONS[row["violation"]]) for row in _DATA["scripts"]]


DESTROYS = VIOLATIONS["destructive_command"]
RISKY = VIOLATIONS["risky_command"]
REWRITES = VIOLATIONS["rewrites_history"]
RUNS_REMOTE = VIOLATIONS["runs_remote_code"]
PUBLISHES = VIOLATIONS["publishes"]
CARRIES_AWAY = VIOLATIONS["carries_data_away"]
SENDS = VIOLATIONS["sends_data"]
READS_SECRETS = VIOLATIONS["reads_secrets"]
NO_CHECKS = VIOLATIONS["skips_hooks"]
COSTLY = VIOLATIONS["costly_command"]
ROOT = VIOLATIONS["needs_root"]
LOADS_CODE = VIOLATIONS["loads_code"]
HIDDEN = VIOLATIONS["hidden_command"]
UNREADABLE = VIOLATIONS["unreadable_command"]


LONGEST_SLEEP_S = 600
SHELLS = frozenset(["sh", "bash", "zsh", "dash", "ksh", "fish", "ash"])
_INTERPRETERS = SHELLS | frozenset(["python", "python3", "node", "perl", "ruby", "php", "pwsh", "source", "."])
_FETCHERS = frozenset(["curl", "wget", "fetch", "http", "https", "aria2c"])


def _removes(call: Call) -> Violation | None:
    if call.name not in ("rm", "rmdir", "unlink", "shred", "trash", "del") or not call.operands:
        return None
    recursive = call.has("-r", "-R", "--recursive")
    verdicts = [_target(operand, recursive=recursive) for operand in call.operands]
    if "--no-preserve-root" in call.arguments or Verdict.DENY in verdicts:
        return DESTROYS
    return RISKY if Verdict.ASK in verdicts or call.name == "shred" else None


def _target(operand: str, *, recursive: bool) -> Verdict | None:
    """Return the verdict on removing a path, or None if removing it is allowed."""
    path = re.sub(r"/{2,}", "/", operand.strip("\"'"))
    if PATTERNS["everything"].fullmatch(path):
        return Verdict.DENY if recursive or path.endswith("*") else None
    # The exceptions come first, because the rule for absolute paths would cover them.
    if re.match(r"(?:~|\$\{?HOME\}?)/\.?cache/|/tmp/.|/var/tmp/.|\$\{?TMPDIR\}?/.|/private/tmp/.", path):
        return None
    # Project folders in container images, and caches that a package manager regenerates.
    if re.match(r"/(?:app|src|workspace|usr/src/app|build)/.|/var/(?:lib/apt/lists|cache/apt)", path):
        return None
    if path.startswith(("/", "~", "$HOME", "${HOME}", "../")) or "/.." in path:
        return Verdict.DENY if recursive else Verdict.ASK
    if re.search(r"(?:^|/)\.git(?:/|$)", path):
        return Verdict.DENY
    if recursive and re.fullmatch(r"\$\{?\w+\}?/(?:\*)?", path):
        return Verdict.ASK
    if PATTERNS["generated"].fullmatch(path):
        return None
    return Verdict.ASK if PATTERNS["data"].search(path) and (recursive or not path.startswith("test")) else None


def _finds(call: Call) -> Violation | None:
    if call.name != "find" or ("-delete" not in call.arguments and "rm" not in call.arguments):
        return None
    narrowed = any(
        argument in ("-name", "-iname", "-path", "-newer", "-mtime", "-empty", "-regex") for argument in call.arguments
    )
    everywhere = bool(call.arguments) and re.fullmatch(r"/|~|\$HOME|/home.*|/etc.*|/usr.*", call.arguments[0])
    return DESTROYS if everywhere or not narrowed else None


def _git(call: Call) -> Violation | None:
    if call.name != "git":
        return None
    arguments = list(call.arguments)
    # Global options before the subcommand; `-C` and `-c` take a value.
    while arguments and arguments[0].startswith("-"):
        arguments = arguments[2:] if arguments[0] in ("-C", "-c") else arguments[1:]
    call = call._replace(arguments=tuple(arguments))
    if (call.starts("config") and any("hookspath" in argument.lower() for argument in arguments)) or call.has(
        "--no-verify"
    ):
        return NO_CHECKS
    if call.starts("clean") and call.has("-n", "--dry-run"):
        return None
    if _git_matches(call, GIT["rewrites_history"]) or (
        call.starts("push") and any(operand.startswith(("+", ":")) for operand in call.operands[1:])
    ):
        return REWRITES
    # Uncommitted work has no other copy; the loop has checkpoints, a person may have none.
    discards = (
        call.starts("checkout", ".")
        or call.starts("restore", ".")
        or (call.starts("checkout") and "--" in arguments and arguments[-1] == ".")
    )
    if discards or _git_matches(call, GIT["ask"]):
        return REWRITES._replace(verdict=Verdict.ASK)
    return PUBLISHES if call.starts("push") and not call.has("--dry-run", "-n") else None


def _git_matches(call: Call, table: Mapping[str, Sequence[str]]) -> bool:
    return any(call.starts(*verb.split()) and (not flags or call.has(*flags)) for verb, flags in table.items())


def _programs(call: Call) -> Violation | None:
    # One program per file system: mkfs.ext4, mkfs.xfs ...
    name = "mkfs" if call.name.startswith("mkfs") else call.name
    pattern, violation = PROGRAMS.get(name, (None, None))
    return violation if pattern is not None and pattern.search(" ".join(call.arguments)) else None


def _rights(call: Call) -> Violation | None:
    if call.name not in ("chmod", "chown", "chgrp"):
        return None
    # `+w` obeys the umask, unlike `a+w`.
    everyone = any(
        re.fullmatch(r"0?[0-7]?777|(?!\+w$)(?:a|o|ugo)?[+=]r?wx?|0?666", argument) for argument in call.arguments
    )
    recursive = call.has("-R", "--recursive")
    outside = any(re.match(r"[/~](?!tmp/|(?:app|src|workspace)(?:/|$))", operand) for operand in call.operands[1:])
    if recursive and (outside or (call.name == "chmod" and everyone)):
        return DESTROYS
    return RISKY if call.name == "chmod" and everyone else None


def _databases(call: Call) -> Violation | None:
    text = " ".join(call.arguments)
    if call.name in WORDS["sql_clients"] and (PATTERNS["sql"].search(text) or PATTERNS["sql"].search(call.fed_by)):
        return DESTROYS
    if re.search(r"\b(?:db:drop|db:reset|pg:reset|migrate reset|sqlflush)\b", text):
        return DESTROYS
    django = re.search(r"manage\.py", call.name + text) and re.search(r"\b(?:flush|reset_db)\b", text)
    return DESTROYS if django else None


def _publishes(call: Call) -> Violation | None:
    publishes = PATTERNS["publishes"].match(" ".join((call.name, *call.arguments)))
    return PUBLISHES if publishes and not call.has("--dry-run") else None


def _remote_code(call: Call) -> Violation | None:
    fetched = call.fed_by.split(" ", 1)[0] in _FETCHERS
    # `python -m json.tool` reads data from the pipe, not a program.
    takes_script = call.name in _INTERPRETERS and not any(
        argument in ("-m", "-c", "-e") for argument in call.arguments if call.name not in SHELLS
    )
    # Code that is decoded at run time cannot be reviewed.
    if call.name in SHELLS and re.match(r"(?:base64|xxd|openssl|rev|tr|gunzip|zcat)\b", call.fed_by):
        return HIDDEN
    return RUNS_REMOTE if fetched and takes_script else None


def _sends(call: Call) -> Violation | None:
    text = " ".join(call.arguments)
    is_local = PATTERNS["local_url"].search(text) is not None
    secret = re.match(r"(?:env|printenv|set)(?: |$)", call.fed_by) or any(
        PATTERNS["secret_file"].search(part) for part in (text, call.fed_by)
    )
    if call.name in ("curl", "wget", "http", "https"):
        upload = PATTERNS["sent"].search(text)
        variable = re.search(r"\$\(|`|\$\{?\w*(?:KEY|TOKEN|SECRET|PASSWORD)", text, re.IGNORECASE) and upload
        if is_local or (not upload and not (secret and call.fed_by)):
            return None
        if secret or variable:
            return CARRIES_AWAY
        return SENDS if PATTERNS["sent_file"].search(text) else None
    # With -l or -z they listen or scan, and send nothing.
    if call.name in ("nc", "ncat", "netcat", "socat") and not call.has("-l", "-z") and not is_local:
        return CARRIES_AWAY if call.fed_by or "<" in text or secret or call.has("-e") else None
    if call.name in ("scp", "rsync", "sftp") and re.search(r"(?:\s|^)[\w.-]+@?[\w.-]*:\S*\s*$", text):
        return CARRIES_AWAY if secret else SENDS
    # A looked-up name reaches external servers, and data can be part of it.
    if call.name in ("dig", "nslookup", "host") and re.search(r"\$\(|`", text):
        return CARRIES_AWAY
    return None


def _reads(call: Call) -> Violation | None:
    readers = ("cat", "less", "head", "tail", "cp", "base64", "xxd", "strings", "grep", "tar", "zip", "security")
    text = " ".join(call.arguments)
    outside = re.search(r"(?:~|\$\{?HOME\}?|/home/\w+|/root|/etc)/\S*", text)
    reads_file = call.name in readers and outside and PATTERNS["secret_file"].search(text)
    return READS_SECRETS if reads_file or (call.name == "security" and "find-" in text) else None


def _costs(call: Call) -> Violation | None:
    amount = re.fullmatch(r"(\d+)([smhd]?)", call.arguments[0]) if call.name == "sleep" and call.arguments else None
    seconds = int(amount[1]) * {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}[amount[2]] if amount else 0
    return COSTLY if seconds > LONGEST_SLEEP_S else None


def _root(call: Call) -> Violation | None:
    return ROOT if AS_ROOT in call.arguments else None


RULES: tuple[Callable[[Call], Violation | None], ...] = (
    *(_removes, _finds, _git, _programs, _rights, _databases),
    *(_publishes, _remote_code, _sends, _reads, _costs, _root),
)


_NAMES = frozenset(WORDS["suspect_names"])
_TAKEN_OUT = str.maketrans("", "", "'\"\\")
_SEPARATORS = str.maketrans(dict.fromkeys(";&|()@/#`", " "))
_FIELDS = re.compile(r"\$\{?ifs\}?(?:\$\d)?")


def may_violate(text: str) -> bool:
    """Return whether a text may violate a command rule.

    If the result is False, the text does not violate any rule. Remove disguises with `plain` first.
    """
    bare = _FIELDS.sub(" ", text.replace("\\\n", " ").replace("\\\r\n", " ").translate(_TAKEN_OUT).lower())
    return (
        # Escapes may spell any name.
        "$'" in text
        or not _NAMES.isdisjoint(bare.translate(_SEPARATORS).split())
        or any(term in bare for term in WORDS["suspects"])
        or PATTERNS["suspects"].search(bare) is not None
    )


SCRIPTS_LIMIT = 40
"""Maximum number of scripts nested in one script."""


def find_violations(command: str) -> tuple[Violation, ...]:
    """Return the violations in a command or a script line. Other languages are covered less thoroughly."""
    text = plain(command)
    return check_script(text) if may_violate(text) else ()


def find_violations_in_words(argv: Sequence[str]) -> tuple[Violation, ...]:
    """Return the violations in a program and its arguments, which run without a shell."""
    violations = check_script(plain(shlex.join(plain(argument) for argument in argv)), is_strict=True)
    # Also check a script in a single word unquoted: quoting would hide what is quoted in it.
    inner = (violation for argument in argv[1:] for violation in _by_pattern(plain(argument)))
    return tuple(dict.fromkeys((*violations, *inner)))


def check_script(text: str, *, is_strict: bool = False) -> tuple[Violation, ...]:
    """Return the distinct violations in a script and its nested scripts.

    Args:
        text: the script after `plain` has removed disguises.
        is_strict: whether parts that cannot be parsed also count as violations.
    """
    reading = read_scripts(text)
    violations = [violation for script in reading.texts for violation in _by_pattern(script)]
    violations += [violation for call in reading.calls for rule in RULES if (violation := rule(call)) is not None]
    if reading.is_too_deep:
        violations.append(HIDDEN)
    if is_strict and not reading.is_complete:
        violations.append(UNREADABLE)
    return tuple(dict.fromkeys(violations))


class ParsedScript(NamedTuple):
    """A script and its nested scripts."""

    texts: tuple[str, ...]
    calls: tuple[Call, ...]
    is_complete: bool
    is_too_deep: bool
    assignments: tuple[Assignment, ...] = ()


def read_scripts(text: str) -> ParsedScript:
    """Parse a script and its nested scripts.

    Nested scripts are arguments to a shell, here-documents and multi-line strings.
    """
    waiting, texts, all_calls, assigned = [(text, True)], {text}, list[Call](), list[Assignment]()
    is_complete, is_too_deep = True, False
    while waiting and not is_too_deep:
        inner, must_be_complete = waiting.pop()
        script = read_script(plain(inner))
        script_calls = tuple(calls(script))
        all_calls += script_calls
        assigned += script.assignments
        assigned += [
            Assignment(assignment.partition("=")[0].rstrip("+"), assignment.partition("=")[2])
            for call in script_calls
            for assignment in call.assigned
        ]
        # A here-document may be any text.
        is_complete = is_complete and (script.is_complete or not must_be_complete)
        more = {
            **dict.fromkeys(script.embedded, False),
            **dict.fromkeys(map(script_in, script_calls), must_be_complete),
        }
        # Each text is read once, so a script that contains itself comes to an end.
        waiting += [(nested, strict) for nested, strict in more.items() if nested and nested not in texts]
        texts |= more.keys()
        is_too_deep = script.is_too_deep or len(texts) > SCRIPTS_LIMIT
    return ParsedScript(tuple(texts), tuple(all_calls), is_complete, is_too_deep, tuple(dict.fromkeys(assigned)))


def _by_pattern(text: str) -> Iterator[Violation]:
    # As in a shell: a backslash at a line end joins the lines, and IFS is white space.
    text = re.sub(r"\$\{?IFS\}?(?:\$\d)?", " ", re.sub(r"\\\r?\n", " ", text))
    for pattern, violation in SCRIPTS:
        if pattern.search(text):
            yield violation
    if PATTERNS["dump_sites"].search(text) and re.search(r"\b(?:curl|wget|nc|requests\.|fetch\(|axios|http)", text):
        yield CARRIES_AWAY


def script_in(call: Call) -> str:
    """Return the script passed to a command, such as the argument of `sh -c`, or ""."""
    arguments = call.arguments
    if (call.name in SHELLS and call.has("-c")) or (call.name in ("su", "cmd") and call.has("-c", "/c")):
        # `cmd /c` and `su -c` take a script too.
        return next((argument for argument in arguments if not argument.startswith(("-", "/c"))), "")
    if call.name == "eval" or call.name == "ssh":
        return " ".join(arguments[1:] if call.name == "ssh" else arguments)
    if call.name == "find" and ("-exec" in arguments or "-execdir" in arguments):
        at = arguments.index("-exec" if "-exec" in arguments else "-execdir")
        return shlex.join(
            # `{}` is some path below the folder that find searches.
            [*(argument for argument in arguments[at + 1 :] if argument not in ("{}", ";", "+")), f"{arguments[0]}/x"]
        )
    if call.name in ("python", "python3", "node", "perl", "ruby") and call.has("-c", "-e"):
        quoted = re.findall(
            r"(?:system|popen|run|call|check_call|exec|execSync)\(\s*[\"'](.+?)[\"']", " ".join(arguments)
        )
        return "\n".join(quoted)
    return ""
