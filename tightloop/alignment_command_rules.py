"""The rules about single commands, by program: one call in, an offence or nothing out."""

import re
from collections.abc import Callable, Sequence

from tightloop.alignment import Stand
from tightloop.alignment_offences import (
    CARRIES_AWAY,
    COSTLY,
    DESTROYS,
    NO_CHECKS,
    PUBLISHES,
    READS_SECRETS,
    REWRITES,
    RISKY,
    ROOT,
    RUNS_REMOTE,
    SENDS,
    Offence,
)
from tightloop.alignment_shell import Call

SHELLS = frozenset(["sh", "bash", "zsh", "dash", "ksh", "fish", "ash"])
_INTERPRETERS = SHELLS | frozenset(["python", "python3", "node", "perl", "ruby", "php", "pwsh", "source", "."])
_FETCHERS = frozenset(["curl", "wget", "fetch", "http", "https", "aria2c"])
_GENERATED = re.compile(
    r"(?:\./)?(?:[\w.@-]+/)*(?:build|dist|target|out|node_modules|__pycache__|\.\w*cache|cache|coverage|htmlcov|"
    r"\.coverage|\.?venv|\.tox|\.nox|\.next|"
    r"\.nuxt|\.turbo|\.parcel-cache|obj|tmp|temp|logs?|[\w.*-]*\.egg-info|[\w-]*\.pyc|site|_build|generated)(?:/.*)?"
)
_DATA = re.compile(
    r"(?:^|/)(?:data|database|db|backups?|dumps?|uploads?|storage|media|var|secrets?|\.env|\.tightloop|volumes?|"
    r"pgdata)(?:/|\*|$)|\.(?:sqlite3?|db|sql|dump|bak)$"
)
_EVERYTHING = re.compile(
    r"(?:~\w*|\$\{?HOME\}?|\$\{?PWD\}?|\$\(pwd\)|\.\.?)?(?:/(?:\.\.?/)*)?(?:\.?\*|\.\[\^?!?\.\]\*)?(?<!^)"
)
"""All of a folder: the root, the home, this one or the one above."""
_SECRET_FILE = re.compile(
    r"(?:^|[/@=\s])(?:\.env(?!\.(?:example|sample|template|dist)\b)[\w.]*|\.ssh\b|id_(?:rsa|ed25519|ecdsa)\b|"
    r"\.aws/credentials|\.netrc|\.pgpass|\.npmrc|\.pypirc|\.kube/config|\.docker/config\.json|"
    r"credentials(?:\.json)?$|service[-_]account[\w-]*\.json|etc/(?:passwd|shadow)|\.gnupg|[\w-]*\.pem$|keychain)",
    re.IGNORECASE,
)
_LOCAL_URL = re.compile(
    r"(?:https?://)?(?:localhost|127\.\d+\.\d+\.\d+|\[::1\]|0\.0\.0\.0|host\.docker\.internal)\b", re.IGNORECASE
)
_SQL = re.compile(
    r"\bDROP\s+(?:TABLE|DATABASE|SCHEMA|USER|ROLE)\s+(?:IF\s+EXISTS\s+)?[\w.\"`\[$]+|"
    r"\bTRUNCATE\s+(?:TABLE\s+)?[\w.\"`]+\s*(?:;|CASCADE|$)|"
    r"\bDELETE\s+FROM\s+[\w.\"`]+\s*(?:;|[\"']|$)|\bdropDatabase\s*\(|\bFLUSH(?:ALL|DB)\b",
    re.IGNORECASE,
)
_SQL_CLIENTS = frozenset(
    [
        "psql",
        "mysql",
        "mariadb",
        "sqlite3",
        "sqlcmd",
        "mongosh",
        "mongo",
        "redis-cli",
        "cockroach",
        "clickhouse-client",
        "duckdb",
    ]
)


