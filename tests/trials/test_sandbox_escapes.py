"""What a command tries that wants out of its sandbox. Each is stopped, or the result says that nothing stops it."""

import hashlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from uuid import uuid4

import psutil
import pytest

from activities.process import Reason
from activities.sandbox.port import MEBIBYTE, Enforcement, Limit, SandboxResult
from tests.support.episodes import Git
from tests.support.sandboxes import BACKENDS, REPOSITORY, Box, box, open_folder
from tightloop.host import private_folder, state_folder

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the attempts are written for Linux")

CANARY = "canary-7f3a9c"


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Not pytest's own: every session of pytest closes the parent of that to other users."""
    with open_folder() as folder:
        yield folder


@pytest.fixture(scope="module", params=BACKENDS)
def walls(request: pytest.FixtureRequest) -> Box:
    return box(request.param)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with secrets, and a worker whose environment holds one."""
    folder = tmp_path / "home"
    for place in (".ssh/id_test", ".aws/credentials", ".config/agent/auth.json", "bin/tool"):
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(CANARY)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("PATH", f"{folder}:{folder / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CANARY)
    monkeypatch.setenv("PROVIDER_SETTING", CANARY)
    return folder


@pytest.fixture
def root(tmp_path: Path, git: Git, home: Path) -> Path:
    folder = tmp_path / "tree"
    folder.mkdir()
    (folder / "app.py").write_text("print('hello')\n")
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "-m", "start")
    (private_folder(state_folder(folder)) / "outbox.db").write_text(CANARY)
    return folder


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    folder.chmod(0o777)
    (folder / "kept.txt").write_text("as it was")
    (folder / "kept.txt").chmod(0o666)
    return folder


def check_limits(walls: Box, escaped: bool, result: SandboxResult, *limits: Limit) -> None:
    """Nothing may escape where a limit is called hard; and what is called missing must be seen to be missing."""
    shown = f"{result.reason} {result.exit_code} {result.message} {result.output.decode(errors='replace')}"
    for limit in limits:
        held = result.limits[limit]
        assert not (escaped and held is Enforcement.HARD), f"{limit} did not hold: {shown}"
        assert escaped or held is not Enforcement.MISSING, f"the attempt on {limit} would prove nothing: {shown}"
        if walls.walled:
            assert held is Enforcement.HARD, f"{limit} is {held}"


TCP = """
import socket, sys
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=3)
connection.sendall(b"out")
"""
UDP = """
import socket, sys
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"out", ("127.0.0.1", int(sys.argv[1])))
"""
UNIX = """
import os, socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1].replace("@", chr(0)))
connection.sendall(b"out")
"""


def heard(server: socket.socket) -> bool:
    server.settimeout(0.3)
    try:
        if server.type == socket.SOCK_DGRAM:
            return server.recv(10) == b"out"
        with closing(server.accept()[0]) as connection:
            connection.settimeout(1)
            return connection.recv(10) == b"out"
    except TimeoutError:
        return False


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_no_port_of_this_host_is_reached(walls: Box, root: Path, kind: socket.SocketKind) -> None:
    with socket.socket(socket.AF_INET, kind) as server:
        server.bind(("127.0.0.1", 0))
        if kind == socket.SOCK_STREAM:
            server.listen()
        code = TCP if kind == socket.SOCK_STREAM else UDP
        result = walls.python(root, code, str(server.getsockname()[1]))
        check_limits(walls, heard(server), result, Limit.NETWORK)


@pytest.mark.parametrize("abstract", [True, False])
def test_no_unix_socket_of_this_host_is_reached(walls: Box, root: Path, outside: Path, abstract: bool) -> None:
    name = f"@{CANARY}-{uuid4().hex}" if abstract else str(outside / "socket")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name.replace("@", "\0") if abstract else name)
        server.listen()
        result = walls.python(root, UNIX, name)
        check_limits(walls, heard(server), result, Limit.NETWORK if abstract else Limit.READS)


def test_nothing_outside_of_the_tree_is_written(walls: Box, root: Path, outside: Path, home: Path) -> None:
    (root / "planted").symlink_to(outside)
    code = f"""
