"""Sandboxes at ordinary work: what a command gets, how it ends, what is left, and which one is chosen."""

import json
import os
import socket
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import psutil
import pytest

from activities.process import Reason, run_process
from activities.sandbox import control_group, docker, visible
from activities.sandbox.bubblewrap import BubblewrapAgentSandbox, BubblewrapSandbox
from activities.sandbox.choose import choose_agent_sandbox, choose_sandbox, examine_sandboxes
from activities.sandbox.docker import DockerSandbox
from activities.sandbox.port import (
    MEBIBYTE,
    Enforcement,
    Limit,
    SandboxSpec,
    SandboxUnavailableError,
    this_host,
)
from activities.sandbox.proxy import open_loopback_proxy
from activities.sandbox.seatbelt import SeatbeltAgentSandbox, profile
from activities.sandbox.visible import Access
from tests.support.episodes import Git
from tests.support.processes import request_for
from tests.support.sandboxes import BACKENDS, REPOSITORY, WALLED, Box, box, open_folder, sandbox_named
from tightloop.host import private_folder, state_folder
from tightloop.settings import SandboxSettings


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Not pytest's own: every session of pytest closes the parent of that to other users."""
    with open_folder() as folder:
        yield folder


@pytest.fixture(scope="module", params=BACKENDS)
def walls(request: pytest.FixtureRequest) -> Box:
    return box(request.param)


@pytest.fixture
def root(tmp_path: Path, git: Git) -> Path:
    folder = tmp_path / "tree"
    folder.mkdir()
    git(folder, "init", "--quiet")
    return folder


@pytest.mark.parametrize("name", WALLED)
def test_every_sandbox_is_tested_where_it_works(name: str) -> None:
    assert box(name).name in BACKENDS


def test_a_command_works_in_its_tree_and_its_output_and_code_come_back(walls: Box, root: Path) -> None:
    (root / "in.txt").write_text("hello\n")
    result = walls.run(root, "sh", "-c", "cat in.txt; pwd; echo done > out.txt; echo oops >&2; exit 3")
    assert (result.reason, result.exit_code) == (Reason.EXITED, 3)
    assert sorted(result.output.decode().splitlines()) == sorted(["hello", str(root), "oops"])
    assert (root / "out.txt").read_text() == "done\n"
    if walls.name != "bubblewrap-user":
        assert (root / "out.txt").stat().st_uid == os.getuid()
    assert result.backend == walls.name.removesuffix("-user")
    assert set(result.limits) == set(Limit)


def test_what_was_used_is_told(walls: Box, root: Path) -> None:
    code = "import time; b=bytearray(b'x')*(50<<20); t=time.process_time()\nwhile time.process_time() < t+0.4: pass"
    result = walls.python(root, code)
    assert result.exit_code == 0, result
    if walls.name == "docker":
        assert (result.cpu_s, result.peak_memory_bytes) == (None, None)
        return
    assert result.cpu_s is not None
    assert 0.3 < result.cpu_s < 10
    assert result.peak_memory_bytes is not None
    assert 50 * MEBIBYTE < result.peak_memory_bytes < 500 * MEBIBYTE


def test_a_missing_program_is_told_by_its_name(walls: Box, root: Path) -> None:
    result = walls.run(root, "no-such-program-here")
    assert (result.reason, result.exit_code) == (Reason.NOT_STARTED, None)
    assert "program 'no-such-program-here' was not found" in result.message


@pytest.mark.parametrize(("argv", "folder"), [((), "tree"), (("true",), "gone")])
def test_what_cannot_start_says_why(walls: Box, root: Path, argv: tuple[str, ...], folder: str) -> None:
    if walls.name == "bubblewrap-user" and folder == "gone":
        pytest.skip("the folder is given to the other user first")
    result = walls.run(root.parent / folder, *argv)
    assert result.reason is Reason.NOT_STARTED
    assert result.message


