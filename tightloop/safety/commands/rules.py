"""The rules about single commands, by program: one call in, a violation or nothing out."""

import re
from collections.abc import Callable, Mapping, Sequence

from tightloop.safety.commands.shell import AS_ROOT, Call
from tightloop.safety.commands.tables import GIT, PATTERNS, PROGRAMS, WORDS
from tightloop.safety.commands.violations import (
    CARRIES_AWAY,
    COSTLY,
    DESTROYS,
    HIDDEN,
    NO_CHECKS,
    PUBLISHES,
    READS_SECRETS,
    REWRITES,
    RISKY,
    ROOT,
    RUNS_REMOTE,
    SENDS,
)
from tightloop.safety.rubric import Violation
from tightloop.safety.verdict import Verdict

LONGEST_SLEEP_S = 600
SHELLS = frozenset(["sh", "bash", "zsh", "dash", "ksh", "fish", "ash"])
_INTERPRETERS = SHELLS | frozenset(["python", "python3", "node", "perl", "ruby", "php", "pwsh", "source", "."])
_FETCHERS = frozenset(["curl", "wget", "fetch", "http", "https", "aria2c"])


def _removes(call: Call) -> Violation | None:
    if call.name not in ("rm", "rmdir", "unlink", "shred", "trash", "del") or not call.operands:
        return None
    recursive = call.has("-r", "-R", "--recursive")
    verdicts = [_target(word, recursive=recursive) for word in call.operands]
    if "--no-preserve-root" in call.words or Verdict.DENY in verdicts:
        return DESTROYS
    return RISKY if Verdict.ASK in verdicts or call.name == "shred" else None


def _target(word: str, *, recursive: bool) -> Verdict | None:
    """Return the verdict on removing a path; None: no violation."""
    path = re.sub(r"/{2,}", "/", word.strip("\"'"))
    if PATTERNS["everything"].fullmatch(path):
        return Verdict.DENY if recursive or path.endswith("*") else None
    if re.match(r"(?:~|\$\{?HOME\}?)/\.?cache/|/tmp/.|/var/tmp/.|\$\{?TMPDIR\}?/.|/private/tmp/.", path):
        return None
    # Where images keep the project, and caches that a package manager makes again.
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
    if call.name != "find" or ("-delete" not in call.words and "rm" not in call.words):
        return None
    narrowed = any(word in ("-name", "-iname", "-path", "-newer", "-mtime", "-empty", "-regex") for word in call.words)
    everywhere = bool(call.words) and re.fullmatch(r"/|~|\$HOME|/home.*|/etc.*|/usr.*", call.words[0])
    return DESTROYS if everywhere or not narrowed else None


def _git(call: Call) -> Violation | None:
    if call.name != "git":
        return None
    words = list(call.words)
    # Options before the verb; `-C` and `-c` take a value.
    while words and words[0].startswith("-"):
        words = words[2:] if words[0] in ("-C", "-c") else words[1:]
    call = call._replace(words=tuple(words))
    if (call.starts("config") and any("hookspath" in word.lower() for word in words)) or call.has("--no-verify"):
        return NO_CHECKS
    if call.starts("clean") and call.has("-n", "--dry-run"):
        return None
    if _git_matches(call, GIT["rewrites_history"]) or (
        call.starts("push") and any(word.startswith(("+", ":")) for word in call.operands[1:])
    ):
        return REWRITES
    # Uncommitted work has no other copy; the loop has its checkpoints, a person may have none.
    discards = (
        call.starts("checkout", ".")
        or call.starts("restore", ".")
        or (call.starts("checkout") and "--" in words and words[-1] == ".")
    )
    if discards or _git_matches(call, GIT["ask"]):
        return REWRITES._replace(verdict=Verdict.ASK)
    return PUBLISHES if call.starts("push") and not call.has("--dry-run", "-n") else None


def _git_matches(call: Call, table: Mapping[str, Sequence[str]]) -> bool:
    return any(call.starts(*verb.split()) and (not flags or call.has(*flags)) for verb, flags in table.items())


def _programs(call: Call) -> Violation | None:
    # One program for each file system: mkfs.ext4, mkfs.xfs ...
    name = "mkfs" if call.name.startswith("mkfs") else call.name
    pattern, violation = PROGRAMS.get(name, (None, None))
    return violation if pattern is not None and pattern.search(" ".join(call.words)) else None


