"""Conversations: what a compaction keeps, and what its digest says."""

from hypothesis import given
from hypothesis import strategies as st

from activities.coder.model import join_user_messages
from activities.coder.port import Message
from activities.coder.turns import DIGEST_BYTES, Conversation, count_tokens, digest_text, lines_of
from activities.model.observed import ProposedCall
from tests.support.coder_turns import SPECS

OPENING = (Message("system", "You change code."), Message("user", "Fix it."))


def turn(number: int, text: str = "ok", path: str = "a.py") -> tuple[Message, Message]:
    call = ProposedCall(f"c{number}", "read_file", f'{{"path": "{path}", "start": null}}')
    return Message("assistant", "", (call,)), Message("tool", text, (), call.id, f"{number:064x}")


def talk(sizes: list[int]) -> Conversation:
    turns = [turn(number, "x" * size) for number, size in enumerate(sizes)]
    return Conversation(OPENING, tuple(message for pair in turns for message in pair))


def test_older_turns_become_one_line_each_and_newer_ones_stay_as_they_are() -> None:
    before = talk([4_000] * 10)
    after = before.compact(2_500)
    assert after.messages == before.messages[-4:]
    assert len(after.digest) == 8
    assert after.digest[3] == f"- read_file a.py: {'x' * 94} [...] (result:000000000000)"
    assert after.prompt[0] == OPENING[0]
    assert after.prompt[1].text.startswith("Fix it.\n\n# Done so far")


def test_line_names_call_outcome_and_where_to_read_it_again() -> None:
    call = ProposedCall("c", "run_command", '{"timeout": null, "command": "pytest -q tests"}')
    result = Message("tool", "3 failed,\n  2 passed", (), "c", "ab" * 32)
    told = Message("user", "The sum is\nwrong in line 4.")
    lines, left_out = lines_of((), [[Message("assistant", "I run them.", (call,)), result, told]])
    assert lines == (
        "- run_command pytest -q tests: 3 failed, 2 passed (result:abababababab)",
        "- told: The sum is wrong in line 4.",
    )
    assert left_out == 0


def test_corrections_leave_no_trace_in_a_digest() -> None:
    wrong = [Message("assistant", "Hello"), Message("user", "Your answer contains no tool call.")]
    assert lines_of((), [wrong]) == ((), 0)


def test_newest_turn_stays_however_large_it_is() -> None:
    after = talk([100, 100, 100_000]).compact(1_000)
    assert len(after.messages) == 2
    assert after.compact(1_000) is after


def test_digest_of_digests_is_bounded_and_says_how_much_is_gone() -> None:
    conversation = Conversation(OPENING)
    for _ in range(30):
        added = [message for number in range(10) for message in turn(number, "y" * 500, path="p" * 60)]
        conversation = conversation.with_messages(added).compact(500)
    text = digest_text(conversation.digest, conversation.left_out)
    assert len(text.encode()) <= DIGEST_BYTES + 250
    assert f"[{conversation.left_out} older lines omitted]" in text
    assert conversation.left_out + len(conversation.digest) + len(conversation.messages) // 2 == 300


@given(st.lists(st.integers(0, 3_000), min_size=1, max_size=40), st.integers(200, 4_000))
def test_every_call_that_is_kept_has_its_result(sizes: list[int], keep: int) -> None:
    before = talk(sizes)
    after = before.compact(keep)
    calls = [call.id for message in after.messages for call in message.calls]
    assert calls == [message.call_id for message in after.messages if message.role == "tool"]
    assert before.messages[len(before.messages) - len(after.messages) :] == after.messages
    assert len(after.messages) == 2 or count_tokens(after.messages) <= keep


def test_estimate_counts_texts_arguments_and_tools() -> None:
    assert count_tokens([Message("user", "a" * 400)]) == 104
    assert count_tokens([Message("user", "é" * 400)]) == 204
    assert count_tokens([], SPECS) > 100


def test_messages_of_people_that_follow_each_other_are_one_on_the_wire() -> None:
    messages = [*OPENING, Message("user", "And quickly."), *turn(1), Message("user", "a"), Message("user", "b")]
    assert [(message.role, message.text) for message in join_user_messages(messages)] == [
        ("system", "You change code."),
        ("user", "Fix it.\n\nAnd quickly."),
        ("assistant", ""),
        ("tool", "ok"),
        ("user", "a\n\nb"),
    ]
