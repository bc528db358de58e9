"""What a tree carries or a command writes never runs outside of the sandbox, whatever it is called."""

import socket
import struct
import sys
from collections.abc import Iterator
from errno import EAFNOSUPPORT, ENOSYS, EPERM
from pathlib import Path

import pytest

from activities.process import ProcessRequest, ProcessResult, run_process
from activities.sandbox.bubblewrap import BubblewrapAgentSandbox, BubblewrapSandbox, filter_of
from activities.sandbox.port import SandboxResult, SandboxSpec, SandboxUnavailableError
from tests.support.fenced import NOBODY, fenced
from tests.support.planted import NAMES, plant, planting_script, ran
from tests.support.processes import request_for
from tests.support.sandboxes import box, open_folder
from tightloop.host.programs import find_trusted_program

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox of Linux")


@pytest.fixture
def root() -> Iterator[Path]:
    box("bubblewrap")
    with open_folder() as folder:
        place = folder / "project"
        place.mkdir()
        yield place


@pytest.fixture
def marker(root: Path) -> Path:
    """Where a planted program says that it ran; no sandbox can write there."""
    return root.parent / "ran"


def in_sandbox(root: Path, *argv: str, **changes: object) -> SandboxResult:
    spec = SandboxSpec(**{"argv": argv, "root": root, "wall_limit_s": 30.0, **changes})  # type: ignore[arg-type]
    return BubblewrapSandbox().run(spec, cancelled=lambda: False, started=lambda _pid: None)


def behind_fence(root: Path, *argv: str) -> ProcessResult:
    request = request_for(argv, cwd=root, wall_limit_s=30, inherit=False, environment={"PATH": f"{root}/.venv/bin"})
    with BubblewrapAgentSandbox().wrap(request, writable=(root,)) as around:
        return run_process(around, cancelled=lambda: False, started=lambda _pid: None)


def test_sixty_names_are_planted() -> None:
    assert len(NAMES) >= 60


@pytest.mark.parametrize("written_by", ["repository", "command"])
def test_no_program_of_the_tree_runs_outside_of_the_sandbox(root: Path, marker: Path, written_by: str) -> None:
    if written_by == "repository":
        plant(root, marker)
    else:
        wrote = in_sandbox(root, "/usr/bin/python3", "-c", planting_script(marker))
        assert wrote.exit_code == 0, wrote
    assert (root / ".venv/bin/bwrap").stat().st_mode & 0o111
    checked = in_sandbox(root, "/bin/sh", "-c", "test -s never-made.txt")
    assert (checked.exit_code, ran(marker)) == (1, "")
    # The project's own programs are found there, and run inside.
    own = in_sandbox(root, "ruff", "--version")
    assert (own.exit_code, own.output, ran(marker)) == (0, b"", "")
    agent = behind_fence(root, "/bin/sh", "-c", "test -s never-made.txt")
    assert (agent.exit_code, ran(marker)) == (1, "")
    assert (behind_fence(root, "claude").exit_code, ran(marker)) == (0, "")


def test_variables_of_a_command_act_inside_alone(root: Path, marker: Path) -> None:
    """The loader of every program writes where LD_DEBUG_OUTPUT says: outside that would be a way to write."""
    loader = {"LD_DEBUG": "libs", "LD_DEBUG_OUTPUT": str(marker), "GLIBC_TUNABLES": "x", "PATH": str(root)}
    plant(root, marker)
    done = in_sandbox(root, "/bin/sh", "-c", "echo $LD_DEBUG_OUTPUT $A_KEY", secrets={**loader, "A_KEY": "one"})
    assert f"{marker} one\n".encode() in done.output
    assert done.exit_code == 0
    assert list(root.parent.iterdir()) == [root]


