"""Judges requests by the hosts that a plan's policy lists, for every request and every redirect."""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from tightloop.safety.address import is_private

PORTS = {"http": 80, "https": 443}
ADDRESS_CHARACTERS = 2_000
_ENTRY = re.compile(r"(?P<below>\*\.)?(?:[\w-]+(?:\.[\w-]+)*\.?|\[[0-9a-fA-F:.]+\])(?::(?P<port>\d{1,6}))?")


class Host(NamedTuple):
    """Where a request goes."""

    name: str
    """In lower case, without brackets."""
    port: int

    @property
    def authority(self) -> str:
        """Such as `127.0.0.1:8080` or `[::1]:80`."""
        return f"[{self.name}]:{self.port}" if ":" in self.name else f"{self.name}:{self.port}"


class HostRuling(NamedTuple):
    """Whether a host may be asked."""

    refusal: str = ""
    """Why not, with the rule; empty: it may."""
    private: bool = False
    """A private address may stand behind the name too, because host and port are listed."""


def host_of(url: str) -> Host | None:
    """Return where a URL points to; None where it is not a web address."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    # A trailing dot names the same host in the DNS.
    name = (parts.hostname or "").rstrip(".").lower()
    if parts.scheme not in PORTS or not name or len(url) > ADDRESS_CHARACTERS:
        return None
    return Host(name, port or PORTS[parts.scheme])


def find_entry_fault(entry: str) -> tuple[str, str] | None:
    """Return why an entry of `Policy.network` names no host, and what to write; None if it does."""
    text = entry.strip()
    if "://" in text:
        host = host_of(text)
        meant = "" if host is None else host.name if host.port in PORTS.values() else host.authority
        return f"'{entry}' is an address, not a host", f"Write `{meant or 'example.org'}`"
    found = _ENTRY.fullmatch(text)
    if found is None:
        bare = re.split(r"[/?#]", text.rpartition("@")[2])[0].strip("*.")
        meant = bare if _ENTRY.fullmatch(bare) else "*.example.org"
        return f"'{entry}' does not name a host", f"Write a host such as `{meant}`, or `example.org:8443`"
    if found["port"] and not 0 < int(found["port"]) < 65_536:
        return f"'{entry}' has a port that does not exist", "Ports are from 1 to 65535"
    if found["below"] and found["port"]:
        return f"'{entry}' never fits: `*.` stands for the usual ports", "Name each host with its port"
    return None


def judge_url(url: str, network: Iterable[str]) -> HostRuling:
    """Return whether the policy lets a URL be asked.

    `example.org` allows that host at the usual ports, `*.example.org` those below it, `host:port` exactly that one,
    and only that one may be a private address.
    `network` has the hosts of `Policy.network`.
    """
    host = host_of(url)
    shown = url[:200]
    if host is None:
        return HostRuling(
            f"'{shown}' is not an http or https address. Give it in full, such as https://example.org/page"
        )
    parts = urlsplit(url)
    if parts.username or parts.password:
        return HostRuling("an address holds a name or password. Name an environment variable in secret_headers instead")
    rules = [rule.strip().lower() for rule in network]
    if host.authority in rules:
        return HostRuling(private=True)
    if host.port in PORTS.values() and any(_fits(host.name, rule) for rule in rules):
        return HostRuling()
    usual = host.port in PORTS.values() and not is_private(host.name)
    entry = host.name if usual else host.authority
    return HostRuling(
        f"policy.network does not list {host.authority}, which '{shown}' needs. Add '{entry}' to allow it"
    )


def judge_secrets(url: str, variables: Iterable[str], secrets: Mapping[str, Iterable[str]]) -> str:
    """Return why these variables of the worker must not be sent to a URL, or "".

    `secrets` is the setting `plans.secrets`: variable -> hosts, written as in `Policy.network`. A host without a port
    gets its secrets by https only; `host:port` is taken as it is, for services on this host.
    """
    host = host_of(url)
    if host is None:
        return f"'{url[:200]}' is not an http or https address"
    for variable in variables:
        rules = [rule.strip().lower() for rule in secrets.get(variable, ())]
        by_name = any(_fits(host.name, rule) for rule in rules)
        if host.authority in rules or (by_name and url.lower().startswith("https:") and host.port == PORTS["https"]):
            continue
        if by_name:
            return f"plans.secrets sends ${variable} to {host.name} by https at port 443 only. Change the address"
        entry = host.name if host.port == PORTS["https"] else host.authority
        return (
            f"the worker's settings do not let ${variable} be sent to {host.authority}. If it should be, whoever runs "
            f"the worker adds to its settings: plans: {{secrets: {{{variable}: ['{entry}']}}}}"
        )
    return ""


def _fits(name: str, rule: str) -> bool:
    if rule.startswith("*."):
        return name.endswith(rule[1:]) and len(name) > len(rule) - 1
    return name == rule.strip("[]")


def independent_hosts(sources: Iterable[object]) -> frozenset[str]:
    """Return the different hosts of sources: URLs, or mappings with `url`. `www.` makes no other host."""
    found: set[str] = set()
    for source in sources:
        url = source.get("url", "") if isinstance(source, dict) else source
        host = host_of(url) if isinstance(url, str) else None
        if host is not None:
            found.add(host.name.removeprefix("www."))
    return frozenset(found)