import os
os.symlink({str(outside)!r}, "link")
for place in ("link/a.txt", "planted/b.txt", "../outside/c.txt", {str(outside / "kept.txt")!r},
              {str(home / ".profile")!r}, {str(home / "bin" / "tool")!r}, "/usr/local/bin/{CANARY}", "/{CANARY}"):
    try:
        open(place, "w").write("changed")
    except OSError as error:
        print(error)
try:
    os.link({str(outside / "kept.txt")!r}, "hard")
    open("hard", "w").write("changed")
except OSError as error:
    print(error)
"""
    result = walls.python(root, code)
    system = [Path("/usr/local/bin") / CANARY, Path("/") / CANARY]
    written = sorted(path.name for path in outside.iterdir()) != ["kept.txt"]
    changed = (outside / "kept.txt").read_text() != "as it was" or (home / "bin" / "tool").read_text() != CANARY
    left = (home / ".profile").exists() or any(path.exists() for path in system)
    for path in system:
        path.unlink(missing_ok=True)
    check_limits(walls, written or changed or left, result, Limit.WRITES)


def test_no_secret_of_the_home_or_of_the_worker_is_read(walls: Box, root: Path, home: Path) -> None:
    code = f"""
import glob, os, sys
places = [{str(home / ".ssh/id_test")!r}, {str(home / ".aws/credentials")!r}, {str(home / ".config/agent/auth.json")!r},
          "../home/.ssh/id_test", {str(state_folder(root) / "outbox.db")!r}, "/etc/shadow",
          *glob.glob("/proc/*/environ"), *(link + {str(home / ".ssh/id_test")!r} for link in glob.glob("/proc/*/root"))]
for place in places:
    try:
        content = open(place, "rb").read()
    except OSError:
        continue
    if {CANARY[:6]!r}.encode() + {CANARY[6:]!r}.encode() in content or place == "/etc/shadow":
        print("READ", place)
"""
    result = walls.python(root, code)
    assert result.exit_code == 0, result
    check_limits(walls, b"READ" in result.output, result, Limit.READS)
    assert CANARY.encode() not in b"\n".join(line for line in result.output.splitlines() if b"READ" not in line)


def test_the_environment_of_a_command_holds_no_secret(walls: Box, root: Path) -> None:
    result = walls.python(root, "import os; print(dict(os.environ))")
    assert result.exit_code == 0, result
    assert CANARY.encode() not in result.output


def tree_digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        digest.update(f"{path.relative_to(folder)} {path.lstat().st_mode}".encode())
        digest.update(path.read_bytes() if path.is_file() else b"")
    return digest.hexdigest()


GIT_TAMPER = """
import os, subprocess
def attempt(what):
    try:
        what()
    except (OSError, subprocess.SubprocessError) as error:
        print(error)
attempt(lambda: open(".git/hooks/pre-commit", "w").write("#!/bin/sh"))
attempt(lambda: open(".git/config", "a").write("[core]\\n\\tfsmonitor = /tmp/x\\n"))
attempt(lambda: open(".git/HEAD", "w").write("ref: refs/heads/other\\n"))
attempt(lambda: os.rename(".git", "git"))
attempt(lambda: os.rename("../tree/.git", "other"))
attempt(lambda: os.unlink(".git/index"))
attempt(lambda: os.chmod(".git/config", 0o777))
attempt(lambda: subprocess.run(("git", "update-ref", "refs/heads/evil", "HEAD"), check=True, timeout=10))
"""


def test_git_s_own_files_are_not_changed_but_can_be_read(walls: Box, root: Path) -> None:
    before = tree_digest(root / ".git")
    result = walls.python(root, GIT_TAMPER)
    check_limits(walls, not (root / ".git").exists() or tree_digest(root / ".git") != before, result, Limit.GIT)
    if walls.walled:
        assert b"start" in walls.run(root, "git", "log", "--oneline").output


def test_a_worktree_s_common_folder_is_readable_and_not_changed(walls: Box, root: Path, git: Git) -> None:
    tree = root.parent / "other"
    git(root, "worktree", "add", "--quiet", str(tree))
    before = tree_digest(root / ".git")
    code = f"""
