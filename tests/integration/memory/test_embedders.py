"""Embedders: a service over real HTTP, a model in a folder, and none."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from activities.memory.embedders import OpenAIEmbedder, choose_embedder
from activities.memory.local import LocalEmbedder
from activities.model.client import ModelService
from tests.support.memory.embedding_server import EmbeddingServer
from tests.support.memory.minilm import minilm_folder
from tests.support.memory.rows import learn, pattern
from tightloop.database.engine import sqlite_database
from tightloop.database.memory.schema import MEMORY
from tightloop.database.memory.store import MemoryStore
from tightloop.errors import ServiceUnavailableError, SettingsError
from tightloop.memory import HashingEmbedder, Query, hash_text
from tightloop.settings import MemorySettings

ALIKE = "KeyError: the name of the order is missing"
SOLUTION = pattern("Add the name")


@pytest.fixture
def service() -> Iterator[EmbeddingServer]:
    with EmbeddingServer() as server:
        yield server


def embedder(service: EmbeddingServer, *, timeout_s: float = 10.0) -> OpenAIEmbedder:
    return OpenAIEmbedder(ModelService(api_key="k", base_url=service.url), "text-embedding-3-large", 1536, timeout_s)


def test_vectors_of_a_service_come_in_the_order_of_the_texts(service: EmbeddingServer) -> None:
    found = embedder(service).embed(["one", "", "three"])
    assert [list(vector) for vector in found] == [
        pytest.approx(list(hash_text(text, 1536)), abs=1e-6) for text in ("one", "-", "three")
    ]
    [asked] = service.asked
    assert (asked["model"], asked["dimensions"], asked["input"]) == (
        "text-embedding-3-large",
        1536,
        ["one", "-", "three"],
    )


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("busy", "overloaded"),
        ("short", "returned 0 vectors of length 1536 for 2 texts"),
        ("few", "returned 1 vectors of length 1536 for 2 texts"),
        ("garbage", "model text-embedding-3-large returned no vectors"),
        ("hang", "model text-embedding-3-large returned no vectors"),
    ],
)
def test_service_without_vectors_says_what_to_check_and_is_asked_once(
    service: EmbeddingServer, fault: str, said: str
) -> None:
    service.fault = fault
    with pytest.raises(ServiceUnavailableError, match=said):
        embedder(service, timeout_s=1).embed(["one", "two"])
    assert len(service.asked) == 1


def test_without_an_answer_of_the_service_words_are_compared(service: EmbeddingServer, tmp_path: Path) -> None:
    memory = MemoryStore(sqlite_database(tmp_path / "memory.db", MEMORY), embedder(service), MemorySettings())
    service.fault = "busy"
    learn(memory, "p", ALIKE, SOLUTION)
    [found] = memory.recall("p", Query(text=ALIKE))
    assert found.pattern == SOLUTION
    assert memory.stats("p").embedders == {"none": 1}


def test_secret_in_a_failure_never_reaches_the_service(service: EmbeddingServer, tmp_path: Path) -> None:
    memory = MemoryStore(sqlite_database(tmp_path / "memory.db", MEMORY), embedder(service), MemorySettings())
    key = "sk-proj-" + "a1B2c3D4e5F6g7H8" * 3
    learn(memory, "p", f"ValueError: key {key} of ada@example.com", pattern(f"Use {key}"))
    memory.recall("p", Query(text=f"ValueError: key {key}"))
    sent = json.dumps(service.asked)
    assert len(service.asked) >= 3
    assert key not in sent
    assert "ada@example.com" not in sent


def test_model_in_a_folder_finds_what_is_meant_and_not_worded_alike() -> None:
    model = LocalEmbedder(minilm_folder())
    texts = [
        "the hard disk is full, so nothing can be saved",
        "No space left on device",
        "the user typed a wrong password",
    ]
    vectors = model.embed(texts)
    near, far = (sum(a * b for a, b in zip(vectors[0], each, strict=True)) for each in vectors[1:])
    assert model.dimension == len(vectors[0]) == 384
    assert all(sum(value * value for value in vector) == pytest.approx(1, abs=1e-5) for vector in vectors)
    assert near > 0.4 > 0.2 > far


def test_long_text_is_cut_and_equal_texts_have_equal_vectors() -> None:
    model = LocalEmbedder(minilm_folder())
    long, longer, again = model.embed(["word " * 2_000, "word " * 3_000, "word " * 2_000])
    assert list(long) == list(longer) == list(again)


def test_folder_without_a_model_names_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(SettingsError, match=r"does not contain model\.safetensors, tokenizer\.json.*hashing"):
        choose_embedder(MemorySettings(embedder="local", folder=str(tmp_path)), ModelService())


def test_two_models_have_two_names(tmp_path: Path) -> None:
    known = minilm_folder()
    copied = shutil.copytree(known, tmp_path / known.name)
    assert LocalEmbedder(copied).name == LocalEmbedder(known).name
    other = shutil.copytree(known, tmp_path / "mine")
    assert LocalEmbedder(other).name != LocalEmbedder(known).name


def test_service_without_a_key_is_refused_and_hashing_needs_none() -> None:
    with pytest.raises(SettingsError, match="OPENAI_API_KEY"):
        choose_embedder(MemorySettings(embedder="openai"), ModelService())
    assert isinstance(choose_embedder(MemorySettings(), ModelService()), HashingEmbedder)
