"""What is done about a delivery that broke off, where its traces do not tell how it ended."""

from typing import assert_never

from tightloop.executor.asking import executor_question
from tightloop.executor.model import ExecutorReport, ExecutorStatus, OnCrash
from tightloop.question import Option, Question, QuestionKind
from tightloop.value import Value

RETRY, VERIFY = OnCrash.RETRY.value, OnCrash.VERIFY.value
WORKER_DIED = "the worker died during the delivery"
MOST_CLAIMS = 5
"""How often a delivery is begun at most: one that kills its worker each time would do so for ever."""
_OPTIONS = (
    Option(
        name=VERIFY,
        effect="it is not delivered again; the checks look at what is on disk, and the next plan knows",
    ),
    Option(
        name=RETRY,
        effect="the same plan is delivered again, on what is on disk now",
        cons="what the first delivery did outside the working tree is done twice",
    ),
    Option(name="cancel", effect="end the episode; the files stay as they are"),
)


class Crash(Value):
    """What is known of a delivery that broke off."""

    cause: str = WORKER_DIED
    """Why it broke off, as far as that is known."""
    moved: bool
    """The working tree is not the one from which it began."""
    effects_outside: str = ""
    """What it may have changed outside the working tree, as the executor declares; empty: nothing."""
    processes_ended: int = 0
    """Processes of it that were still running, and were ended."""
    claims: int = 1
    """How often it was begun."""
    session: str = ""
    """The session of an agent that can be resumed."""
    can_tell: bool = False
    """The executor keeps records that could have told how it ended."""

    @property
    def sentences(self) -> tuple[str, ...]:
        """What is known, a sentence each."""
        ended = "1 process" if self.processes_ended == 1 else f"{self.processes_ended} processes"
        running = (
            f"{ended} of it still ran and had to be ended" if self.processes_ended else "no process of it was left"
        )
        told = "it left records without an end" if self.can_tell else "it left no report"
        return (
            "files changed since it began" if self.moved else "no file changed since it began",
            running,
            told + (f"; its session {self.session} can be resumed" if self.session else ""),
            f"outside the working tree: {self.effects_outside or 'it declares that it changes nothing there'}",
            f"it was begun {'once' if self.claims == 1 else f'{self.claims} times'}",
        )


def after_crash(policy: OnCrash, crash: Crash) -> OnCrash:
    """Return what is done about it.

    Only what left no trace in the tree and has no effects elsewhere is delivered again without a person.
    """
    match policy:
        case OnCrash.ASK | OnCrash.VERIFY:
            return policy
        case OnCrash.RETRY:
            harmless = not crash.moved and not crash.effects_outside
            return OnCrash.RETRY if harmless and crash.claims < MOST_CLAIMS else OnCrash.VERIFY
        case _:
            assert_never(policy)


def explain_crash(crash: Crash) -> str:
    """Return what happened, for the planner and for people; in the same words each time, so that repeats are seen."""
    moved, *_ = crash.sentences
    return f"{crash.cause}, and it was not delivered again; {moved}"


def report_on_crash(report: ExecutorReport, *, tree: str) -> ExecutorReport:
    """Return the report on a delivery that a person does not want to be made again."""
    return report.evolve(status=ExecutorStatus.OUTCOME_UNKNOWN, question=None, new_tree=tree)


def crash_question(crash: Crash, title: str) -> Question:
    """Return what a person is asked; a bare `resume` verifies, because only an answer may do something twice."""
    asked = f"{crash.cause}: {title}. Deliver it again?"
    return executor_question(QuestionKind.CRASH, asked, "\n".join(crash.sentences), _OPTIONS).evolve(default=VERIFY)


def hand_off_question(reason: str, title: str, identity: str) -> Question:
    """Return what a person is asked where nothing tells whether an agent has a plan; a bare `resume` verifies."""
    asked = f"{reason}. Look at the chat: hand the plan over again? {title}"
    return executor_question(QuestionKind.CRASH, asked, f"the hand-off: {identity}", _OPTIONS).evolve(default=VERIFY)
