"""What an executor asks a person, and what follows from the answer."""

from tightloop.executor.limit import LimitKind, LimitSource
from tightloop.executor.model import SUMMARY_CHARACTERS, ExecutorReport, ExecutorStatus, LimitHit, ResumeToken
from tightloop.question import Answer, Option, Question, QuestionKind, evidence_of
from tightloop.value import shorten

ALLOW, DENY = "allow", "deny"
ANSWER, SKIP = "answer", "skip"
DONE, FAILED, REFUSED, LIMIT = "done", "failed", "refused", "limit"
IN_A_WINDOW = frozenset({"cursor-gui"})
"""Executors that only watch: their agent works on whatever becomes of them, and can tell itself how its work ended."""
_PERMISSION = (
    Option(name=ALLOW, effect="the agent may do it, also again in this iteration"),
    Option(name=DENY, effect="the agent may not, and is told so"),
)
_CLARIFICATION = (
    Option(name=ANSWER, effect="the agent is told the text of the answer"),
    Option(name=SKIP, effect="the agent decides by itself"),
)
_WORK = (
    Option(name=DONE, effect="the checks look at what is on disk now"),
    Option(name=FAILED, effect="the iteration counts as failed; the text tells the planner why"),
    Option(name=REFUSED, effect="nobody is going to do it; the text tells the planner why"),
)
_CONTINUE = Option(name=LIMIT, effect="a limit has stopped the agent: it is told to continue, after the back-off")
_STATUS_OF = {FAILED: ExecutorStatus.FAILED, REFUSED: ExecutorStatus.REFUSED}


def permission_question(title: str, detail: str, fingerprint: str) -> Question:
    """Return the question of an agent that wants to do something; the same fingerprint is not asked for again."""
    return executor_question(QuestionKind.PERMISSION, title, detail, _PERMISSION).evolve(fingerprint=fingerprint)


def clarifying_question(title: str, detail: str, fingerprint: str) -> Question:
    """Return the question of an agent that wants to know something; the same fingerprint is not asked for again."""
    return executor_question(QuestionKind.CLARIFICATION, title, detail, _CLARIFICATION).evolve(fingerprint=fingerprint)


def work_question(title: str, detail: str = "") -> Question:
    """Return the question that lets a person do the work; a bare `resume` must not claim that it is done."""
    return executor_question(QuestionKind.WORK, title, detail, _WORK)


def report_question() -> Question:
    """Return the question that the report of an agent in a window answers, while the executor watches it."""
    question = work_question("the agent in the window is at work; it reports itself, or answer when it has ended")
    # Nobody has to answer: hooks, transcript and screen are watched meanwhile.
    return question.evolve(options=(*_WORK, _CONTINUE), blocks="")


def executor_question(kind: QuestionKind, title: str, detail: str, options: tuple[Option, ...]) -> Question:
    """Return a question about a delivery, with the lines of `detail` as evidence."""
    evidence = evidence_of(detail)
    return Question(
        id="", kind=kind, title=title, evidence=evidence, options=options, blocks="the episode", by="the executor"
    )


def report_on_work(report: ExecutorReport, answer: Answer, *, tree: str) -> ExecutorReport:
    """Return the report on work that a person did: what they said, and the tree that they left."""
    done = ExecutorStatus.COMPLETED if tree != report.new_tree else ExecutorStatus.NO_CHANGE
    reported = report.evolve(status=_STATUS_OF.get(answer.option, done), question=None, new_tree=tree)
    said = shorten(f"{answer.by}: {answer.text or answer.option}", SUMMARY_CHARACTERS)
    return reported.evolve(summary=said if reported.succeeded else "", error="" if reported.succeeded else said)


def report_by_message(report: ExecutorReport, answer: Answer, *, executor: str, tree: str) -> ExecutorReport:
    """Return the report on a delivery whose agent was done before its executor knew; `tree` is what it left."""
    if answer.option != LIMIT:
        return report_on_work(report, answer, tree=tree)
    said = shorten(f"{answer.by}: {answer.text or answer.option}", SUMMARY_CHARACTERS)
    limit = LimitHit(kind=LimitKind.TOOL_CALL_LIMIT, evidence=said, source=LimitSource.REPORT, confidence=0.5)
    token = ResumeToken(adapter=executor, session_id="window")
    return report.evolve(status=ExecutorStatus.LIMIT_HIT, limit=limit, resume=token, new_tree=tree)
