"""What is kept of a project is found again, is counted once, and can be forgotten."""

import json
from datetime import timedelta

import pytest

from tests.support.memory.rows import START, failure, learn, outcome, pattern
from tightloop.database.engine import Database
from tightloop.database.memory.store import MemoryStore
from tightloop.episode.failure import signature
from tightloop.errors import InvalidRequestError
from tightloop.memory import Fact, HashingEmbedder, Kind, Match, Query
from tightloop.settings import MemorySettings

IMPORT = "E   ImportError: cannot import name 'sum_of' from 'orders.total'"
IMPORT_LIKE = "E   ImportError: cannot import name 'mean_of' from 'orders.total'"
TIMEOUT = "E   TimeoutError: the socket to the broker did not answer within 30 s"
SORT = pattern("Sort the imports", "ruff", "check", "--fix", "--select", "I001")
RENAME = pattern("Rename the function back")


def test_same_signature_comes_before_what_is_alike(memory: MemoryStore) -> None:
    learn(memory, "p", IMPORT_LIKE, RENAME)
    learn(memory, "p", IMPORT, SORT)
    first, second = memory.recall("p", Query(text=IMPORT_LIKE, signature=signature(IMPORT)))
    assert (first.match, first.pattern) == (Match.SIGNATURE, SORT)
    assert (second.match, second.pattern) == (Match.SIMILAR, RENAME)


def test_solution_of_a_similar_failure_is_found(memory: MemoryStore) -> None:
    learn(memory, "p", IMPORT, SORT)
    learn(memory, "p", TIMEOUT, RENAME)
    [found] = memory.recall("p", Query(text=IMPORT_LIKE))
    assert found.pattern == SORT
    assert found.shown.startswith("a similar failure")
    assert found.shown.endswith("worked 1 out of 1 time")


def test_what_is_not_alike_is_not_shown(memory: MemoryStore) -> None:
    learn(memory, "p", IMPORT, SORT)
    assert memory.recall("p", Query(text="AssertionError: the colour of the sky is green")) == ()


def test_failure_without_a_solution_is_only_shown_where_that_is_asked_for(memory: MemoryStore) -> None:
    memory.record_failures("p", [failure(IMPORT)])
    assert memory.recall("p", Query(text=IMPORT)) == ()
    [found] = memory.recall("p", Query(text=IMPORT, solved=False))
    assert found.pattern is None
    assert found.shown.endswith("never solved")


def test_iteration_that_is_recorded_twice_counts_once(memory: MemoryStore) -> None:
    for _ in range(2):
        memory.record_failures("p", [failure(IMPORT)])
        memory.record_solution("p", SORT, [outcome(IMPORT, SORT)])
    memory.record_failures("p", [failure(IMPORT, iteration=2, minute=1)])
    [entry] = memory.entries("p", Kind.FAILURE)
    assert entry.times == 2
    assert (entry.evidence.worked, entry.evidence.tried) == (1, 1)
    assert memory.stats("p").tried == 1


def test_surest_solution_comes_first_and_one_that_keeps_failing_is_retired(memory: MemoryStore) -> None:
    learn(memory, "p", IMPORT, RENAME, [True, False])
    learn(memory, "p", IMPORT, SORT, [True] * 3)
    assert [one.pattern for one in memory.recall("p", Query(text=IMPORT))] == [SORT, RENAME]
    memory.record_outcomes("p", [outcome(IMPORT, RENAME, worked=False, key=f"again/{n}") for n in range(2)])
    assert [one.pattern for one in memory.recall("p", Query(text=IMPORT))] == [SORT]


def test_use_of_what_never_worked_leaves_no_trace(memory: MemoryStore) -> None:
    memory.record_failures("p", [failure(IMPORT)])
    memory.record_solution("p", SORT, [outcome(IMPORT, SORT, worked=False)])
    memory.record_outcomes("p", [outcome(TIMEOUT, SORT)])
    assert memory.stats("p").tried == 0


def test_same_command_is_one_pattern_whoever_plans_it(memory: MemoryStore) -> None:
    learn(memory, "p", IMPORT, SORT)
    learn(memory, "p", TIMEOUT, SORT.evolve(title="Put the imports in order", workflow_id="e9"))
    [entry] = memory.entries("p", Kind.PATTERN)
    assert (entry.times, entry.evidence.worked) == (2, 2)
    assert {one.text for one in memory.show("p", entry.id).related} == {failure(IMPORT).line, failure(TIMEOUT).line}


