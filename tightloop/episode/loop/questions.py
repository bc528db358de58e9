"""What an episode asks a person, and the ways to answer."""

from datetime import datetime

from tightloop.episode.work import Work
from tightloop.question import Answer, Option, Question, QuestionKind, read_paths
from tightloop.safety.drift import Drift, DriftAnswer
from tightloop.safety.rubric import Finding, told
from tightloop.value import counted

ALLOW, REFUSE, EXTEND, CANCEL = "allow", "refuse", "extend", "cancel"
WORK, ACCEPT = "work", "accept"
WAIT, END = "wait", "end"
KEEP, UNDO = "keep", "undo"
THE_EPISODE = "the episode"

_FIRST = {
    QuestionKind.OPERATOR: ("resume", "go on; edits made meanwhile are kept"),
    QuestionKind.BUDGET: (EXTEND, "raise each bound that is reached by its first amount once more"),
    QuestionKind.REPEATED_ERROR: ("continue", "try again, with the count of errors at zero"),
    QuestionKind.LIMIT: ("retry", "deliver the plan again, once the limit has passed"),
    QuestionKind.FATAL: ("retry", "do it again, once the cause is fixed"),
    QuestionKind.DEVIATION: ("continue", "keep the work and go on; restore a checkpoint to undo it instead"),
    QuestionKind.PLANNER_GAVE_UP: ("retry", "ask the planner again; it reads your notes and edits"),
    QuestionKind.PROOF: (WORK, "go back to work; the planner reads what was found, and your text"),
    QuestionKind.ALIGNMENT: (ALLOW, "exactly these findings are allowed for the rest of the episode"),
}
_REFUSE = Option(name=REFUSE, effect="the planner is told to do without, or to undo it, and plans again")
_CANCEL = Option(name=CANCEL, effect="end the episode; the files stay as they are")
ACCEPT_EFFECT = "succeed with the files as delivered; the proof says who accepted them"
_ACCEPT = Option(name=ACCEPT, effect=ACCEPT_EFFECT)
_OTHERS = {
    QuestionKind.OPERATOR: (),
    QuestionKind.ALIGNMENT: (_REFUSE, _CANCEL),
    QuestionKind.PROOF: (_ACCEPT, _CANCEL),
}
"""Options after the first; of all other kinds it is only `cancel`."""
# A bare `resume`, or a message to the planner, must neither spend money nor allow what the rules found.
_WITHOUT_DEFAULT = frozenset({QuestionKind.BUDGET, QuestionKind.ALIGNMENT})


def make_question(kind: QuestionKind, title: str, *, evidence: tuple[str, ...] = (), by: str = "tightloop") -> Question:
    """Return what a person is asked; the first option is the default where a default grants nothing."""
    name, effect = _FIRST[kind]
    return Question(
        id="",
        kind=kind,
        title=title,
        evidence=evidence,
        options=(Option(name=name, effect=effect), *_OTHERS.get(kind, (_CANCEL,))),
        default="" if kind in _WITHOUT_DEFAULT else name,
        blocks=THE_EPISODE,
        by=by,
    )


def alignment_question(findings: tuple[Finding, ...]) -> Question:
    """Return what is asked about findings, with what would resolve each."""
    title, evidence = told(findings)
    return make_question(QuestionKind.ALIGNMENT, title, evidence=evidence)


def end_question(work: Work, now: datetime) -> Question:
    """Return what is asked where a pause is wanted and something long runs; it goes on meanwhile."""
    return Question(
        id="",
        kind=QuestionKind.OPERATOR,
        title=f"the pause begins when this has ended: {work.told(now)}",
        options=(
            Option(name=WAIT, effect="pause when it has ended by itself"),
            Option(name=END, effect="end it now and pause; it runs again, from its beginning, after the pause"),
        ),
        default=WAIT,
    )


def drift_question(drift: Drift, *, blocks: str = THE_EPISODE, cancel: Option = _CANCEL) -> Question:
    """Return what is asked about files that somebody else changed; a bare `resume` keeps them."""
    more = drift.count - len(drift.lines)
    return Question(
        id="",
        kind=QuestionKind.DRIFT,
        title=f"somebody else changed {drift.named}. Keep or undo that?",
        evidence=(*drift.lines, *((f"and {counted(more, 'more file')}",) if more > 0 else ())),
        options=(
            Option(name=KEEP, effect="the work goes on with them; name files to keep only those", takes_paths=True),
            Option(name=UNDO, effect="they are saved and undone; name files to undo only those", takes_paths=True),
            cancel,
        ),
        default=KEEP,
        blocks=blocks,
        fingerprint=drift.tree,
        paths=drift.paths,
    )


def read_drift_answer(question: Question, answer: Answer) -> DriftAnswer:
    """Return what was decided about the files of a question."""
    words = read_paths(question, answer.text)
    return DriftAnswer(tree=question.fingerprint, keep=answer.option != UNDO, words=words)


_PLANNER_NEXT = frozenset(
    {
        QuestionKind.OPERATOR,
        QuestionKind.REPEATED_ERROR,
        QuestionKind.DEVIATION,
        QuestionKind.PLANNER_GAVE_UP,
        QuestionKind.PROOF,
    }
)
"""After these a planner is asked next. All others need a decision: a delivery again, files, money, a permission."""


def is_ended_by_message(asked: Question) -> bool:
    """Return whether a message to the planner ends the wait. It chooses no option: the planner reads it and plans."""
    return asked.kind in _PLANNER_NEXT