import subprocess
print(subprocess.run(("git", "log", "--oneline"), capture_output=True, text=True).stdout)
for place in (".git", {str(root / ".git/hooks/pre-commit")!r}, {str(root / ".git/worktrees/other/HEAD")!r}):
    try:
        open(place, "w").write("x")
    except OSError as error:
        print(error)
"""
    result = walls.python(tree, code)
    escaped = tree_digest(root / ".git") != before or not (tree / ".git").read_text().startswith("gitdir:")
    check_limits(walls, escaped, result, Limit.GIT)
    if walls.name != "bubblewrap-user":  # There the common folder belongs to another user, which git refuses.
        assert b"start" in result.output


def test_a_fork_bomb_meets_its_limit(walls: Box, root: Path) -> None:
    name = f"{CANARY}-{uuid4().hex}"
    code = """
import os, sys, time
count = 0
for _ in range(400):
    try:
        pid = os.fork()
    except OSError:
        break
    if pid == 0:
        time.sleep(20)
        os._exit(0)
    count += 1
print("FORKED", count, flush=True)
time.sleep(1.5 if count <= 50 else 20)
"""
    result = walls.python(root, code, name, processes=40, wall_limit_s=40)
    forked = int(result.output.split(b"FORKED ")[1].split()[0]) if b"FORKED" in result.output else 0
    held = result.limits[Limit.PROCESSES]
    assert held is Enforcement.HARD or (not walls.walled and held is Enforcement.SOFT)
    ended = result.reason in (Reason.PROCESS_LIMIT, Reason.MEMORY_LIMIT)
    assert forked <= 50 or (held is Enforcement.SOFT and ended)
    assert not named(name)


def named(name: str) -> list[int]:
    """Return the processes that have a name among their arguments; waits a moment for dying ones."""
    until = time.monotonic() + 20
    while True:
        found = []
        for process in psutil.process_iter(("pid", "cmdline", "status")):
            if name in (process.info["cmdline"] or ()) and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(process.info["pid"])
        if not found or time.monotonic() > until:
            return found
        time.sleep(0.1)


def test_memory_is_bounded_over_all_processes_together(walls: Box, root: Path) -> None:
    code = """
import os, time
children = []
for _ in range(3):
    pid = os.fork()
    if pid == 0:
        block = bytearray(os.urandom(1024)) * (100 * 1024)
        time.sleep(15)
        os._exit(0)
    children.append(pid)
if all(os.waitpid(pid, 0)[1] == 0 for pid in children):
    print("FILLED")
"""
    result = walls.python(root, code, memory_bytes=160 * MEBIBYTE, wall_limit_s=60)
    assert b"FILLED" not in result.output
    assert result.reason is Reason.MEMORY_LIMIT, result
    assert "memory" in result.message
    assert result.exit_code is None


def test_disk_is_bounded(walls: Box, root: Path) -> None:
    code = """