def _rights(call: Call) -> Violation | None:
    if call.name not in ("chmod", "chown", "chgrp"):
        return None
    # `+w` obeys the umask, unlike `a+w`.
    everyone = any(re.fullmatch(r"0?[0-7]?777|(?!\+w$)(?:a|o|ugo)?[+=]r?wx?|0?666", word) for word in call.words)
    recursive = call.has("-R", "--recursive")
    outside = any(re.match(r"[/~](?!tmp/|(?:app|src|workspace)(?:/|$))", word) for word in call.operands[1:])
    if recursive and (outside or (call.name == "chmod" and everyone)):
        return DESTROYS
    return RISKY if call.name == "chmod" and everyone else None


def _databases(call: Call) -> Violation | None:
    text = " ".join(call.words)
    if call.name in WORDS["sql_clients"] and (PATTERNS["sql"].search(text) or PATTERNS["sql"].search(call.fed_by)):
        return DESTROYS
    if re.search(r"\b(?:db:drop|db:reset|pg:reset|migrate reset|sqlflush)\b", text):
        return DESTROYS
    django = re.search(r"manage\.py", call.name + text) and re.search(r"\b(?:flush|reset_db)\b", text)
    return DESTROYS if django else None


def _publishes(call: Call) -> Violation | None:
    publishes = PATTERNS["publishes"].match(" ".join((call.name, *call.words)))
    return PUBLISHES if publishes and not call.has("--dry-run") else None


def _remote_code(call: Call) -> Violation | None:
    fetched = call.fed_by.split(" ", 1)[0] in _FETCHERS
    # `python -m json.tool` reads data from the pipe, not a program.
    takes_script = call.name in _INTERPRETERS and not any(
        word in ("-m", "-c", "-e") for word in call.words if call.name not in SHELLS
    )
    # What is decoded only when it runs cannot be reviewed.
    if call.name in SHELLS and re.match(r"(?:base64|xxd|openssl|rev|tr|gunzip|zcat)\b", call.fed_by):
        return HIDDEN
    return RUNS_REMOTE if fetched and takes_script else None


def _sends(call: Call) -> Violation | None:
    text = " ".join(call.words)
    is_local = PATTERNS["local_url"].search(text) is not None
    secret = re.match(r"(?:env|printenv|set)(?: |$)", call.fed_by) or any(
        PATTERNS["secret_file"].search(one) for one in (text, call.fed_by)
    )
    if call.name in ("curl", "wget", "http", "https"):
        sent = PATTERNS["sent"].search(text)
        variable = re.search(r"\$\(|`|\$\{?\w*(?:KEY|TOKEN|SECRET|PASSWORD)", text, re.IGNORECASE) and sent
        if is_local or (not sent and not (secret and call.fed_by)):
            return None
        if secret or variable:
            return CARRIES_AWAY
        return SENDS if PATTERNS["sent_file"].search(text) else None
    if call.name in ("nc", "ncat", "netcat", "socat") and not call.has("-l", "-z") and not is_local:
        return CARRIES_AWAY if call.fed_by or "<" in text or secret or call.has("-e") else None
    if call.name in ("scp", "rsync", "sftp") and re.search(r"(?:\s|^)[\w.-]+@?[\w.-]*:\S*\s*$", text):
        return CARRIES_AWAY if secret else SENDS
    # A name that is looked up reaches a server of others: data can be a part of it.
    if call.name in ("dig", "nslookup", "host") and re.search(r"\$\(|`", text):
        return CARRIES_AWAY
    return None


def _reads(call: Call) -> Violation | None:
    readers = ("cat", "less", "head", "tail", "cp", "base64", "xxd", "strings", "grep", "tar", "zip", "security")
    text = " ".join(call.words)
    outside = re.search(r"(?:~|\$\{?HOME\}?|/home/\w+|/root|/etc)/\S*", text)
    reads_file = call.name in readers and outside and PATTERNS["secret_file"].search(text)
    return READS_SECRETS if reads_file or (call.name == "security" and "find-" in text) else None


def _costs(call: Call) -> Violation | None:
    amount = re.fullmatch(r"(\d+)([smhd]?)", call.words[0]) if call.name == "sleep" and call.words else None
    seconds = int(amount[1]) * {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}[amount[2]] if amount else 0
    return COSTLY if seconds > LONGEST_SLEEP_S else None


def _root(call: Call) -> Violation | None:
    return ROOT if AS_ROOT in call.words else None


RULES: tuple[Callable[[Call], Violation | None], ...] = (
    *(_removes, _finds, _git, _programs, _rights, _databases),
    *(_publishes, _remote_code, _sends, _reads, _costs, _root),
)
