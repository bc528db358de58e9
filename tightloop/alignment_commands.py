"""Rules about commands: what destroys, what publishes, what carries data away."""

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from tightloop.alignment import Stand, Topic
from tightloop.alignment_shell import Call, calls, plain
from tightloop.alignment_suspects import suspicious

DEPTH = 3


class Offence(NamedTuple):
    """What a rule says of a command."""

    rule: str
    topic: Topic
    stand: Stand
    mend: str


_DESTROYS = Offence(
    "destructive_command",
    Topic.DAMAGE,
    Stand.NO,
    "a command that touches only files of this project which can be made again",
)
_RISKY = _DESTROYS._replace(rule="risky_command", stand=Stand.ASK)
_REWRITES = Offence(
    "rewrites_history",
    Topic.DAMAGE,
    Stand.NO,
    "leave git's history, branches and uncommitted work alone: the loop has checkpoints for that",
)
_RUNS_REMOTE = Offence(
    "runs_remote_code",
    Topic.DAMAGE,
    Stand.NO,
    "download to a file with a pinned version and checksum, look at it, then run it",
)
_PUBLISHES = Offence("publishes", Topic.PRIVACY, Stand.ASK, "leave publishing and pushing to a person")
_CARRIES_AWAY = Offence("carries_data_away", Topic.PRIVACY, Stand.NO, "send nothing of this host to others")
_SENDS = _CARRIES_AWAY._replace(
    rule="sends_data", stand=Stand.ASK, mend="send only to this host, or say why it must go there"
)
_READS_SECRETS = Offence("reads_secrets", Topic.PRIVACY, Stand.ASK, "do not read keys and credentials of the user")
_NO_CHECKS = Offence("skips_hooks", Topic.CHECKS, Stand.ASK, "let hooks and checks run")
_COSTLY = Offence("costly_command", Topic.COST, Stand.ASK, "a bounded run of a few minutes")
_ROOT = Offence("needs_root", Topic.DAMAGE, Stand.ASK, "work inside the project, without the rights of root")

