"""Control of a coder conversation: bounds, corrections, and loop detection."""

from collections import Counter
from collections.abc import Sequence

from tightloop.coder.model import Bounds, CallResult, CoderProgress, ConversationState, Turn
from tightloop.executor.model import Usage
from tightloop.value import ArtifactRef

# As in OpenHands' stuck detector: 4 equal calls with equal results within 20, 3 monologues.
WINDOW = 20
REPEATS_TOLD = 3
"""Number of identical calls with identical results after which the model is told that it repeats itself."""
REPEATS_STOP = 4
SILENT_STOP = 3
"""Number of consecutive replies without a usable tool call after which the conversation stops."""
NUDGE = (
    "You have made the same call with the same result {times} times. The result will not change. Look at the "
    "problem from another angle: read other files, or finish and explain what blocks you."
)
PROPOSE = "Your reply contains no tool call. Call a tool, or call finish with a summary."


def spent_tokens(usage: Usage) -> int:
    """Return the total number of input and output tokens. A missing count is treated as 0."""
    return (usage.input_tokens or 0) + (usage.output_tokens or 0)


def add_message(talk: ConversationState, message: ArtifactRef) -> ConversationState:
    """Append a message for the model and reset the conversation's loop counters."""
    # New instructions start a new part of the work: earlier repeats are no evidence of a loop any more.
    return talk.evolve(said=(*talk.said, message), marks=(), turns=0, silent=0, nudged=False)


def find_reached_bound(role: str, progress: CoderProgress, bounds: Bounds) -> str:
    """Return a sentence about the limit that a role has reached, or "" if it has not reached any."""
    most, turns = bounds.turns_of.get(role, bounds.max_turns), progress.talks.get(role, ConversationState()).turns
    # The role's own bound first: it is the narrower one, so its setting is the one to raise.
    if turns >= most:
        return f"{turns} turns were used, but coder.roles.{role}.max_turns is {most}"
    if progress.turns >= bounds.max_turns:
        return f"{progress.turns} turns were used, but coder.max_turns is {bounds.max_turns}"
    if (spent := spent_tokens(progress.usage)) >= bounds.max_tokens:
        return f"{spent} tokens were used, but coder.max_tokens is {bounds.max_tokens}"
    return ""


def after_turn(talk: ConversationState, turn: Turn) -> ConversationState:
    """Record a model's reply before its tool calls are executed."""
    # None of the calls of a faulty reply is made, so it is as idle as a reply without calls.
    idle = not turn.calls or bool(turn.problem)
    return talk.evolve(
        node=turn.node,
        turn=turn,
        results=(),
        # They are part of the node from now on. If they were sent again, the model would read them twice.
        said=(),
        correction=turn.problem or ("" if turn.calls else PROPOSE),
        turns=talk.turns + 1,
        silent=talk.silent + 1 if idle else 0,
    )


def after_results(talk: ConversationState, results: Sequence[CallResult]) -> ConversationState:
    """Record the results of all tool calls in the last reply, and detect repeated results."""
    marks = (*talk.marks, *(result.mark for result in results if result.mark))[-WINDOW:]
    times = count_repeats(marks)
    # Not permanent: other work in between gives the same call a new meaning.
    is_repeated = times >= REPEATS_TOLD
    return talk.evolve(
        results=tuple(results),
        marks=marks,
        nudged=is_repeated,
        correction=NUDGE.format(times=times) if is_repeated and not talk.nudged else "",
    )


def count_repeats(marks: Sequence[str]) -> int:
    """Return how many times the newest mark occurs among the stored marks."""
    return Counter(marks)[marks[-1]] if marks else 0


def may_reflect(progress: CoderProgress, bounds: Bounds) -> bool:
    """Return whether another round of coding is allowed after checks have failed."""
    # The first round is not a repair: `rounds` counts only those after failing checks.
    return progress.round <= bounds.rounds


def wants_tests(progress: CoderProgress, bounds: Bounds) -> bool:
    """Return whether the tester should write tests for the change once the checks pass."""
    return bounds.testing and not progress.tested


def why_stuck(talk: ConversationState) -> str:
    """Return a sentence that explains why a conversation is stuck, or "" if it is making progress."""
    if talk.silent >= SILENT_STOP:
        problem = talk.turn.problem if talk.turn else ""
        return f"{talk.silent} replies in a row contained no usable tool call" + (f": {problem}" if problem else "")
    if (times := count_repeats(talk.marks)) >= REPEATS_STOP:
        return f"the same call returned the same result {times} times"
    return ""


def resume_progress(progress: CoderProgress) -> CoderProgress:
    """Resume the coder after a person's answer, and repeat the tool calls that were waiting for it."""
    talks = {role: _without_questions(talk) for role, talk in progress.talks.items()}
    return progress.evolve(talks=talks)


def _without_questions(talk: ConversationState) -> ConversationState:
    results = []
    for result in talk.results:
        # Everything after the question is dropped too, because results belong to calls by their position.
        if result.question is not None:
            break
        results.append(result)
    return talk.evolve(results=tuple(results))