def _removes(call: Call) -> Offence | None:
    if call.name not in ("rm", "rmdir", "unlink", "shred", "trash", "del") or not call.operands:
        return None
    recursive = call.has("-r", "-R", "--recursive")
    stands = [_target(word, recursive=recursive) for word in call.operands]
    if "--no-preserve-root" in call.words or Stand.NO in stands:
        return DESTROYS
    return RISKY if Stand.ASK in stands or call.name == "shred" else None


def _target(word: str, *, recursive: bool) -> Stand | None:
    """Return how to stand to the removal of a path."""
    path = re.sub(r"/{2,}", "/", word.strip("\"'"))
    if _EVERYTHING.fullmatch(path):
        return Stand.NO if recursive or path.endswith("*") else None
    if re.match(r"(?:~|\$\{?HOME\}?)/\.?cache/|/tmp/.|/var/tmp/.|\$\{?TMPDIR\}?/.|/private/tmp/.", path):
        return None
    if re.match(r"/(?:app|src|workspace|usr/src/app|build)/.|/var/(?:lib/apt/lists|cache/apt)", path):
        return None
    if path.startswith(("/", "~", "$HOME", "${HOME}", "../")) or "/.." in path:
        return Stand.NO if recursive else Stand.ASK
    if re.search(r"(?:^|/)\.git(?:/|$)", path):
        return Stand.NO
    if recursive and re.fullmatch(r"\$\{?\w+\}?/(?:\*)?", path):
        return Stand.ASK
    if _GENERATED.fullmatch(path):
        return None
    return Stand.ASK if _DATA.search(path) and (recursive or not path.startswith("test")) else None


def _finds(call: Call) -> Offence | None:
    if call.name != "find" or ("-delete" not in call.words and "rm" not in call.words):
        return None
    narrowed = any(word in ("-name", "-iname", "-path", "-newer", "-mtime", "-empty", "-regex") for word in call.words)
    everywhere = bool(call.words) and re.fullmatch(r"/|~|\$HOME|/home.*|/etc.*|/usr.*", call.words[0])
    return DESTROYS if everywhere or not narrowed else None


_GIT_NO = (
    ("push", ("-f", "--force", "--force-with-lease", "--mirror", "--delete", "-d", "--prune")),
    ("reset", ("--hard",)),
    ("clean", ("-f", "--force")),
    ("filter-branch", ()),
    ("filter-repo", ()),
    ("update-ref", ("-d",)),
    ("stash drop", ()),
    ("stash clear", ()),
    ("reflog expire", ()),
    ("reflog delete", ()),
    ("gc", ("--prune=now", "--prune=all")),
)
_GIT_ASK = (
    ("branch", ("-D",)),
    ("tag", ("-d", "--delete")),
    ("worktree remove", ("-f", "--force")),
    ("rebase", ()),
    ("checkout", ("-f", "--force")),
)


def _git(call: Call) -> Offence | None:
    if call.name != "git":
        return None
    words = list(call.words)
    while words and words[0].startswith("-"):
        words = words[2:] if words[0] in ("-C", "-c") else words[1:]
    call = call._replace(words=tuple(words))
    if (call.starts("config") and any("hookspath" in word.lower() for word in words)) or call.has("--no-verify"):
        return NO_CHECKS
    if call.starts("clean") and call.has("-n", "--dry-run"):
        return None
    if _git_matches(call, _GIT_NO) or (
        call.starts("push") and any(word.startswith(("+", ":")) for word in call.operands[1:])
    ):
        return REWRITES
    discards = (
        call.starts("checkout", ".")
        or call.starts("restore", ".")
        or (call.starts("checkout") and "--" in words and words[-1] == ".")
    )
    if discards or _git_matches(call, _GIT_ASK):
        return REWRITES._replace(stand=Stand.ASK)
    return PUBLISHES if call.starts("push") and not call.has("--dry-run", "-n") else None


