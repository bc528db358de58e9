"""Control of a coder conversation: bounds, corrections, and detection of loops."""

from collections import Counter
from collections.abc import Sequence

from tightloop.coder.model import Bounds, CallResult, CoderProgress, ConversationState, Turn
from tightloop.executor.model import Usage
from tightloop.value import ArtifactRef

# As in OpenHands' stuck detector: 4 equal calls with equal results within 20, 3 monologues.
WINDOW = 20
REPEATS_TOLD = 3
"""Equal calls with equal results after which the model gets a hint."""
REPEATS_STOP = 4
SILENT_STOP = 3
"""Consecutive replies without a usable tool call."""
NUDGE = (
    "You have made the same call with the same result {times} times. It will not change. Look at the problem from "
    "another side: read other files, or finish and say what stands in the way."
)
PROPOSE = "You proposed no tool call. Go on with one, or call finish with a summary."


def spent_tokens(usage: Usage) -> int:
    """Return the sum of input and output tokens, counting unreported ones as 0."""
    return (usage.input_tokens or 0) + (usage.output_tokens or 0)


def add_message(talk: ConversationState, message: ArtifactRef) -> ConversationState:
    """Append a message for the model, and reset its loop counters."""
    # New instructions start a new part of the work: earlier repeats are no evidence of a loop any more.
    return talk.evolve(said=(*talk.said, message), marks=(), turns=0, silent=0, nudged=False)


def find_reached_bound(role: str, progress: CoderProgress, bounds: Bounds) -> str:
    """Return the exhausted bound of a role as a sentence, or ""."""
    most, turns = bounds.turns_of.get(role, bounds.max_turns), progress.talks.get(role, ConversationState()).turns
    # The role's own bound first: it is the narrower one, so its setting is the one to raise.
    if turns >= most:
        return f"coder.roles.{role}.max_turns is {most}, and {turns} turns were used"
    if progress.turns >= bounds.max_turns:
        return f"coder.max_turns is {bounds.max_turns}, and {progress.turns} turns were used"
    if (spent := spent_tokens(progress.usage)) >= bounds.max_tokens:
        return f"coder.max_tokens is {bounds.max_tokens}, and {spent} tokens were used"
    return ""


def after_turn(talk: ConversationState, turn: Turn) -> ConversationState:
    """Record a reply before its calls are made."""
    # None of the calls of a faulty reply is made, so it is as idle as a reply without calls.
    idle = not turn.calls or bool(turn.problem)
    return talk.evolve(
        node=turn.node,
        turn=turn,
        results=(),
        # They are part of the node from now on; sent again, the model would read them twice.
        said=(),
        correction=turn.problem or ("" if turn.calls else PROPOSE),
        turns=talk.turns + 1,
        silent=talk.silent + 1 if idle else 0,
    )


def after_results(talk: ConversationState, results: Sequence[CallResult]) -> ConversationState:
    """Record the results of all calls of the last reply."""
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
    """Return the number of occurrences of the newest mark within the window."""
    return Counter(marks)[marks[-1]] if marks else 0


def may_reflect(progress: CoderProgress, bounds: Bounds) -> bool:
    """Return whether failing checks lead to another round."""
    # The first round is not a repair: `rounds` counts only those after failing checks.
    return progress.round <= bounds.rounds


def wants_tests(progress: CoderProgress, bounds: Bounds) -> bool:
    """Return whether passing checks lead to tests for the change first."""
    return bounds.testing and not progress.tested


def why_stuck(talk: ConversationState) -> str:
    """Return the reason that a conversation is stuck, as a sentence, or ""."""
    if talk.silent >= SILENT_STOP:
        problem = talk.turn.problem if talk.turn else ""
        return f"{talk.silent} replies in a row had no usable tool call" + (f": {problem}" if problem else "")
    if (times := count_repeats(talk.marks)) >= REPEATS_STOP:
        return f"the same call had the same result {times} times"
    return ""


def resume_progress(progress: CoderProgress) -> CoderProgress:
    """Return the progress after a person's answer; the calls that waited for it are made again."""
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
