"""Sealed payloads: keys in a file, the codec, failures, rotation, and a real episode with its replay."""

import dataclasses
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from uuid import uuid4

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.client import Client, WorkflowHistory
from temporalio.converter import WorkflowSerializationContext
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment

from tests.support.doubles import ScriptedPlanner
from tests.support.episodes import APPEND, scripted
from tightloop.client import TightloopClient
from tightloop.client.encryption import data_converter, sealing_converter
from tightloop.client.keys import KeyRing, new_ring, read_ring, write_ring
from tightloop.client.sealing import ENCRYPTED, Keys, SealingCodec
from tightloop.episode.model import EpisodeOutcome, EpisodeRequest
from tightloop.errors import SettingsError
from tightloop.settings import PrivacySettings, Settings, TemporalSettings
from worker.build import build_adapters, build_workers
from worker.connect import connect
from worker.replay import replay

ROOT = Path(__file__).parents[2]
ENCRYPT = PrivacySettings(encrypt=True)
ENCRYPTING = Settings(privacy=ENCRYPT)
HERE = WorkflowSerializationContext(namespace="default", workflow_id="episode-1")
HELLO = Payload(metadata={"encoding": b"json/plain"}, data=b'"hello"')


def codec_of(ring: KeyRing) -> SealingCodec:
    """A codec that encrypts."""
    return SealingCodec(Keys(ring))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A state folder with a key file."""
    write_ring(tmp_path / "state" / "keys.json", new_ring())
    return tmp_path / "state"


def tightloop(home: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a state folder of the test's own."""
    command = [sys.executable, "-m", "tightloop.cli.main", *arguments]
    environment = {**os.environ, "TIGHTLOOP_HOME": str(home), **variables}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)


# -- the codec --------------------------------------------------------------------------------------


async def test_a_payload_comes_back_as_it_was_and_shows_only_the_id_of_its_key() -> None:
    ring = new_ring()
    codec = codec_of(ring).with_context(HERE)
    [sealed] = await codec.encode([HELLO])
    assert dict(sealed.metadata) == {"encoding": b"binary/encrypted", "encryption-key-id": ring.current.encode()}
    assert b"hello" not in sealed.SerializeToString()
    [opened] = await codec.decode([sealed])
    assert (opened.data, opened.metadata["encoding"]) == (HELLO.data, b"json/plain")


async def test_the_same_payload_is_never_sealed_the_same_way_twice() -> None:
    codec = codec_of(new_ring())
    assert len({payload.data for payload in await codec.encode([HELLO] * 100)}) == 100


async def test_a_missing_key_is_named_with_what_to_do() -> None:
    one, other = new_ring(), new_ring()
    [sealed] = await codec_of(one).encode([HELLO])
    with pytest.raises(
        SettingsError, match=f"sealed with key '{one.current}', which is not one of the keys on this host"
    ):
        codec_of(other).open(sealed)


@pytest.mark.parametrize("change", ["first byte", "last byte", "cut off", "key id"])
async def test_a_changed_payload_is_refused(change: str) -> None:
    ring = new_ring().with_new_key()
    codec = codec_of(ring).with_context(HERE)
    [sealed] = await codec.encode([HELLO])
    data = sealed.data
    if change == "key id":
        sealed.metadata["encryption-key-id"] = ring.ids[1].encode()
    else:
        changed = {
            "first byte": bytes([data[0] ^ 1]) + data[1:],
            "last byte": data[:-1] + bytes([data[-1] ^ 1]),
            "cut off": data[:5],
        }
        sealed.data = changed[change]
    with pytest.raises(SettingsError, match="cannot be decrypted"):
        codec.open(sealed)
    [refused] = await codec.decode([sealed])
    assert refused.metadata["encoding"] == b"binary/refused"


async def test_a_running_process_reads_what_a_key_made_later_sealed(home: Path) -> None:
    running = data_converter(ENCRYPTING, home).with_context(HERE)
    write_ring(home / "keys.json", read_ring(ENCRYPT, home).with_new_key(), replace=True)
    [sealed] = await data_converter(ENCRYPTING, home).with_context(HERE).encode(["later"])
    assert await running.decode([sealed]) == ["later"]