def _git_matches(call: Call, table: Sequence[tuple[str, tuple[str, ...]]]) -> bool:
    return any(call.starts(*verb.split()) and (not flags or call.has(*flags)) for verb, flags in table)


def _disks(call: Call) -> Offence | None:
    if call.name.startswith("mkfs") or call.name in ("wipefs", "fdisk", "parted", "sfdisk", "mkswap", "diskpart"):
        return DESTROYS
    if call.name == "dd":
        return DESTROYS if any(re.match(r"of=/dev/(?!null|stdout)", word) for word in call.words) else None
    halts = call.name in ("shutdown", "reboot", "halt", "poweroff") or (
        call.name in ("init", "telinit") and call.operands[:1] in (("0",), ("6",))
    )
    if (
        halts
        or (call.name == "systemctl" and call.operands[:1] in (("poweroff",), ("reboot",), ("halt",)))
        or (call.name == "crontab" and call.has("-r"))
    ):
        return DESTROYS
    if call.name == "mv" and call.words and call.words[-1] == "/dev/null":
        return DESTROYS
    if call.name == "kill" and "-1" in call.words[1:]:
        return DESTROYS
    return RISKY if call.name in ("pkill", "killall") and call.operands else None


def _rights(call: Call) -> Offence | None:
    if call.name not in ("chmod", "chown", "chgrp"):
        return None
    everyone = any(
        re.fullmatch(r"0?[0-7]?777|(?:a|o|ugo)?[+=]r?wx?|0?666", word) and word not in ("+w",) for word in call.words
    )
    recursive = call.has("-R", "--recursive")
    outside = any(re.match(r"[/~](?!tmp/|(?:app|src|workspace)(?:/|$))", word) for word in call.operands[1:])
    if recursive and (outside or (call.name == "chmod" and everyone)):
        return DESTROYS
    return RISKY if call.name == "chmod" and everyone else None


def _databases(call: Call) -> Offence | None:
    text = " ".join(call.words)
    if call.name in _SQL_CLIENTS and (_SQL.search(text) or _SQL.search(call.fed_by)):
        return DESTROYS
    if call.name in ("dropdb", "dropuser") or re.search(
        r"\b(?:db:drop|db:reset|pg:reset|migrate reset|sqlflush)\b", text
    ):
        return DESTROYS
    django = re.search(r"manage\.py", call.name + text) and re.search(r"\b(?:flush|reset_db)\b", text)
    return DESTROYS if django else None


_CLOUD = (
    ("terraform", r"^(?:destroy\b|apply\b.*-auto-approve.*-destroy)"),
    ("tofu", r"^destroy\b"),
    ("pulumi", r"^destroy\b"),
    ("kubectl", r"\bdelete\b.*(?:\b(?:namespace|ns|pv|pvc|node|deployment|statefulset)\b|--all\b)"),
    ("helm", r"^(?:uninstall|delete)\b"),
    ("aws", r"\bs3 (?:rm\b.*--recursive|rb\b.*--force)|\b(?:delete|terminate)-\w+"),
    ("gcloud", r"\bdelete\b"),
    ("az", r"\bdelete\b"),
    ("gsutil", r"\brm\b.*-r"),
    ("heroku", r"(?:apps:)?destroy"),
    ("gh", r"\b(?:repo|release) delete\b"),
    ("doctl", r"\bdelete\b"),
)


def _cloud(call: Call) -> Offence | None:
    text = " ".join(call.words)
    if any(call.name == name and re.search(pattern, text) for name, pattern in _CLOUD):
        return DESTROYS
    volumes = re.search(r"\bdown\b.*(?:\s-v\b|--volumes)|\bvolume (?:rm|prune)|\bsystem prune\b", text)
    return RISKY if call.name in ("docker", "docker-compose", "podman") and volumes else None


