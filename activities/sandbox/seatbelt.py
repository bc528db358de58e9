"""macOS sandbox with a Seatbelt profile for `sandbox-exec`. Memory, processes and time are only sampled."""

import functools
import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Unpack

from activities.process import Callbacks, ProcessRequest, Reason, run_process, search_path
from activities.sandbox.control_group import UNSANDBOXED_LIMITS, refuse_untrusted_program, request_of, run_with_limits
from activities.sandbox.port import Enforcement, Limit, SandboxPermissions, SandboxResult, SandboxSpec
from activities.sandbox.proxy import EgressProxy, open_loopback_proxy
from activities.sandbox.visible import Access, agent_access, command_access, git_folders, relocate
from tightloop.host import state_home
from tightloop.host.programs import TrustedProgram

NAME = "sandbox-exec"
PROGRAM = TrustedProgram("sandbox-exec", Path("/usr/bin/sandbox-exec"))
PROBE_S = 10.0
HOW_TO_GET = "sandbox-exec is part of macOS. A process that is already in a sandbox cannot start another sandbox"
SYSTEM = (
    "/bin", "/sbin", "/usr", "/System", "/Library/Apple", "/Library/Developer/CommandLineTools", "/Library/Frameworks",
    "/Applications/Xcode.app/Contents/Developer", "/private/etc/hosts", "/private/etc/passwd", "/private/etc/group",
    "/private/etc/services", "/private/etc/protocols", "/private/etc/localtime", "/private/etc/ssl",
    "/private/etc/resolv.conf", "/private/var/db/timezone", "/private/var/db/dyld", "/private/var/select",
    "/private/var/run/resolv.conf", "/dev",
)  # fmt: skip

_BY_PROFILE = (Limit.WRITES, Limit.READS, Limit.GIT, Limit.NAMESPACES, Limit.NETWORK)
_FIXED = Path(__file__).with_suffix(".sb").read_text(encoding="utf-8")


def profile(access: Access, proxy: EgressProxy | None = None) -> str:
    """Build the Seatbelt profile for a command. The last matching rule of a profile wins.

    With `proxy`, the command can connect to the proxy's loopback ports and listen on loopback itself.
    Without `proxy`, the command has no network.
    """
    # Worktrees and agents' homes are in the state home: they are restored after it is hidden.
    home = state_home().resolve()
    writable = [path for path in access.writable if path.resolve().is_relative_to(home)]
    readable = [path for path in access.readable if path.resolve().is_relative_to(home)]
    # On macOS a rule also covers paths that do not exist yet, such as a folder's `.git`.
    git = (
        path
        for folder in access.writable
        for path in (folder / ".git", *git_folders(folder, tree=folder == access.root))
    )
    rules = (
        *_rules("(allow file-read*", (*map(Path, SYSTEM), *access.programs, *git_folders(access.root, tree=True))),
        *_rules("(allow file-read*", access.readable),
        *_rules("(allow file-read* file-write*", access.writable),
        *_rules("(deny file-read* file-write*", [home]),
        *_rules("(allow file-read*", readable),
        *_rules("(allow file-read* file-write*", writable),
        *_rules("(deny file-write*", git),
    )
    network = ["(deny network*)"]
    if proxy is not None:
        network.append("(allow system-socket)")
        # An agent may connect its own parts through loopback; listening there is no way out.
        network += [f'(allow {what} (local ip "localhost:*"))' for what in ("network-bind", "network-inbound")]
        network += [f'(allow network-outbound (remote ip "localhost:{port}"))' for port in proxy.ports]
    return "\n".join((_FIXED.rstrip(), *rules, *network)) + "\n"


def _rules(start: str, places: Iterable[Path]) -> Iterator[str]:
    """Yield one rule per path. Paths are resolved, because Seatbelt matches /private/tmp instead of /tmp."""
    for real_path in dict.fromkeys(os.path.realpath(path) for path in places):
        escaped = real_path.replace("\\", "\\\\").replace('"', '\\"')
        yield f'{start} (subpath "{escaped}"))'


class SeatbeltSandbox:
    """Runs each command with a Seatbelt profile.

    Apple has deprecated the program, but agents from other vendors also use it.
    """

    name = NAME

    def probe(self) -> str:
        if not PROGRAM.path.exists():
            return f"{PROGRAM} was not found. It is only available on macOS"
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            access = Access(root=root, path="/usr/bin", program="true", writable=(root,))
            try:
                result = subprocess.run(
                    PROGRAM.command("-p", profile(access), "/usr/bin/true"),
                    cwd=root, capture_output=True, text=True, timeout=PROBE_S, check=False,
                )  # fmt: skip
            except (OSError, subprocess.TimeoutExpired) as error:
                return f"{PROGRAM} does not work on this host: {error}. {HOW_TO_GET}"
        return (
            ""
            if result.returncode == 0
            else f"{PROGRAM} does not work on this host: {result.stderr.strip()}. {HOW_TO_GET}"
        )

    def run(self, spec: SandboxSpec, **callbacks: Unpack[Callbacks]) -> SandboxResult:
        spec = relocate(spec)
        run = functools.partial(run_process, **callbacks)
        with tempfile.TemporaryDirectory(prefix="tightloop-") as temporary:
            inside = {"HOME": temporary, "TMPDIR": temporary}
            environment = {**search_path(spec.root), **inside, **spec.environment}
            if not spec.argv:
                message = "the command is empty"
                return SandboxResult(reason=Reason.NOT_STARTED, message=message, backend=NAME)
            access = command_access(spec, environment["PATH"], Path(temporary))
            limits = {**UNSANDBOXED_LIMITS, **dict.fromkeys(_BY_PROFILE, Enforcement.HARD)}
            with open_loopback_proxy(spec.network) if spec.network else nullcontext() as proxy:
                arguments = ("-p", profile(access, proxy), *spec.argv)
                request = request_of(spec, PROGRAM, arguments, environment)
                request = request if proxy is None else proxy.with_proxy(request)
                # macOS has no control groups, and a profile does not kill daemons: `run_process` does.
                return replace(run_with_limits(request, spec, limits, run=run, grouped=False), backend=NAME)


class SeatbeltAgentSandbox:
    """Sandbox for a long-running agent that needs access to its model."""

    name = NAME

    def __init__(self, network: tuple[str, ...] = ()) -> None:
        """Set the hosts that every agent may reach, in the syntax of `sandbox.network`."""
        self._network = network

    def can_nest(self) -> bool:
        """Return False, because `sandbox-exec` cannot apply a profile inside another profile."""
        return False

    @contextmanager
    def wrap(self, request: ProcessRequest, **openings: Unpack[SandboxPermissions]) -> Iterator[ProcessRequest]:
        writable = openings["writable"]
        # The user's own temporary folder contains files of other programs.
        temporary = {"TMPDIR": str(writable[-1])} if writable else {}
        refuse_untrusted_program(PROGRAM, writable)
        access = agent_access(request, writable, openings.get("readable", ()))
        with open_loopback_proxy((*self._network, *openings.get("network", ()))) as proxy:
            arguments = ("-p", profile(access, proxy), str(request.program), *request.arguments)
            environment = {**temporary, **request.environment}
            yield proxy.with_proxy(replace(request, program=PROGRAM, arguments=arguments, environment=environment))