async def test_messages_and_stack_traces_of_failures_and_their_causes_are_sealed(home: Path) -> None:
    converter = data_converter(ENCRYPTING, home).with_context(HERE)
    try:
        try:
            raise ValueError("inner secret word")
        except ValueError as cause:
            raise ApplicationError("outer secret word", "a detail word", type="Kind") from cause
    except ApplicationError as error:
        failure = Failure()
        await converter.encode_failure(error, failure)
    raw = failure.SerializeToString()
    assert b"word" not in raw
    assert b"test_encryption" not in raw, "the stack trace"
    assert failure.cause.message == "Encoded failure"
    again = await converter.decode_failure(failure)
    assert isinstance(again, ApplicationError)
    assert (again.message, again.details, again.type) == ("outer secret word", ("a detail word",), "Kind")
    assert "inner secret word" in str(again.__cause__)
    passed_on = Failure()
    await converter.encode_failure(again, passed_on)
    assert b"word" not in passed_on.SerializeToString()


@pytest.mark.parametrize("authenticate", [True, False])
async def test_failures_are_scrubbed_sealed_or_not(home: Path, authenticate: bool) -> None:
    failure, converter = Failure(), data_converter(Settings(temporal=TemporalSettings(authenticate=authenticate)), home)
    here = converter.with_context(HERE)
    await here.encode_failure(ValueError("to jane@mail.example.org"), failure)
    assert failure.message == ("Encoded failure" if authenticate else "to [pii:email]")
    assert "to [pii:email]" in str(await here.decode_failure(failure))


async def test_reason_of_a_failure_inside_a_deep_recursion_fits_the_limit_of_the_server(home: Path) -> None:
    def descend(depth: int) -> None:
        if depth == 0:
            raise ValueError("folders more than 256 deep")
        enter(depth - 1)

    def enter(depth: int) -> None:
        descend(depth)  # two functions in turn: a trace abbreviates one that calls itself

    failure, converter = Failure(), data_converter(Settings(), home).with_context(HERE)
    try:
        try:
            descend(200)
        except ValueError as cause:
            raise ApplicationError("the files cannot be read") from cause
    except ApplicationError as error:
        await converter.encode_failure(error, failure)
    assert failure.ByteSize() < 4096
    assert "folders more than 256 deep" in str((await converter.decode_failure(failure)).__cause__)


# -- keys -------------------------------------------------------------------------------------------


def test_keys_are_made_listed_and_rotated_and_never_shown(tmp_path: Path) -> None:
    assert "keys.json is missing. Create one" in tightloop(tmp_path, "keys", "list").stderr
    made = tightloop(tmp_path, "keys", "new")
    path = tmp_path / "keys.json"
    assert made.returncode == 0, made.stderr
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    first = json.loads(path.read_text())["current"]
    assert first in made.stdout
    refused = tightloop(tmp_path, "keys", "new")
    assert refused.returncode == 2
    assert "keys.json already exists" in refused.stderr
    rotated = tightloop(tmp_path, "keys", "rotate")
    listed = tightloop(tmp_path, "keys", "list")
    document = json.loads(path.read_text())
    assert set(listed.stdout.split()) == {first, document["current"], "current"}
    assert listed.stdout.split()[:2] == [document["current"], "current"]
    everything = "".join(done.stdout + done.stderr for done in (made, refused, rotated, listed))
    assert not any(key in everything for key in document["keys"].values())
    assert list(tmp_path.iterdir()) == [path]


def test_a_key_file_that_others_can_read_is_refused(home: Path) -> None:
    (home / "keys.json").chmod(0o644)
    with pytest.raises(
        SettingsError, match=r"other users can read .* \(mode 0644\)\. Restrict access to the file: chmod 600"
    ):
        read_ring(ENCRYPT, home)


def test_keys_come_from_a_variable_where_the_settings_name_one(monkeypatch: pytest.MonkeyPatch) -> None:
    privacy = PrivacySettings(encrypt=True, keys_env="MY_KEYS")
    monkeypatch.delenv("MY_KEYS", raising=False)
    with pytest.raises(SettingsError, match=r"the variable MY_KEYS named by privacy\.keys_env is empty"):
        read_ring(privacy)
    ring = new_ring()
    monkeypatch.setenv("MY_KEYS", ring.as_json())
    assert read_ring(privacy) == ring


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("secret-looking nonsense", "does not contain valid keys"),
        ('{"current": "a", "keys": {"a": "c2hvcnQ="}}', "is 5 bytes, but AES-256 requires 32"),
        ('{"current": "b", "keys": {}}', "the current key 'b' is missing from `keys`"),
        ('{"current": ["a"], "keys": {}}', "does not contain valid keys"),
        ("[]", "does not contain valid keys"),
    ],
)
def test_a_wrong_key_file_is_refused_without_quoting_it(home: Path, text: str, said: str) -> None:
    (home / "keys.json").write_text(text)
    with pytest.raises(SettingsError, match=said) as raised:
        read_ring(ENCRYPT, home)
    assert "nonsense" not in raised.value.message
    assert "c2hvcnQ" not in raised.value.message