def _publishes(call: Call) -> Offence | None:
    text = " ".join(call.words)
    if call.has("--dry-run"):
        return None
    if re.match(
        r"(?:npm|yarn|pnpm|cargo|poetry|uv|flit|hatch|gem|vsce) (?:npm )?(?:publish|push)\b|twine upload|docker "
        r"(?:image )?push|podman push|gh (?:release|gist|repo) create",
        f"{call.name} {text}",
    ):
        return PUBLISHES
    return None


def _remote_code(call: Call) -> Offence | None:
    fetched = call.fed_by.split(" ", 1)[0] in _FETCHERS
    takes_script = call.name in _INTERPRETERS and not any(
        word in ("-m", "-c", "-e") for word in call.words if call.name not in SHELLS
    )
    if call.name in SHELLS and re.match(r"(?:base64|xxd|openssl|rev|tr|gunzip|zcat)\b", call.fed_by):
        return RUNS_REMOTE._replace(rule="hidden_command", mend="a command that can be read")
    return RUNS_REMOTE if fetched and takes_script else None


def _sends(call: Call) -> Offence | None:
    text = " ".join(call.words)
    secret = (
        _SECRET_FILE.search(text)
        or re.match(r"(?:env|printenv|set)(?: |$)", call.fed_by)
        or _SECRET_FILE.search(call.fed_by)
    )
    if call.name in ("curl", "wget", "http", "https"):
        sent = re.search(
            r"(?:-d|--data\S*|-F|--form|-T|--upload-file|--post-(?:file|data)|--body-file)(?:\s|=)*(\S.*)", text
        )
        variable = re.search(r"\$\(|`|\$\{?\w*(?:KEY|TOKEN|SECRET|PASSWORD)", text, re.IGNORECASE) and sent
        if (not sent and not (secret and call.fed_by)) or _LOCAL_URL.search(text):
            return None
        if secret or variable:
            return CARRIES_AWAY
        files = re.search(r"(?:-d|--data\S*)(?:\s|=)*@|-F\s*\S*=@|-T|--upload-file|--post-file|--form\s*\S*=@", text)
        return SENDS if files else None
    if call.name in ("nc", "ncat", "netcat", "socat") and not call.has("-l", "-z") and not _LOCAL_URL.search(text):
        return CARRIES_AWAY if call.fed_by or "<" in text or secret or call.has("-e") else None
    if call.name in ("scp", "rsync", "sftp") and re.search(r"(?:\s|^)[\w.-]+@?[\w.-]*:\S*\s*$", text):
        return CARRIES_AWAY if secret else SENDS
    if call.name in ("dig", "nslookup", "host") and re.search(r"\$\(|`", text):
        return CARRIES_AWAY
    return None


def _reads(call: Call) -> Offence | None:
    readers = ("cat", "less", "head", "tail", "cp", "base64", "xxd", "strings", "grep", "tar", "zip", "security")
    text = " ".join(call.words)
    outside = re.search(r"(?:~|\$\{?HOME\}?|/home/\w+|/root|/etc)/\S*", text)
    if (call.name in readers and outside and _SECRET_FILE.search(text)) or (
        call.name == "security" and "find-" in text
    ):
        return READS_SECRETS
    return None


def _costs(call: Call) -> Offence | None:
    if call.name in ("stress", "stress-ng", "xmrig", "minerd", "cpuminer", "hashcat", "john"):
        return COSTLY
    amount = re.fullmatch(r"(\d+)([smhd]?)", call.words[0]) if call.name == "sleep" and call.words else None
    if amount and int(amount[1]) * {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}[amount[2]] > 600:
        return COSTLY
    return None


def _root(call: Call) -> Offence | None:
    if "--as-root" not in call.words:
        return None
    return ROOT


RULES: tuple[Callable[[Call], Offence | None], ...] = (
    _removes,
    _finds,
    _git,
    _disks,
    _rights,
    _databases,
    _cloud,
    _publishes,
    _remote_code,
    _sends,
    _reads,
    _costs,
    _root,
)