def test_secrets_are_taken_out_before_anything_is_written(memory: MemoryStore, database: Database) -> None:
    key = "sk-proj-" + "a1B2c3D4e5F6g7H8" * 3
    text = f"E   ValueError: the key {key} of ada@example.com was refused"
    told = pattern("Use the key", "deploy", key)
    learn(memory, "p", text, told.evolve(code_template=f'+TOKEN = "{key}"'))
    memory.remember("p", Fact(key="login", text=f"ada@example.com with {key}"))
    kept = json.dumps([*memory.export("p")], default=str)
    with database.reading() as connection:
        words = connection.exec_driver_sql("SELECT word FROM memory_words").scalars().all()
    assert key not in kept
    assert "ada@example.com" not in kept
    assert not [word for word in words if word in key.lower() and len(word) > 6]
    [entry] = memory.entries("p", Kind.PATTERN)
    shown = memory.show("p", entry.id).pattern
    assert shown is not None
    # A command without its secret would do something else.
    assert shown.commands == ()
    assert shown.code_template.startswith('+TOKEN = "[secret:')


def test_facts_are_replaced_by_key_and_found_by_words(memory: MemoryStore) -> None:
    memory.remember("p", Fact(key="database", text="tests run on MySQL", at=START))
    memory.remember("p", Fact(key="database", text="tests run on SQLite", source="e2", at=START))
    memory.remember("p", Fact(key="style", text="lines have 120 characters", at=START))
    assert [fact.text for fact in memory.facts("p")] == ["tests run on SQLite", "lines have 120 characters"]
    [found, *_] = memory.search("p", "which database do the tests run on", kind=Kind.FACT)
    assert found.id == "database"
    assert memory.search("p", "MySQL", kind=Kind.FACT) == ()


def test_fact_without_a_text_is_refused(memory: MemoryStore) -> None:
    with pytest.raises(InvalidRequestError, match="has no key or no text"):
        memory.remember("p", Fact(key="empty", text=" "))


def test_forgotten_failure_takes_along_what_only_it_needed(memory: MemoryStore) -> None:
    learn(memory, "p", IMPORT, SORT)
    learn(memory, "p", TIMEOUT, RENAME)
    assert memory.forget("p", [signature(IMPORT)]) == 1
    assert memory.recall("p", Query(text=IMPORT)) == ()
    assert {entry.text for entry in memory.entries("p")} == {failure(TIMEOUT).line, RENAME.title}
    assert memory.forget("p", [RENAME.id]) == 1
    assert memory.stats("p").solved == 0
    with pytest.raises(InvalidRequestError, match="tightloop memory list"):
        memory.show("p", RENAME.id)


def test_everything_of_a_project_can_be_forgotten(memory: MemoryStore, database: Database) -> None:
    for project in ("p", "q"):
        learn(memory, project, IMPORT, SORT)
        memory.remember(project, Fact(key="a", text="b"))
    assert memory.forget("p") == 3
    with database.reading() as connection:
        for table in ("failures", "patterns", "uses", "facts", "words", "corpora", "projects"):
            found = connection.exec_driver_sql(f"SELECT DISTINCT project FROM memory_{table}").scalars().all()
            assert found == ["q"], table


def test_bound_removes_what_was_never_solved_first(database: Database) -> None:
    memory = MemoryStore(database, HashingEmbedder(384), MemorySettings(max_failures=3, max_facts=2))
    learn(memory, "p", IMPORT, SORT)
    names = ("alpha", "beta", "gamma", "delta")
    for minute, name in enumerate(names, 1):
        memory.record_failures("p", [failure(f"KeyError: {name}", minute=minute)])
        memory.remember("p", Fact(key=name, text=name, at=START + timedelta(minutes=minute)))
    lines = {entry.text for entry in memory.entries("p", Kind.FAILURE)}
    assert lines == {failure(IMPORT).line, "KeyError: gamma", "KeyError: delta"}
    assert [fact.key for fact in memory.facts("p")] == ["delta", "gamma"]


def test_vectors_of_two_models_are_never_compared(database: Database) -> None:
    small, large = HashingEmbedder(384), HashingEmbedder(1536)
    large.name = "another"
    learn(MemoryStore(database, small, MemorySettings()), "p", IMPORT, SORT)
    other = MemoryStore(database, large, MemorySettings())
    other.record_failures("p", [failure(TIMEOUT)])
    assert other.stats("p").embedders == {"hashing-3-5": 1, "another": 1}
    # Found by its words, as long as it has no vector of this model.
    assert other.recall("p", Query(text=IMPORT))
    other.record_failures("p", [failure(IMPORT, iteration=2)])
    assert other.stats("p").embedders == {"another": 2}
    assert (other.show("p", signature(IMPORT)).embedder, other.show("p", signature(IMPORT)).dimension) == (
        "another",
        1536,
    )