import os
def fill(folder, files, size):
    written = 0
    for number in range(files):
        try:
            with open(f"{folder}/fill-{number}", "wb", buffering=0) as file:
                for _ in range(size // 100_000):
                    written += file.write(bytes(100_000))
        except OSError as error:
            print(error)
            break
    for number in range(files):
        try:
            os.unlink(f"{folder}/fill-{number}")
        except OSError:
            pass
    return written
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
sizes = fill("/tmp", 20, 2_000_000), fill("/dev/shm", 20, 2_000_000), fill(".", 1, 30_000_000), fill("/", 1, 200_000)
print("WROTE", *sizes)
"""
    result = walls.python(root, code, temporary_bytes=4 * MEBIBYTE, file_bytes=8 * MEBIBYTE)
    temporary, shared, one_file, top = (int(word) for word in result.output.split(b"WROTE")[1].split())
    assert one_file <= 8 * MEBIBYTE
    if result.limits[Limit.DISK] is Enforcement.HARD:
        assert max(temporary, shared) <= 4 * MEBIBYTE
        assert top == 0
    else:
        assert walls.name == "unsafe-local"


def test_a_flood_of_output_is_ended_and_bounded(walls: Box, root: Path) -> None:
    result = walls.run(
        root,
        "sh",
        "-c",
        "while :; do echo yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy; done",
        output_bytes=20_000,
    )
    assert (result.reason, result.exit_code) == (Reason.OUTPUT_LIMIT, None)
    assert len(result.output) <= 20_000
    assert result.cut
    assert result.limits[Limit.OUTPUT] is Enforcement.SOFT


def test_no_daemon_outlives_the_command(walls: Box, root: Path) -> None:
    name = f"{CANARY}-{uuid4().hex}"
    code = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve("/bin/sh", ["/bin/sh", "-c", "sleep 30; :", sys.argv[1]], {"PATH": "/usr/local/bin:/usr/bin:/bin"})
    os._exit(0)
time.sleep(0.5)
"""
    result = walls.python(root, code, name)
    assert result.exit_code == 0, result
    judge_left = named(name)
    for pid in judge_left:
        psutil.Process(pid).kill()
    assert not judge_left
    assert result.limits[Limit.DESCENDANTS] is (Enforcement.HARD if walls.walled else Enforcement.SOFT)


def test_no_new_namespace_and_no_mount_and_no_capability(walls: Box, root: Path) -> None:
    code = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
if int(status["CapEff"], 16) and int(status["CapBnd"], 16):
    print("ESCAPED: capabilities", status["CapEff"])
for flag in (0x10000000, 0x20000, 0x40000000, 0x20000000, 0x10000000 | 0x20000):
    if libc.unshare(flag) == 0:
        print("ESCAPED: namespace", hex(flag))
        break
if libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) == 0:
    print("ESCAPED: mount")
    libc.umount(b"/tmp")
if int(status["NoNewPrivs"]) != 1:
    print("ESCAPED: set-user-id programs work")
"""
    result = walls.python(root, code)
    assert result.exit_code == 0, result
    check_limits(walls, b"ESCAPED" in result.output, result, Limit.NAMESPACES)


def test_no_process_outside_is_killed_or_seen(walls: Box, root: Path) -> None:
    with subprocess.Popen(("sleep", "60")) as victim:
        try:
            code = "import os, sys; os.kill(int(sys.argv[1]), 9)"
            result = walls.python(root, code, str(victim.pid))
            with suppress(subprocess.TimeoutExpired):
                # One that was killed is gone soon; where the kill was refused there is nothing to wait for.
                victim.wait(30 if result.exit_code == 0 and not walls.walled else 0.1)
            check_limits(walls, victim.poll() is not None, result, Limit.WRITES)
        finally:
            victim.kill()


def test_kernel_settings_are_not_written(walls: Box, root: Path) -> None:
    code = """
for place in ("/proc/sys/kernel/core_pattern", "/proc/sys/vm/overcommit_memory", "/proc/sys/kernel/panic"):
    try:
        value = open(place).read()
        with open(place, "w") as file:
            file.write(value)
        print("WRITTEN", place)
    except OSError as error:
        print(error)
"""
    result = walls.python(root, code)
    escaped = b"WRITTEN" in result.output
    assert not (escaped and result.limits[Limit.WRITES] is Enforcement.HARD), result.output


def test_the_state_home_is_neither_seen_nor_changed(
    walls: Box, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it lies in a folder that commands may read, or write."""
    (tmp_path / "shown").mkdir()
    monkeypatch.setenv("TIGHTLOOP_HOME", str(tmp_path / "shown" / "state"))
    state = private_folder(state_folder(root))
    (state / "outbox.db").write_text(CANARY)
    code = f"""
import os
state = {str(state)!r}
print(open(os.path.join(os.path.dirname(state), "..", "..", "beside")).read() if os.path.isdir("../shown") else "")
try:
    print("SEEN", os.listdir({str(tmp_path / "shown" / "state")!r}))
except OSError as error:
    print(error)
for what in (lambda: open(state + "/outbox.db", "w").write("x"), lambda: os.rename(os.path.dirname(state), state + "2"),
             lambda: os.makedirs(state + "/git"), lambda: open(state + "/outbox.db").read()):
    try:
        print("DONE", what())
    except OSError as error:
        print(error)
"""
    (tmp_path / "shown" / "beside").write_text("beside it")
    for shown in ({}, {"readable": (tmp_path / "shown",)}, {"writable": (tmp_path / "shown",)}):
        result = walls.python(root, code, **shown)
        changed = (state / "outbox.db").read_text() != CANARY or (state / "git").exists()
        escaped = b"SEEN ['" in result.output or CANARY.encode() in result.output or changed
        check_limits(walls, escaped, result, Limit.READS, Limit.WRITES)


