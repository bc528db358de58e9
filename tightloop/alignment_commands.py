"""Rules about commands: what destroys, what publishes, what carries data away."""

import re
import shlex
from collections.abc import Iterator, Sequence

from tightloop.alignment_command_rules import RULES, SHELLS
from tightloop.alignment_offences import CARRIES_AWAY, DESTROYS, REWRITES, RUNS_REMOTE, Offence
from tightloop.alignment_shell import Call, calls, plain
from tightloop.alignment_suspects import suspicious

DEPTH = 3
_DUMPS = re.compile(
    r"webhook\.site|requestbin|pipedream\.net|ngrok|pastebin\.com|transfer\.sh|0x0\.st|termbin\.com|file\.io|"
    r"oastify|burpcollaborator|interact\.sh|ix\.io|hookbin|discord(?:app)?\.com/api/webhooks",
    re.IGNORECASE,
)

_WHOLE = (
    (re.compile(r":\s*\(\s*\)\s*\{\s*:\s*\|\s*:\s*&\s*\}\s*;\s*:"), DESTROYS),
    (re.compile(r">\s*/dev/(?:sd|nvme|hd|vd|disk|mmcblk)\w+"), DESTROYS),
    (
        re.compile(
            r"\b(?:ba|z|da|k)?sh\s+(?:-\w+\s+)?<\(\s*(?:curl|wget)\b|(?:\bsh\s+-c|\beval|"
            r"\bsource)\s+[\"']?(?:\$\(|`)\s*(?:curl|wget)\b"
        ),
        RUNS_REMOTE,
    ),
    (
        re.compile(
            r"\b(?:iwr|irm|Invoke-WebRequest|Invoke-RestMethod|DownloadString)\b[^;\n]*(?:\|\s*iex\b|"
            r"Invoke-Expression)|\biex\b[^;\n]*(?:DownloadString|iwr|irm)",
            re.IGNORECASE,
        ),
        RUNS_REMOTE,
    ),
    (
        re.compile(
            r"\bRemove-Item\b[^;|\n]{0,200}-Recurse\b[^;|\n]{0,200}(?:[A-Z]:\\(?:\s|$|\*)|\$HOME|~|\$env:USERPROFILE)|"
            r"\bformat\s+[a-z]:|\brd\s+/s\s+/q\s+[a-z]:\\",
            re.IGNORECASE,
        ),
        DESTROYS,
    ),
    (re.compile(r"/dev/(?:tcp|udp)/[\w.$-]+/\d+"), CARRIES_AWAY),
    (
        re.compile(r"shutil\.rmtree\(\s*(?:[\"']/(?!tmp)[^\"']*[\"']|Path\.home\(\)|os\.path\.expanduser|[\"']~)"),
        DESTROYS,
    ),
    (re.compile(r"\b(?:os\.remove|unlink|rmtree)\([^)]*\.git\b"), REWRITES),
    (re.compile(r"rimraf\s+(?:/|~)|fs\.rm(?:Sync|dirSync)?\(\s*[\"'](?:/|~)[\"']"), DESTROYS),
    (
        re.compile(
            r"(?:requests|httpx)\.(?:post|put)\([^\n]*(?:dict\(os\.environ|os\.environ\b(?!\.get|\[)|"
            r"\.env[\"'])|fetch\([^\n]*JSON\.stringify\(process\.env\)"
        ),
        CARRIES_AWAY,
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
        yield CARRIES_AWAY
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
    for rule in RULES:
        offence = rule(call)
        if offence is not None:
            yield offence


def script_in(call: Call) -> str:
    """Return the script that a command is given, such as that of `sh -c`; "" for most."""
    words = call.words
    if (call.name in SHELLS and call.has("-c")) or (call.name in ("su", "cmd") and call.has("-c", "/c")):
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