def test_a_sandbox_in_the_workspace_is_refused_with_both_paths(
    root: Path, marker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(root, marker, ("bwrap",))
    monkeypatch.setenv("PATH", f"{root}/bin:/usr/bin:/bin")
    with pytest.raises(SandboxUnavailableError) as refused:
        in_sandbox(root, "true")
    assert f"{root}/bin/bwrap" in refused.value.message
    assert f"inside {root}," in refused.value.message
    with pytest.raises(SandboxUnavailableError, match="bwrap"):
        behind_fence(root, "true")
    assert ran(marker) == ""
    # A place that settings let commands write is as bad as the tree.
    shared = root.parent / "shared"
    plant(shared, marker, ("bwrap",))
    monkeypatch.setenv("PATH", f"{shared}/bin:/usr/bin:/bin")
    with pytest.raises(SandboxUnavailableError, match=f"inside {shared}"):
        in_sandbox(root, "true", writable=(shared,))
    assert ran(marker) == ""


def test_a_program_is_started_by_its_path_alone(root: Path, marker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the working folder comes first in PATH, and the program is gone."""
    tools = root.parent / "tools"
    plant(tools, marker.with_name("ran-tools"), ("true",))
    monkeypatch.setenv("PATH", f":.:{tools}/bin")
    program = find_trusted_program("true")
    assert program is not None
    assert program.path == tools / "bin" / "true"
    plant(root, marker, ("true",))
    program.path.unlink()
    done = run_process(ProcessRequest(program=program, cwd=root), cancelled=lambda: False, started=lambda _pid: None)
    assert (done.message, ran(marker)) == (f"program '{tools}/bin/true' was not found", "")


FAMILIES = """
import socket
for family in range(0, 46):
    for make in (socket.socket, socket.socketpair):
        try:
            made = make(family, socket.SOCK_STREAM if family != 16 else socket.SOCK_RAW)
        except OSError as error:
            continue
        print(family, end=" ")
        break
"""
ALLOWED = {"1", "2", "10", "16"}


@pytest.mark.parametrize("user", [0, NOBODY])
def test_sockets_are_of_families_that_the_sandbox_covers(root: Path, user: int) -> None:
    assert set(fenced(root, FAMILIES, user=user).split()) == ALLOWED
    inside = in_sandbox(root, "/usr/bin/python3", "-c", FAMILIES)
    assert set(inside.output.decode().split()) == ALLOWED
    vsock = "import socket\ntry: socket.socket(40, 1)\nexcept OSError as error: print(error.errno)"
    assert in_sandbox(root, "/usr/bin/python3", "-c", vsock).output.decode() == f"{EAFNOSUPPORT}\n"


def test_names_and_interfaces_are_still_found_inside(root: Path) -> None:
    code = "import socket; print(socket.getaddrinfo('localhost', 80)[0][4][0], socket.if_nameindex())"
    done = in_sandbox(root, "/usr/bin/python3", "-c", code)
    assert (done.exit_code, b"'lo'" in done.output) == (0, True), done


NUMBERS = {"x86_64": (0xC000003E, 41, 53, 272), "aarch64": (0xC00000B7, 198, 199, 97)}


@pytest.mark.parametrize("machine", NUMBERS)
def test_the_filter_of_each_machine_judges_calls_alike(machine: str) -> None:
    architecture, make, make_pair, unshare = NUMBERS[machine]
    allow, error = 0x7FFF0000, 0x00050000
    for family in range(64):
        expected = allow if str(family) in ALLOWED else error | EAFNOSUPPORT
        assert judge(machine, architecture, make, family) == expected
        assert judge(machine, architecture, make_pair, family) == expected
        # The kernel reads the lower half alone.
        assert judge(machine, architecture, make, family | 7 << 32) == expected
    assert judge(machine, architecture, unshare, 0) == error | EPERM
    assert judge(machine, architecture, 0, socket.AF_VSOCK) == allow
    assert judge(machine, architecture ^ 1, make, 2) == error | ENOSYS
    assert judge(machine, architecture, make | 0x40000000, 2) == error | ENOSYS
    assert filter_of("another") is None


def judge(machine: str, architecture: int, number: int, argument: int) -> int:
    """Run the filter as the kernel does (classic BPF), and return its answer."""
    content = filter_of(machine)
    assert content is not None
    data = struct.pack("<iIQ6Q", number, architecture, 0, argument, *[0] * 5)
    lines = list(struct.iter_unpack("=HBBI", content))
    word = at = 0
    while True:
        code, yes, no, value = lines[at]
        at += 1
        match code:
            case 0x20:
                word = int(struct.unpack_from("<I", data, value)[0])
            case 0x15:
                at += yes if word == value else no
            case 0x35:
                at += yes if word >= value else no
            case 0x06:
                return int(value)
            case _:
                raise AssertionError(f"no such instruction: {code:#x}")
