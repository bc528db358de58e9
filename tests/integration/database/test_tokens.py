"""Tokens and the keys of repeated requests, in both databases."""

from datetime import UTC, datetime, timedelta
from threading import Barrier, Thread

import pytest
from sqlalchemy import text

from tightloop.database.access import IdempotencyKeys, KeyInUseError, Stored, Tokens
from tightloop.database.engine import Database
from tightloop.errors import InvalidRequestError
from tightloop.safety.seal import Person, Role

PROJECT = "orders-1a2b3c4d5e6f7081"


def test_a_token_opens_what_it_was_made_for_until_it_is_revoked(database: Database) -> None:
    tokens = Tokens(database)
    made, secret = tokens.create("anna", Role.OPERATOR, [PROJECT], lasts=timedelta(days=1))
    found = tokens.find(secret)
    assert found is not None
    assert found.person == Person(name="anna", role=Role.OPERATOR, projects=(PROJECT,))
    assert tokens.by_id(made.id) == found
    tokens.revoke("anna")
    assert tokens.find(secret) is None
    assert tokens.by_id(made.id) is None
    with pytest.raises(InvalidRequestError, match="tightloop token list"):
        tokens.revoke("anna")


def test_a_token_expires(database: Database) -> None:
    tokens = Tokens(database)
    _, secret = tokens.create("ci", Role.VIEWER, lasts=timedelta(seconds=-1))
    assert tokens.find(secret) is None
    tokens.create("ci", Role.VIEWER)


def test_the_database_holds_nothing_that_opens(database: Database) -> None:
    _, secret = Tokens(database).create("anna", Role.ADMIN)
    with database.reading() as connection:
        rows = connection.execute(text("SELECT * FROM tokens")).all()
    assert secret.split("_", 2)[2] not in str(rows)


@pytest.mark.parametrize("wrong", ["", "x", "tl_", "tl__", "tl_abc_def", "tl_\x00_x", "tl_ü_x", "Bearer", "_" * 50])
def test_what_nobody_made_is_nobody(database: Database, wrong: str) -> None:
    made, secret = Tokens(database).create("anna", Role.ADMIN)
    assert Tokens(database).find(wrong) is None
    assert Tokens(database).find(f"tl_{made.id}_{wrong}") is None
    assert Tokens(database).find(f"{secret}x") is None


@pytest.mark.parametrize(
    "name", ["", "Anna", "anna ", "\N{CYRILLIC SMALL LETTER A}nna", "operator", "tightloop", "a" * 41]
)
def test_names_that_people_could_confuse_are_refused(database: Database, name: str) -> None:
    with pytest.raises(InvalidRequestError, match="is not a valid token name"):
        Tokens(database).create(name, Role.VIEWER)


def test_two_valid_tokens_never_share_a_name(database: Database) -> None:
    tokens, meeting, made, refused = Tokens(database), Barrier(4), list[str](), list[str]()

    def make() -> None:
        meeting.wait()
        try:
            made.append(tokens.create("anna", Role.APPROVER)[1])
        except InvalidRequestError as error:
            refused.append(error.message)

    threads = [Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(made) == 1
    assert all("already exists" in said for said in refused)


def test_one_request_with_a_key_is_made_and_the_others_get_its_answer(database: Database) -> None:
    keys = IdempotencyKeys(database)
    assert keys.begin("anna", "k1", "body") is None
    with pytest.raises(KeyInUseError, match="still in progress"):
        keys.begin("anna", "k1", "body")
    keys.answer("anna", "k1", Stored(status=201, body='{"id": "e1"}'))
    assert keys.begin("anna", "k1", "body") == Stored(status=201, body='{"id": "e1"}')
    with pytest.raises(KeyInUseError, match="another request"):
        keys.begin("anna", "k1", "other")
    assert keys.begin("boris", "k1", "other") is None, "a key belongs to its sender"
    keys.give_up("boris", "k1")
    with pytest.raises(KeyInUseError, match="another request"):
        keys.begin("boris", "k1", "body")
    assert keys.begin("boris", "k1", "other") is None, "what was not answered can be sent again"


def test_a_key_whose_server_died_is_taken_over_and_an_old_one_is_forgotten(database: Database) -> None:
    keys = IdempotencyKeys(database)
    keys.begin("anna", "k1", "body")
    for age, ends in ((timedelta(minutes=5), None), (timedelta(days=2), None)):
        with database.writing() as connection:
            connection.execute(
                text("UPDATE idempotency_keys SET created = :at").bindparams(
                    at=_bound(database, datetime.now(UTC) - age)
                )
            )
        assert keys.begin("anna", "k1", "body") is ends


def test_a_key_of_a_server_that_was_killed_is_taken_over_by_the_next_one_at_once(database: Database) -> None:
    assert IdempotencyKeys(database).begin("anna", "k1", "body") is None
    after = IdempotencyKeys(database)
    assert after.begin("anna", "k1", "body") is None
    with pytest.raises(KeyInUseError, match="still in progress"):
        after.begin("anna", "k1", "body")


def _bound(database: Database, at: datetime) -> object:
    return at if str(database).startswith("postgresql") else at.replace(tzinfo=None).isoformat(" ")


def test_an_agent_is_bound_to_a_project_or_an_episode(database: Database) -> None:
    tokens = Tokens(database)
    for role, projects, episode in ((Role.AGENT, (), ""), (Role.OPERATOR, ("orders",), "nightly-1")):
        with pytest.raises(InvalidRequestError, match="--role agent --episode ID"):
            tokens.create("cursor", role, projects, episode=episode)
    _, text = tokens.create("cursor", Role.AGENT, ("orders",), episode="nightly-1")
    found = tokens.find(text)
    assert found is not None
    assert (found.person.role, found.person.episode) == (Role.AGENT, "nightly-1")
    assert not found.person.role.includes(Role.OPERATOR)