_SHELLS = frozenset(["sh", "bash", "zsh", "dash", "ksh", "fish", "ash"])
_INTERPRETERS = _SHELLS | frozenset(["python", "python3", "node", "perl", "ruby", "php", "pwsh", "source", "."])
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
_DUMPS = re.compile(
    r"webhook\.site|requestbin|pipedream\.net|ngrok|pastebin\.com|transfer\.sh|0x0\.st|termbin\.com|file\.io|"
    r"oastify|burpcollaborator|interact\.sh|ix\.io|hookbin|discord(?:app)?\.com/api/webhooks",
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

_WHOLE = (
    (re.compile(r":\s*\(\s*\)\s*\{\s*:\s*\|\s*:\s*&\s*\}\s*;\s*:"), _DESTROYS),
    (re.compile(r">\s*/dev/(?:sd|nvme|hd|vd|disk|mmcblk)\w+"), _DESTROYS),
    (
        re.compile(
            r"\b(?:ba|z|da|k)?sh\s+(?:-\w+\s+)?<\(\s*(?:curl|wget)\b|(?:\bsh\s+-c|\beval|"
            r"\bsource)\s+[\"']?(?:\$\(|`)\s*(?:curl|wget)\b"
        ),
        _RUNS_REMOTE,
    ),
    (
        re.compile(
            r"\b(?:iwr|irm|Invoke-WebRequest|Invoke-RestMethod|DownloadString)\b[^;\n]*(?:\|\s*iex\b|"
            r"Invoke-Expression)|\biex\b[^;\n]*(?:DownloadString|iwr|irm)",
            re.IGNORECASE,
        ),
        _RUNS_REMOTE,
    ),
    (
        re.compile(
            r"\bRemove-Item\b[^;|\n]{0,200}-Recurse\b[^;|\n]{0,200}(?:[A-Z]:\\(?:\s|$|\*)|\$HOME|~|\$env:USERPROFILE)|"
            r"\bformat\s+[a-z]:|\brd\s+/s\s+/q\s+[a-z]:\\",
            re.IGNORECASE,
        ),
        _DESTROYS,
    ),
    (re.compile(r"/dev/(?:tcp|udp)/[\w.$-]+/\d+"), _CARRIES_AWAY),
    (
        re.compile(r"shutil\.rmtree\(\s*(?:[\"']/(?!tmp)[^\"']*[\"']|Path\.home\(\)|os\.path\.expanduser|[\"']~)"),
        _DESTROYS,
    ),
    (re.compile(r"\b(?:os\.remove|unlink|rmtree)\([^)]*\.git\b"), _REWRITES),
    (re.compile(r"rimraf\s+(?:/|~)|fs\.rm(?:Sync|dirSync)?\(\s*[\"'](?:/|~)[\"']"), _DESTROYS),
    (
        re.compile(
            r"(?:requests|httpx)\.(?:post|put)\([^\n]*(?:dict\(os\.environ|os\.environ\b(?!\.get|\[)|"
            r"\.env[\"'])|fetch\([^\n]*JSON\.stringify\(process\.env\)"
        ),
        _CARRIES_AWAY,
    ),
)


def offences(command: str, *, depth: int = DEPTH) -> Iterator[Offence]:
    """Return what the rules say of a command or a line of a script."""
    text = plain(command)
    return taken_apart(text, depth=depth) if suspicious(text) else iter(())


def taken_apart(command: str, *, depth: int = DEPTH) -> Iterator[Offence]:
    """Return the same as `offences`, without a look beforehand whether it can be anything."""
    text = re.sub(r"\\\r?\n", " ", plain(command))
    text = re.sub(r"\$\{?IFS\}?(?:\$\d)?", " ", text)
    for pattern, offence in _WHOLE:
        if pattern.search(text):
            yield offence
    if _DUMPS.search(text) and re.search(r"\b(?:curl|wget|nc|requests\.|fetch\(|axios|http)", text):
        yield _CARRIES_AWAY
    for call in calls(text):
        yield from _of_call(call, depth)


def of_words(words: Sequence[str]) -> Iterator[Offence]:
    """Return what the rules say of a program with its arguments, which no shell will see."""
    yield from offences(shlex.join(plain(word) for word in words))
    # A script in one word is read as it is, too: quoting it would hide what is quoted in it.
    for word in words[1:]:
        for pattern, offence in _WHOLE:
            if pattern.search(plain(word)):
                yield offence


def _of_call(call: Call, depth: int) -> Iterator[Offence]:
    inner = script_in(call)
    if inner and depth > 0:
        yield from offences(inner, depth=depth - 1)
    for rule in _RULES:
        offence = rule(call)
        if offence is not None:
            yield offence


def script_in(call: Call) -> str:
    """Return the script that a command is given, such as that of `sh -c`; "" for most."""
    words = call.words
    if (call.name in _SHELLS and call.has("-c")) or (call.name in ("su", "cmd") and call.has("-c", "/c")):
        return next((word for word in words if not word.startswith(("-", "/c"))), "")
    if call.name == "eval" or call.name == "ssh":
        return " ".join(words[1:] if call.name == "ssh" else words)
    if call.name == "find" and ("-exec" in words or "-execdir" in words):
        at = words.index("-exec" if "-exec" in words else "-execdir")
        return " ".join(word for word in words[at + 1 :] if word not in ("{}", ";", "+")) + f" {words[0]}/x"
    if call.name in ("python", "python3", "node", "perl", "ruby") and call.has("-c", "-e"):
        quoted = re.findall(r"(?:system|popen|run|call|check_call|exec|execSync)\(\s*[\"'](.+?)[\"']", " ".join(words))
        return "\n".join(quoted)
    return ""


# -- the rules: one call in, an offence or nothing out -----------------------------------------------


def _removes(call: Call) -> Offence | None:
    if call.name not in ("rm", "rmdir", "unlink", "shred", "trash", "del") or not call.operands:
        return None
    recursive = call.has("-r", "-R", "--recursive")
    stands = [_target(word, recursive=recursive) for word in call.operands]
    if "--no-preserve-root" in call.words or Stand.NO in stands:
        return _DESTROYS
    return _RISKY if Stand.ASK in stands or call.name == "shred" else None


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
    return _DESTROYS if everywhere or not narrowed else None


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
        return _NO_CHECKS
    if call.starts("clean") and call.has("-n", "--dry-run"):
        return None
    if _git_matches(call, _GIT_NO) or (
        call.starts("push") and any(word.startswith(("+", ":")) for word in call.operands[1:])
    ):
        return _REWRITES
    discards = (
        call.starts("checkout", ".")
        or call.starts("restore", ".")
        or (call.starts("checkout") and "--" in words and words[-1] == ".")
    )
    if discards or _git_matches(call, _GIT_ASK):
        return _REWRITES._replace(stand=Stand.ASK)
    return _PUBLISHES if call.starts("push") and not call.has("--dry-run", "-n") else None


def _git_matches(call: Call, table: Sequence[tuple[str, tuple[str, ...]]]) -> bool:
    return any(call.starts(*verb.split()) and (not flags or call.has(*flags)) for verb, flags in table)


def _disks(call: Call) -> Offence | None:
    if call.name.startswith("mkfs") or call.name in ("wipefs", "fdisk", "parted", "sfdisk", "mkswap", "diskpart"):
        return _DESTROYS
    if call.name == "dd":
        return _DESTROYS if any(re.match(r"of=/dev/(?!null|stdout)", word) for word in call.words) else None
    halts = call.name in ("shutdown", "reboot", "halt", "poweroff") or (
        call.name in ("init", "telinit") and call.operands[:1] in (("0",), ("6",))
    )
    if (
        halts
        or (call.name == "systemctl" and call.operands[:1] in (("poweroff",), ("reboot",), ("halt",)))
        or (call.name == "crontab" and call.has("-r"))
    ):
        return _DESTROYS
    if call.name == "mv" and call.words and call.words[-1] == "/dev/null":
        return _DESTROYS
    if call.name == "kill" and "-1" in call.words[1:]:
        return _DESTROYS
    return _RISKY if call.name in ("pkill", "killall") and call.operands else None


def _rights(call: Call) -> Offence | None:
    if call.name not in ("chmod", "chown", "chgrp"):
        return None
    everyone = any(
        re.fullmatch(r"0?[0-7]?777|(?:a|o|ugo)?[+=]r?wx?|0?666", word) and word not in ("+w",) for word in call.words
    )
    recursive = call.has("-R", "--recursive")
    outside = any(re.match(r"[/~](?!tmp/|(?:app|src|workspace)(?:/|$))", word) for word in call.operands[1:])
    if recursive and (outside or (call.name == "chmod" and everyone)):
        return _DESTROYS
    return _RISKY if call.name == "chmod" and everyone else None


def _databases(call: Call) -> Offence | None:
    text = " ".join(call.words)
    if call.name in _SQL_CLIENTS and (_SQL.search(text) or _SQL.search(call.fed_by)):
        return _DESTROYS
    if call.name in ("dropdb", "dropuser") or re.search(
        r"\b(?:db:drop|db:reset|pg:reset|migrate reset|sqlflush)\b", text
    ):
        return _DESTROYS
    django = re.search(r"manage\.py", call.name + text) and re.search(r"\b(?:flush|reset_db)\b", text)
    return _DESTROYS if django else None


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
        return _DESTROYS
    volumes = re.search(r"\bdown\b.*(?:\s-v\b|--volumes)|\bvolume (?:rm|prune)|\bsystem prune\b", text)
    return _RISKY if call.name in ("docker", "docker-compose", "podman") and volumes else None


def _publishes(call: Call) -> Offence | None:
    text = " ".join(call.words)
    if call.has("--dry-run"):
        return None
    if re.match(
        r"(?:npm|yarn|pnpm|cargo|poetry|uv|flit|hatch|gem|vsce) (?:npm )?(?:publish|push)\b|twine upload|docker "
        r"(?:image )?push|podman push|gh (?:release|gist|repo) create",
        f"{call.name} {text}",
    ):
        return _PUBLISHES
    return None


def _remote_code(call: Call) -> Offence | None:
    fetched = call.fed_by.split(" ", 1)[0] in _FETCHERS
    takes_script = call.name in _INTERPRETERS and not any(
        word in ("-m", "-c", "-e") for word in call.words if call.name not in _SHELLS
    )
    if call.name in _SHELLS and re.match(r"(?:base64|xxd|openssl|rev|tr|gunzip|zcat)\b", call.fed_by):
        return _RUNS_REMOTE._replace(rule="hidden_command", mend="a command that can be read")
    return _RUNS_REMOTE if fetched and takes_script else None


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
            return _CARRIES_AWAY
        files = re.search(r"(?:-d|--data\S*)(?:\s|=)*@|-F\s*\S*=@|-T|--upload-file|--post-file|--form\s*\S*=@", text)
        return _SENDS if files else None
    if call.name in ("nc", "ncat", "netcat", "socat") and not call.has("-l", "-z") and not _LOCAL_URL.search(text):
        return _CARRIES_AWAY if call.fed_by or "<" in text or secret or call.has("-e") else None
    if call.name in ("scp", "rsync", "sftp") and re.search(r"(?:\s|^)[\w.-]+@?[\w.-]*:\S*\s*$", text):
        return _CARRIES_AWAY if secret else _SENDS
    if call.name in ("dig", "nslookup", "host") and re.search(r"\$\(|`", text):
        return _CARRIES_AWAY
    return None


def _reads(call: Call) -> Offence | None:
    readers = ("cat", "less", "head", "tail", "cp", "base64", "xxd", "strings", "grep", "tar", "zip", "security")
    text = " ".join(call.words)
    outside = re.search(r"(?:~|\$\{?HOME\}?|/home/\w+|/root|/etc)/\S*", text)
    if (call.name in readers and outside and _SECRET_FILE.search(text)) or (
        call.name == "security" and "find-" in text
    ):
        return _READS_SECRETS
    return None


def _costs(call: Call) -> Offence | None:
    if call.name in ("stress", "stress-ng", "xmrig", "minerd", "cpuminer", "hashcat", "john"):
        return _COSTLY
    amount = re.fullmatch(r"(\d+)([smhd]?)", call.words[0]) if call.name == "sleep" and call.words else None
    if amount and int(amount[1]) * {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}[amount[2]] > 600:
        return _COSTLY
    return None


def _root(call: Call) -> Offence | None:
    if "--as-root" not in call.words:
        return None
    return _ROOT


_RULES: tuple[Callable[[Call], Offence | None], ...] = (
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
