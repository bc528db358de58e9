"""Telling fast that no rule about commands can be about a text, so that only the others have to be taken apart.

A text is suspicious if it has the name of a program, or a word, that some rule about commands needs. Quotes and
backslashes are taken out first, as a shell does, and what separates words for a shell separates them here, so that
more is suspicious than breaks a rule, and never less. A test holds it against the rules themselves.
"""

import re

_NAMES = frozenset((
    "rm", "rmdir", "unlink", "shred", "trash", "del", "find", "git", "wipefs", "fdisk", "parted", "sfdisk", "mkswap",
    "diskpart", "dd", "shutdown", "reboot", "halt", "poweroff", "init", "telinit", "systemctl", "crontab", "mv",
    "kill", "pkill", "killall", "chmod", "chown", "chgrp", "psql", "mysql", "mariadb", "sqlite3", "sqlcmd",
    "mongosh", "mongo", "redis-cli", "cockroach", "clickhouse-client", "duckdb", "dropdb", "dropuser", "terraform",
    "tofu", "pulumi", "kubectl", "helm", "aws", "gcloud", "az", "gsutil", "heroku", "gh", "doctl", "docker",
    "docker-compose", "podman", "npm", "yarn", "pnpm", "cargo", "poetry", "uv", "flit", "hatch", "gem", "vsce",
    "twine", "curl", "wget", "fetch", "http", "https", "aria2c", "nc", "ncat", "netcat", "socat", "scp", "rsync",
    "sftp", "dig", "nslookup", "host", "security", "stress", "stress-ng", "xmrig", "minerd", "cpuminer", "hashcat",
    "john", "sleep", "sudo", "doas",
))  # fmt: skip
_WORDS = (
    "mkfs", "/dev/", "curl", "wget", "iwr", "irm", "iex", "invoke-", "downloadstring", "remove-item", "rmtree",
    "os.remove", "unlink", "rimraf", "fs.rm", "requests.", "httpx.", "fetch(", "webhook", "requestbin",
    "pipedream.net", "ngrok", "pastebin.com", "transfer.sh", "0x0.st", "termbin.com", "file.io", "oastify",
    "burpcollaborator", "interact.sh", "ix.io", "hookbin", ".env", ".ssh", "id_rsa", "id_ed25519", "id_ecdsa",
    ".aws/", ".netrc", ".pgpass", ".npmrc", ".pypirc", ".kube/", ".docker/", "credentials", "service-account",
    "service_account", "etc/passwd", "etc/shadow", ".gnupg", ".pem", "keychain", "db:drop", "db:reset", "pg:reset",
    "migrate", "sqlflush", "manage", "--as-root",
)  # fmt: skip
_PATTERNS = re.compile(
    r"\(\s*\)\s*\{|format\s+[a-z]:|rd\s+/s|(?<![a-z0-9_])(?:base64|xxd|openssl|rev|tr|gunzip|zcat)\b[^\n]*\|"
)
_TAKEN_OUT = str.maketrans("", "", "'\"\\")
_SEPARATORS = str.maketrans(dict.fromkeys(";&|()@/#", " "))
_FIELDS = re.compile(r"\$\{?ifs\}?(?:\$\d)?")


def suspicious(text: str) -> bool:
    """Return whether a rule about commands may be about a text, of one line or many; False is certain.

    Disguises that `plain` takes off must be off.
    """
    bare = _FIELDS.sub(" ", text.replace("\\\n", " ").replace("\\\r\n", " ").translate(_TAKEN_OUT).lower())
    return (
        not _NAMES.isdisjoint(bare.translate(_SEPARATORS).split())
        or any(word in bare for word in _WORDS)
        or _PATTERNS.search(bare) is not None
    )
