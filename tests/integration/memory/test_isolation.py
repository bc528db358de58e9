"""Two projects never see each other's rows."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.memory.rows import START, failure, learn, outcome, pattern
from tests.support.postgres import new_database
from tightloop.database.engine import Database, postgres_database, sqlite_database
from tightloop.database.memory.schema import MEMORY
from tightloop.database.memory.store import MemoryStore
from tightloop.episode.failure import signature
from tightloop.memory import Fact, HashingEmbedder, Kind, Query
from tightloop.settings import MemorySettings

PROJECTS = ("mine", "theirs", "mine-2")
TEXTS = ("KeyError: alpha", "KeyError: beta", "ValueError: alpha beta", "TypeError: gamma")
STEPS = tuple(pattern(f"Do {name}", "do", name) for name in ("a", "b"))

Action = tuple[str, str, int, int]
"""What, in which project, with which text and which solution."""
actions = st.lists(
    st.tuples(
        st.sampled_from(("fail", "solve", "use", "fact", "forget one", "forget all")),
        st.sampled_from(PROJECTS),
        st.integers(0, len(TEXTS) - 1),
        st.integers(0, len(STEPS) - 1),
    ),
    max_size=12,
)


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    if request.param == "sqlite":
        yield sqlite_database(tmp_path_factory.mktemp("home") / "memory.db", MEMORY)
        return
    with new_database(request.getfixturevalue("postgres")) as address:
        found = postgres_database(address, MEMORY)
        yield found
        found.close()


@given(done=actions)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_project_sees_what_it_would_see_alone(shared: Database, done: list[Action]) -> None:
    together = MemoryStore(shared, HashingEmbedder(384), MemorySettings())
    for project in PROJECTS:
        together.forget(project)
    for action in done:
        _do(together, action)
    seen = {project: _seen(together, project) for project in PROJECTS}
    for project in PROJECTS:
        # The same again, without the others.
        for each in PROJECTS:
            together.forget(each)
        for action in done:
            if action[1] == project:
                _do(together, action)
        assert _seen(together, project) == seen[project]


def test_same_path_on_two_hosts_is_two_projects(database: Database) -> None:
    one, other = (
        MemoryStore(database, HashingEmbedder(384), MemorySettings(), hosts=(host,)) for host in ("host-1", "host-2")
    )
    learn(one, "p", TEXTS[0], STEPS[0])
    assert other.recall("p", Query(text=TEXTS[0])) == ()
    learn(other, "p", TEXTS[0], STEPS[1])
    assert [found.pattern for found in one.recall("p", Query(text=TEXTS[0]))] == [STEPS[0]]
    assert [found.pattern for found in other.recall("p", Query(text=TEXTS[0]))] == [STEPS[1]]
    assert len(one.projects()) == 2


def test_small_project_is_searched_whole_beside_a_large_one(database: Database) -> None:
    memory = MemoryStore(database, HashingEmbedder(384), MemorySettings())
    memory.record_failures("large", [failure(f"KeyError: alpha number{n}") for n in range(300)])
    memory.record_failures("small", [failure("KeyError: alpha and omega"), failure("KeyError: alpha")])
    found = memory.recall("small", Query(text="KeyError: alpha", solved=False, limit=10))
    assert {one.line for one in found} == {"KeyError: alpha and omega", "KeyError: alpha"}


def _do(memory: MemoryStore, action: Action) -> None:
    what, project, text, step = action
    said, solution = TEXTS[text], STEPS[step]
    if what == "fail":
        memory.record_failures(project, [failure(said, iteration=step)])
    elif what == "solve":
        learn(memory, project, said, solution)
    elif what == "use":
        memory.record_outcomes(project, [outcome(said, solution, worked=False, key=f"use/{text}")])
    elif what == "fact":
        memory.remember(project, Fact(key=f"key {step}", text=said, at=START))
    elif what == "forget one":
        memory.forget(project, [signature(said)])
    else:
        memory.forget(project)


def _seen(memory: MemoryStore, project: str) -> list[object]:
    return [
        *memory.export(project),
        memory.stats(project),
        *memory.facts(project),
        *(memory.entries(project, kind) for kind in Kind),
        *(memory.recall(project, Query(text=text, solved=False, limit=10)) for text in TEXTS),
        *(memory.search(project, "alpha", kind=kind) for kind in Kind),
    ]