def test_standard_input_is_a_file_or_empty(walls: Box, root: Path) -> None:
    (root / "words").write_text("said")
    assert walls.run(root, "cat").output == b""
    assert walls.run(root, "cat", stdin=root / "words").output == b"said"


def test_more_places_are_readable_or_writable_where_they_are_named(walls: Box, root: Path) -> None:
    data, cache = root.parent / "data, with a comma", root.parent / "cache"
    for folder in (data, cache):
        folder.mkdir()
    (data / "a.txt").write_text("seen")
    script = f"cat '{data}/a.txt'; echo x > {cache}/b.txt; echo y > '{data}/c.txt'"
    result = walls.run(root, "sh", "-c", script, readable=(data,), writable=(cache,))
    assert b"seen" in result.output
    assert (cache / "b.txt").read_text() == "x\n"
    assert (data / "c.txt").exists() is not walls.walled


def test_of_the_network_only_what_is_listed_is_there(walls: Box, root: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as other:
        code = f"""
import socket
for port in ({server.getsockname()[1]}, {other.getsockname()[1]}):
    try: socket.create_connection(("127.0.0.1", port), 3); print("reached")
    except OSError: print("refused")
"""
        result = walls.python(root, code, network=(f"127.0.0.1:{server.getsockname()[1]}",))
    assert result.exit_code == 0, result
    assert result.output == (b"reached\nrefused\n" if walls.walled else b"reached\nreached\n")
    assert result.limits[Limit.NETWORK] is (Enforcement.HARD if walls.walled else Enforcement.MISSING)


def test_a_listed_name_is_reached_by_the_proxy_and_no_other(walls: Box, root: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f"""
import os, socket
proxy = os.environ["HTTPS_PROXY"].rpartition(":")[2] if "HTTPS_PROXY" in os.environ else "9"
for name in ("localhost:{port}", "example.org:443", "127.0.0.1:{port}"):
    try:
        one = socket.create_connection(("127.0.0.1", int(proxy)), 5)
        one.sendall(f"CONNECT {{name}} HTTP/1.1\\r\\nhost: x\\r\\n\\r\\n".encode())
        print(one.recv(1000).split()[1].decode())
    except OSError: print("no proxy")
"""
        result = walls.python(root, code, network=(f"localhost:{port}",))
    assert result.output.split(b"\n")[:3] == ([b"200", b"403", b"403"] if walls.walled else [b"no proxy"] * 3), result


def test_half_a_core_is_half_the_time(walls: Box, root: Path) -> None:
    code = (
        "import time; t, p = time.monotonic(), time.process_time()\n"
        "while time.monotonic() < t + 3: pass\n"
        "print((time.process_time() - p) / (time.monotonic() - t))"
    )
    result = walls.python(root, code, cores=0.5)
    if result.limits[Limit.CORES] is not Enforcement.HARD:
        assert not walls.walled or walls.ordinary
        return
    assert float(result.output) < 0.77, "it had more than half a core, with a margin for the burst at the start"


def test_a_silent_or_endless_command_is_ended(walls: Box, root: Path) -> None:
    name = f"sleeper-{uuid4().hex}"
    command = ("sh", "-c", "echo begun; sleep 60; :", name)
    late = walls.run(root, *command, wall_limit_s=5.0)
    assert (late.reason, late.exit_code, late.output) == (Reason.WALL_LIMIT, None, b"begun\n")
    silent = walls.run(root, *command, idle_limit_s=3.0)
    assert silent.reason is Reason.IDLE_LIMIT
    assert max(late.duration_s, silent.duration_s) < 30
    assert not _running(name)


def _running(name: str) -> list[int]:
    until = time.monotonic() + 20
    while True:
        processes = psutil.process_iter(("cmdline", "status"))
        found = [p.pid for p in processes if name in (p.info["cmdline"] or ()) and p.info["status"] != "zombie"]
        if not found or time.monotonic() > until:
            return found
        time.sleep(0.1)


@pytest.mark.parametrize("name", ["bubblewrap", "docker", "unsafe-local"])
def test_a_cancelled_command_is_gone_soon(root: Path, name: str) -> None:
    box(name)
    word = f"sleeper-{uuid4().hex}"
    begun: list[float] = []
    spec = SandboxSpec(argv=("sh", "-c", "echo begun; sleep 60; :", word), root=root, grace_s=0.5)
    result = sandbox_named(name).run(
        spec,
        cancelled=lambda: bool(begun) and time.monotonic() > begun[0] + 0.2,
        started=lambda _pid: None,
        on_output=lambda _chunk: begun.append(time.monotonic()),
    )
    assert (result.reason, result.exit_code) == (Reason.CANCELLED, None)
    assert time.monotonic() - begun[0] < 40
    assert not _running(word)


@pytest.mark.parametrize("name", ["bubblewrap", "docker"])
def test_a_secret_reaches_the_command_and_no_command_line(root: Path, name: str) -> None:
    box(name)
    lines: list[str] = []
    pids: list[int] = []

    def look(_chunk: bytes) -> None:
        for process in psutil.process_iter(("cmdline",)):
            lines.extend(process.info["cmdline"] or ())

    spec = SandboxSpec(
        argv=("sh", "-c", "echo begun; sleep 0.5; test ${#MY_API_KEY} = 20 && echo $PLAIN"),
        root=root,
        secrets={"MY_API_KEY": "s3cret-" + "z" * 13},
        environment={"PLAIN": "plain"},
    )
    result = sandbox_named(name).run(spec, cancelled=lambda: False, started=pids.append, on_output=look)
    assert result.output == b"begun\nplain\n", result
    assert lines
    assert not any("s3cret-" in line for line in lines)
    assert "s3cret-" not in repr(spec)


@pytest.mark.parametrize("name", ["bubblewrap", "docker", "unsafe-local"])
def test_a_variable_that_looks_like_a_secret_is_refused_among_the_others(root: Path, name: str) -> None:
    result = box(name).run(root, "true", environment={"SOME_API_KEY": "x" * 20})
    assert result.reason is Reason.NOT_STARTED
    assert "SOME_API_KEY" in result.message
    assert "x" * 20 not in result.message


def test_nothing_of_a_command_outlives_a_killed_worker(root: Path) -> None:
    box("bubblewrap")
    word = f"sleeper-{uuid4().hex}"
    order = {"argv": ["sh", "-c", "echo > begun; sleep 60; :", word], "root": str(root), "network": []}
    argv = (sys.executable, "-m", "tests.support.sandboxes")
    with subprocess.Popen(argv, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as worker:
        assert worker.stdin is not None
        worker.stdin.write(json.dumps(order).encode())
        worker.stdin.close()
        until = time.monotonic() + 60
        while not (root / "begun").exists():
            assert time.monotonic() < until
            time.sleep(0.05)
        worker.kill()
    assert not _running(word)
    control_group.find_hierarchy.cache_clear()
    hierarchy = control_group.find_hierarchy()
    left = [
        path
        for folder in (hierarchy.folders.values() if hierarchy else ())
        for path in folder.glob(f"*-{worker.pid}-*")
    ]
    assert not left


def test_a_group_of_a_dead_worker_is_removed_and_one_of_a_living_is_not() -> None:
    hierarchy = control_group.find_hierarchy()
    if hierarchy is None:
        pytest.skip("no control groups can be made here: not root, or they are mounted read-only")
    dead = control_group.ControlGroup(hierarchy, f"{control_group.PREFIX}4194304-1-{uuid4().hex[:12]}")
    living = control_group.ControlGroup(hierarchy)
    control_group.find_hierarchy.cache_clear()
    control_group.find_hierarchy()
    assert not any(folder.exists() for folder in dead.folders)
    assert all(folder.exists() for folder in living.folders)
    assert living.close()


def test_a_container_of_a_dead_worker_is_removed_and_one_of_a_living_is_not() -> None:
    box("docker")
    image = os.environ["TIGHTLOOP_TEST_IMAGE"]
    names = {}
    for owner in ("4194304-1", docker.this_process()):
        name = names[owner] = f"tightloop-test-{uuid4().hex}"
        labels = ("--label", f"{docker.OWNER_LABEL}={owner}", "--label", f"{docker.HOST_LABEL}={this_host()}")
        line = ("docker", "run", "--detach", "--name", name, *labels, "--network", "none", image, "sleep", "60")
        subprocess.run(line, check=True, capture_output=True, timeout=60)
    try:
        assert not DockerSandbox(image).probe()
        listed = subprocess.run(
            ("docker", "ps", "--all", "--format", "{{.Names}}"), check=True, capture_output=True, text=True, timeout=60
        ).stdout
        assert names["4194304-1"] not in listed
        assert names[docker.this_process()] in listed
    finally:
        subprocess.run(("docker", "rm", "--force", *names.values()), capture_output=True, timeout=60)


def test_no_container_is_left_by_any_ending(root: Path) -> None:
    docked = box("docker")
    docked.run(root, "true")
    docked.run(root, "sleep", "30", wall_limit_s=1)
    docked.run(root, "no-such-program-here")
    listed = subprocess.run(
        ("docker", "ps", "--all", "--quiet", "--filter", f"label={docker.OWNER_LABEL}={docker.this_process()}"),
        check=True, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert listed.stdout == ""


def test_an_image_that_is_not_there_is_named() -> None:
    box("docker")
    problem = DockerSandbox("tightloop-test:never-made").probe()
    assert "tightloop-test:never-made" in problem
    assert "sandbox.image" in problem


# Choosing


def test_the_first_that_works_is_chosen_and_every_other_is_explained() -> None:
    settings = SandboxSettings(unsafe_local=True, image="tightloop-test:never-made")
    rows = {row.name: row for row in examine_sandboxes(settings)}
    assert list(rows) == ["docker", "bubblewrap" if sys.platform == "linux" else "sandbox-exec", "unsafe-local"]
    assert rows["docker"].problem
    assert [row.chosen for row in rows.values()].count(True) == 1
    assert choose_sandbox(settings).name == next(name for name, row in rows.items() if row.chosen)


def test_without_any_sandbox_a_command_is_refused_and_what_was_tried_is_told(root: Path) -> None:
    other = "sandbox-exec" if sys.platform == "linux" else "bubblewrap"
    closed = choose_sandbox(SandboxSettings(backend=other))
    assert other in closed.probe()
    with pytest.raises(SandboxUnavailableError, match=f"{other}: .*sandbox.unsafe_local") as caught:
        closed.run(SandboxSpec(argv=("touch", "ran"), root=root), cancelled=lambda: False, started=lambda _pid: None)
    assert not caught.value.retryable
    assert not (root / "ran").exists()
    opened = choose_sandbox(SandboxSettings(backend=other, unsafe_local=True))
    assert (opened.probe(), opened.name) == ("", "unsafe-local")


def test_a_sandbox_that_is_installed_meanwhile_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    box("bubblewrap")
    chosen = choose_sandbox(SandboxSettings(backend="bubblewrap"))
    with monkeypatch.context() as without:
        without.setenv("PATH", "/nowhere")
        assert "apt-get install bubblewrap" in chosen.probe()
    assert chosen.probe() == ""
    assert chosen.name == "bubblewrap"


# Fences


def test_an_agent_behind_the_fence_writes_its_tree_and_its_home_and_asks_its_model(root: Path, git: Git) -> None:
    box("bubblewrap")
    home, private = root.parent / "agent-home", root.parent / "private"
    home.mkdir()
    private.mkdir()
    (private / "id_test").write_text("secret")
    ours = private_folder(state_folder(root)) / "x"
    ours.touch()
    before = (root / ".git" / "config").read_text()
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = f"""
import os, socket
socket.create_connection(("127.0.0.1", {server.getsockname()[1]}), 3)
open("a.txt", "w").write("x")
open({str(home / "session.json")!r}, "w").write("x")
for place in (".git/config", {str(private / "new")!r}, {str(ours)!r}, "/usr/x"):
    try:
        open(place, "a").write("x")
        print("WRITTEN", place)
    except OSError:
        pass
print(os.path.exists({str(private / "id_test")!r}), os.environ["HOME"])
"""
        request = request_for(
            ("python3", "-c", code), cwd=root, environment={"HOME": str(home)}, wall_limit_s=60, inherit=False
        )
        model = f"127.0.0.1:{server.getsockname()[1]}"
        with BubblewrapAgentSandbox().wrap(request, writable=(root, home), network=(model,)) as fenced:
            result = run_process(fenced, cancelled=lambda: False, started=lambda _pid: None)
    assert result.output.decode() == f"False {home}\n"
    assert ((root / "a.txt").exists(), (home / "session.json").exists()) == (True, True)
    assert (root / ".git" / "config").read_text() == before


def test_a_fence_that_does_not_work_is_no_fence_only_where_that_was_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    if sys.platform == "darwin":
        pytest.skip("the fence of macOS is a program with an absolute path")
    with pytest.raises(SandboxUnavailableError, match="no agent sandbox works"):
        choose_agent_sandbox(SandboxSettings())
    fence = choose_agent_sandbox(SandboxSettings(unsafe_local=True))
    request = request_for(("true",), cwd=Path("/"))
    with fence.wrap(request, writable=()) as fenced:
        assert (fence.name, fenced) == ("none", request)


# What is seen


def test_a_folder_of_programs_is_seen_with_its_libraries_and_a_home_never(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    for name in (".local/bin", ".local/lib", ".local/share/keyrings", ".ssh"):
        (home / name).mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    path = os.pathsep.join((str(home), str(home / ".local/bin"), "/usr/bin", "/", str(tmp_path / "gone"), "relative"))
    seen = visible.path_folders(path, tmp_path / "tree")
    assert seen == (home / ".local/bin", home / ".local/lib")


@pytest.mark.parametrize("name", ["bubblewrap"])
def test_a_program_of_a_virtual_environment_in_path_finds_its_packages(
    root: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    box(name)
    tools = root.parent / "tools"
    venv.create(tools)
    package = Path(sysconfig.get_path("purelib", vars={"base": str(tools)})) / "greeting.py"
    package.write_text("print('from the package')")
    program = tools / "bin" / "greet"
    program.write_text(f"#!{tools}/bin/python\nimport greeting\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    result = box(name).run(root, "greet")
    assert (result.exit_code, result.output) == (0, b"from the package\n")


@pytest.mark.parametrize("name", ["bubblewrap"])
def test_an_agent_that_npm_installed_somewhere_starts_with_its_package(root: Path, name: str) -> None:
    box(name)
    modules = root.parent / "somewhere" / "node_modules"
    (modules / "agent").mkdir(parents=True)
    (modules / ".bin").mkdir()
    (modules / "agent" / "words.txt").write_text("from the package")
    main = modules / "agent" / "main.sh"
    main.write_text('#!/bin/sh\ncat "$(dirname "$(readlink -f "$0")")/words.txt"\n')
    main.chmod(0o755)
    (modules / ".bin" / "agent").symlink_to("../agent/main.sh")
    result = box(name).run(root, str(modules / ".bin" / "agent"))
    assert (result.exit_code, result.output) == (0, b"from the package")


def test_the_python_of_the_tree_s_own_venv_works_wherever_it_was_installed(root: Path) -> None:
    box("bubblewrap")
    subprocess.run((sys.executable, "-m", "venv", "--without-pip", root / ".venv"), check=True, timeout=60)
    code = "import sys, json; print(sys.prefix)"
    result = BubblewrapSandbox().run(
        SandboxSpec(argv=("python", "-c", code), root=root), cancelled=lambda: False, started=lambda _pid: None
    )
    assert (result.exit_code, result.output.decode().strip()) == (0, str(root / ".venv"))


def test_a_submodule_s_git_folder_is_readable_where_the_submodule_is_the_tree(root: Path, git: Git) -> None:
    box("bubblewrap")
    (root / "a.txt").write_text("a")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "-m", "inner")
    outer = root.parent / "outer"
    outer.mkdir()
    git(outer, "init", "--quiet")
    git(outer, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(root), "sub")
    spec = SandboxSpec(argv=("git", "log", "--format=%s"), root=outer / "sub")
    result = BubblewrapSandbox().run(spec, cancelled=lambda: False, started=lambda _pid: None)
    assert (result.exit_code, result.output) == (0, b"inner\n"), result


# macOS


def profile_text(root: Path, **changes: Any) -> str:
    fields: dict[str, Any] = {"root": root, "path": "/usr/bin:/bin", "program": "true", "writable": (root,)}
    return profile(Access(**{**fields, **changes}))


def test_a_profile_denies_first_and_protects_git_and_our_state_after_it_allows_the_tree(root: Path) -> None:
    state = private_folder(state_folder(root))
    text = profile_text(root, writable=(root, state / "home"), readable=(state / "plan.md", root.parent))
    real, ours = Path(os.path.realpath(root)), Path(os.path.realpath(state))
    in_order = [
        "(version 1)",
        "(deny default)",
        f'(allow file-read* (subpath "{real.parent}"))',
        f'(allow file-read* file-write* (subpath "{real}"))',
        f'(deny file-read* file-write* (subpath "{ours.parent.parent}"))',
        f'(allow file-read* (subpath "{ours}/plan.md"))',
        f'(allow file-read* file-write* (subpath "{ours}/home"))',
        f'(deny file-write* (subpath "{real}/.git"))',
        "(deny network*)",
    ]
    again = (5, 6)  # what is shown again is named twice
    places = [text.rindex(line) if index in again else text.index(line) for index, line in enumerate(in_order)]
    assert places == sorted(places)
    assert text.count("(") == text.count(")")
    assert str(Path.home()) not in [line.split('"')[1] for line in text.splitlines() if '"' in line]


def test_a_profile_opens_the_ports_of_the_door_and_no_other_way_out(root: Path) -> None:
    with open_loopback_proxy(("127.0.0.1:5432", "example.org", "10.0.0.1:80")) as door:
        access = Access(root=root, path="/usr/bin:/bin", program="true", writable=(root,))
        lines = profile(access, door).splitlines()
        proxy = urlsplit(door.environment["HTTPS_PROXY"])
        # Whoever is on this host reaches that port: without the password it opens nothing.
        with socket.create_connection(("127.0.0.1", proxy.port or 0), 5) as stranger:
            stranger.sendall(b"CONNECT example.org:443 HTTP/1.1\r\n\r\n")
            assert stranger.recv(100).startswith(b"HTTP/1.1 407 ")
    ways = [line for line in lines if "network" in line]
    assert ways == [
        "(deny network*)",
        '(allow network-bind (local ip "localhost:*"))',
        '(allow network-inbound (local ip "localhost:*"))',
        '(allow network-outbound (remote ip "localhost:5432"))',
        f'(allow network-outbound (remote ip "localhost:{proxy.port}"))',
    ]


def test_a_path_cannot_break_out_of_a_profile(tmp_path: Path) -> None:
    strange = tmp_path / 'a"))(allow default)((x "\\'
    strange.mkdir()
    text = profile_text(strange)
    assert '"))(allow default)' not in text.replace('\\"', "")
    assert '\\"))(allow default)((x \\"\\\\"' in text


def test_an_agent_on_a_mac_gets_a_temporary_folder_of_its_own(root: Path) -> None:
    request = request_for(("agent", "run"), cwd=root)
    with SeatbeltAgentSandbox().wrap(request, writable=(root, root / "home")) as fenced:
        pass
    assert (str(fenced.program), fenced.arguments[0]) == ("/usr/bin/sandbox-exec", "-p")
    assert fenced.arguments[2:] == ("agent", "run")
    assert fenced.environment["TMPDIR"] == str(root / "home")