def test_a_key_is_in_no_repr() -> None:
    ring = new_ring()
    assert repr(ring.keys[ring.current]) not in repr(ring)


def test_the_settings_and_the_workflows_never_load_cryptography() -> None:
    code = (
        "import sys, tightloop.settings, tightloop.client.encryption, workflows.episode.workflow;"
        "sys.exit('cryptography' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False, timeout=60).returncode == 0


# -- an episode -------------------------------------------------------------------------------------


@pytest.fixture
async def old_and_new(temporal: WorkflowEnvironment) -> tuple[KeyRing, KeyRing]:
    old = new_ring()
    return old, old.with_new_key()


def codec_client(client: Client, ring: KeyRing) -> Client:
    """The same connection with a codec."""
    config = client.config()
    config["data_converter"] = sealing_converter(codec_of(ring))
    return Client(**config)


async def run_episode(client: Client, settings: Settings, request: EpisodeRequest) -> tuple[str, WorkflowHistory]:
    """Run an episode to its end with workers of all roles."""
    adapters = dataclasses.replace(build_adapters(client, settings), planners=lambda _kind: ScriptedPlanner())
    async with AsyncExitStack() as stack:
        for worker in build_workers(client, settings, adapters=adapters):
            await stack.enter_async_context(worker)
        tight = TightloopClient(client, settings)
        episode_id = await tight.start(request)
        assert (await tight.result(episode_id)).outcome is EpisodeOutcome.SUCCEEDED
        assert (await tight.status(episode_id)).goal == request.goal
    return episode_id, await client.get_workflow_handle(episode_id).fetch_history()


async def test_after_a_rotation_old_histories_are_read_and_replayed_and_new_ones_use_the_new_key(
    temporal_client: Client,
    settings: Settings,
    request_for: Callable[..., EpisodeRequest],
    old_and_new: tuple[KeyRing, KeyRing],
) -> None:
    old, new = old_and_new
    request = request_for(executor=scripted(APPEND), goal="write three lines, one-of-its-kind")
    before, history = await run_episode(codec_client(temporal_client, old), settings, request)
    raw = b"".join(event.SerializeToString() for event in history.events)
    assert b"one-of-its-kind" not in raw
    assert old.current.encode() in raw

    rotated = codec_client(temporal_client, new)
    rows = {row.id: row for row in await TightloopClient(rotated, settings).list()}
    assert rows[before].goal == request.goal, "the memo"
    done = await replay(history, sealing_converter(codec_of(new)))
    assert done.failure == ""
    assert any("iteration" in entry.kind for entry in done.timeline)

    again = request_for(goal="write six lines", definition_of_done=["test $(cat log.txt | wc -l) -ge 6"])
    _, later = await run_episode(rotated, settings, again)
    raw = b"".join(event.SerializeToString() for event in later.events)
    assert new.current.encode() in raw
    assert old.current.encode() not in raw

    without = new_ring()
    with pytest.raises(SettingsError, match=f"cannot decrypt the history of .*: .*{old.current}"):
        await replay(history, sealing_converter(codec_of(without)))
    with pytest.raises(SettingsError, match=r"Turn on either one, using the key file"):
        await replay(history)


async def test_a_client_without_the_key_gets_a_sentence_and_the_list_still_works(
    temporal_client: Client, settings: Settings, request_for: Callable[..., EpisodeRequest]
) -> None:
    ring = new_ring()
    episode_id, _ = await run_episode(codec_client(temporal_client, ring), settings, request_for())
    other = TightloopClient(codec_client(temporal_client, new_ring()), settings)
    rows = {row.id: row for row in await other.list()}
    assert rows[episode_id].goal.startswith("(cannot be read here")
    with pytest.raises(SettingsError, match=ring.current):
        await other.result(episode_id)
    plain = TightloopClient(temporal_client, settings)
    with pytest.raises(SettingsError, match="Use the same tightloop release, key file"):
        await plain.result(episode_id)


async def test_a_worker_with_encryption_on_and_no_key_says_what_to_do(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIGHTLOOP_HOME", str(tmp_path / uuid4().hex))
    private = settings.evolve(privacy=ENCRYPT)
    for opened in (connect(private), TightloopClient.connect(settings=private)):
        with pytest.raises(
            SettingsError, match=r"the key file .*keys\.json is missing\. Create one: tightloop keys new"
        ):
            await opened


def test_the_encoding_is_the_one_that_temporal_tools_know() -> None:
    assert ENCRYPTED == b"binary/encrypted"
