"""Work that cannot be done: the named ways, a planner that reads the last words, and prose in passing."""

from collections.abc import Callable
from typing import Any

import pytest

from activities.model.client import ModelService
from activities.planner.planners import OpenAIPlanner
from tests.support.episodes import APPEND, Working, asked, scripted
from tests.support.line_writing import PLAN
from tests.support.model_server import Asked, ModelServer, Reply, says
from tightloop.client import TightloopClient
from tightloop.episode.model import EpisodeOutcome
from tightloop.errors import InvalidRequestError
from tightloop.run.question import QuestionKind

ENDING = ".tightloop-ending"
SECOND_LINE = "grep -q 2 log.txt"

NAMED = [
    "impossible: test_total wants 7 and test_sum wants 8 for the same call",
    "left red on purpose: tests/test_tax.py expects the rate of 2019, but the goal asks for the new one",
    "Impossible: the service that the goal names was shut down",
    "impossible:\nthe schema in docs/api.md forbids the field\nthat the goal asks for",
    "LEFT RED ON PURPOSE: the benchmark needs 64 cores",
]
"""Goals that cannot be reached, through the file that the hand-off names."""
EXPLAINED = [
    "test_rounding demands 2.675 -> 2.68, but docs/rules.md demands banker's rounding. Both cannot hold.",
    "I read both tests. test_a asserts that f(1) is 2, test_b asserts that f(1) is 3.",
    "The check calls `lint --strict2`, an option that no version of the linter has.",
    "The goal asks for offline use, while the check pings api.example.com and must get an answer.",
    "Sorting stably with an unstable comparison is required by test_order; every order breaks one assertion.",
]
"""Goals that cannot be reached, explained in prose."""
ORDINARY = [
    "Added the first line.",
    "One line is written; the next iteration adds another one.",
    "The parser works, the printer is next.",
    "Refactored the loop. Two tests are still red.",
    "I moved the constant, and the import has to follow.",
    "Fixed a typo in the log.",
    "Half of the migration is done.",
    "The build passes now, the tests are next.",
    "Wrote the helper and its first caller.",
    "Ran the formatter, and found another failing test.",
    "I cannot run the whole suite here, so I ran the parser's tests.",
    "It was impossible to keep the old name, so I renamed it.",
    "This cannot be done in one step; the first one is done.",
    "impossible: that was my first thought, but the line is there.",
    "left red on purpose: the second line comes next.",
    "The cache cannot be empty any more.",
    "An impossible state is now an error.",
    "I could not find the config. It cannot matter, as it has defaults.",
    "The test named test_impossible_input still fails.",
    "Users cannot log in twice now; the second test is open.",
]
"""Reports on ordinary deliveries after which the check still fails; ten of them use the words in passing."""


def planning(answer: Callable[[Asked], dict[str, Any]]) -> Callable[[Asked], Reply]:
    """Answer each request of the planner with the plan of the script, or with what `answer` changes in it."""
    return lambda request: says({**PLAN, **answer(request)})


def concludes_from(words: str, reason: str) -> Callable[[Asked], Reply]:
    """Conclude that the goal cannot be reached as soon as the prompt contains the executor's words."""
    ended = {"impossible": True, "steps": [], "reason": reason}
    return planning(lambda request: ended if words in request.text else {})


def asks(server: ModelServer) -> OpenAIPlanner:
    return OpenAIPlanner(ModelService(api_key="key-1", base_url=server.url, models=("m1",), timeout_s=60.0))


@pytest.mark.parametrize("text", NAMED)
async def test_the_named_way_asks_after_the_first_delivery(
    text: str, client: TightloopClient, working: Working, request_for
) -> None:
    with ModelServer(planning(lambda _: {})) as server:
        async with working(asks(server)):
            step = {"write": [{"path": ENDING, "text": text}], "summary": "I stopped.", **APPEND}
            episode_id = await client.start(request_for(definition_of_done=[SECOND_LINE], executor=scripted(step)))
            status = await asked(client, episode_id)
            await client.cancel(episode_id)
            await client.result(episode_id)
    [question] = status.questions
    kind, _, reason = text.partition(":")
    assert (question.kind, question.by, status.iteration) == (QuestionKind.IMPOSSIBLE, "the executor", 1)
    assert question.title == f"the executor stopped: {kind.lower()}: {' '.join(reason.split())}"
    assert question.evidence[-1] == "the executor's last message: I stopped."


@pytest.mark.parametrize("words", EXPLAINED)
async def test_the_planner_reads_the_last_words_and_ends_with_the_reason(
    words: str, client: TightloopClient, working: Working, request_for
) -> None:
    reason = f"the checks contradict the goal: {words[:40]}"
    with ModelServer(concludes_from(words, reason)) as server:
        async with working(asks(server)):
            step = {**APPEND, "summary": words}
            episode_id = await client.start(request_for(definition_of_done=[SECOND_LINE], executor=scripted(step)))
            status = await asked(client, episode_id)
            await client.answer(episode_id, "work", text="the first test counts", by="ada")
            again = await asked(client, episode_id, since=status)
            await client.cancel(episode_id)
            await client.result(episode_id)
    [question] = status.questions
    assert (question.kind, question.by) == (QuestionKind.IMPOSSIBLE, "the planner")
    assert question.title == f"the planner stopped: impossible: {reason}"
    assert question.evidence[-1] == f"the executor's last message: {words}"
    # One delivery was made, and the planner read its report for the second one.
    assert (status.iteration, len(server.requests)) == (2, 3)
    assert again.questions[0].kind is QuestionKind.IMPOSSIBLE
    assert "ada wants the work to continue, although the planner stopped" in server.requests[2].text
    assert "the first test counts" in server.requests[2].text


@pytest.mark.parametrize("words", ORDINARY)
async def test_words_in_passing_ask_nothing(words: str, client: TightloopClient, working: Working, request_for) -> None:
    with ModelServer(planning(lambda _: {})) as server:
        async with working(asks(server)):
            step = {**APPEND, "summary": words}
            episode_id = await client.start(request_for(definition_of_done=[SECOND_LINE], executor=scripted(step)))
            result = await client.result(episode_id)
            timeline = await client.timeline(episode_id)
    assert (result.outcome, result.qualifier, result.iterations) == (EpisodeOutcome.SUCCEEDED, "", 2)
    assert [entry for entry in timeline if entry.kind == "paused"] == []
    assert words in server.requests[1].text


async def test_a_person_who_works_can_say_that_it_is_impossible(
    client: TightloopClient, working: Working, request_for
) -> None:
    async with working():
        episode_id = await client.start(request_for(executor="person"))
        work = await asked(client, episode_id)
        with pytest.raises(InvalidRequestError, match="requires an argument: WHY"):
            await client.answer(episode_id, "impossible")
        await client.answer(episode_id, "impossible", text="the disk is full", by="ada")
        status = await asked(client, episode_id, since=work)
        await client.cancel(episode_id)
        await client.result(episode_id)
    [question] = status.questions
    assert question.title == "the executor stopped: impossible: the disk is full"
    assert (question.kind, question.names) == (QuestionKind.IMPOSSIBLE, ("work", "cancel"))