def test_a_tree_cannot_name_a_secret_as_its_python(walls: Box, root: Path, home: Path) -> None:
    """The .venv is the tree's own, and whoever writes the tree could let it point anywhere."""
    binaries = root / ".venv" / "bin"
    binaries.mkdir(parents=True)
    (binaries / "python").symlink_to(home / ".ssh" / "id_test")
    (binaries / "tool").symlink_to(home / ".aws" / "credentials")
    (home / ".ssh" / "id_test").chmod(0o755)
    (home / ".aws" / "credentials").chmod(0o755)
    for command in (("sh", "-c", "cat .venv/bin/python .venv/bin/tool"), ("tool",)):
        result = walls.run(root, *command)
        judge_read = CANARY.encode() in result.output
        assert not (judge_read and result.limits.get(Limit.READS) is Enforcement.HARD), result


def test_a_folder_of_the_command_s_own_cannot_name_a_secret_as_its_git(walls: Box, root: Path, home: Path) -> None:
    """The file `.git` of a worktree names a folder that is shown; a forged one must show nothing."""
    other = root.parent / "agent-home"
    fake = other / "fake" / "worktrees" / "x"
    fake.mkdir(parents=True)
    (fake / "HEAD").write_text("ref: refs/heads/main\n")
    (fake / "gitdir").write_text(f"{root}/.git\n")
    (fake / "commondir").write_text(str(home / ".ssh"))
    (home / ".ssh" / "HEAD").write_text("ref: refs/heads/main\n")
    code = f"""
import os
print("SEEN" if os.path.exists({str(home / ".ssh" / "id_test")!r}) else "hidden")
"""
    for target in (fake, home / ".ssh"):
        (other / ".git").write_text(f"gitdir: {target}\n")
        result = walls.python(root, code, writable=(other,))
        check_limits(walls, b"SEEN" in result.output, result, Limit.READS)
    tree = root.parent / "forged"
    tree.mkdir()
    for target in (fake, home / ".ssh"):
        (tree / ".git").write_text(f"gitdir: {target}\n")
        result = walls.python(tree, code)
        check_limits(walls, b"SEEN" in result.output, result, Limit.READS)


ADD_KEY, KEYCTL = (248, 250) if os.uname().machine == "x86_64" else (217, 219)
SESSION, SEARCH, READ, UNLINK, JOIN = -3, 10, 11, 9, 1


def test_no_key_of_the_worker_s_session_is_read(walls: Box, root: Path) -> None:
    """The kernel's keyrings belong to no namespace: they are what walls are easily forgotten at."""
    outer = f"""
import ctypes, os, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
if libc.syscall({KEYCTL}, {JOIN}, None) < 0:
    sys.exit(77)
if libc.syscall({ADD_KEY}, b"user", b"tightloop-test", b"{CANARY}", {len(CANARY)}, {SESSION}) < 0:
    sys.exit(77)
from activities.sandbox.port import SandboxSpec
from pathlib import Path
from tests.support.sandboxes import run, sandbox_named
inner = '''
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
key = libc.syscall({KEYCTL}, {SEARCH}, {SESSION}, b"user", b"tightloop-test", 0)
text = ctypes.create_string_buffer(64)
print("READ" if key > 0 and libc.syscall({KEYCTL}, {READ}, key, text, 64) > 0 else "denied")
'''
spec = SandboxSpec(argv=("python3", "-c", inner), root=Path({str(root)!r}))
result = run(sandbox_named({walls.name!r}), spec)
print(result.output.decode(), result.limits["reads"])
"""
    if walls.name == "bubblewrap-user":
        pytest.skip("a session of keys is made by the worker itself, which is another process there")
    done = subprocess.run(
        (sys.executable, "-c", outer), cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode == 77:
        pytest.skip("the kernel lets no key be made here")
    word, held = done.stdout.split()
    assert word == ("READ" if held == "missing" else "denied"), done.stderr
    assert (held == "hard") is walls.walled
