"""What people do on the page: each action is one call of the client, under the person's name.

Nothing acts before a person has confirmed the sentence that says what will happen.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from starlette.concurrency import run_in_threadpool

from gateway.web.look import Look
from gateway.web.pages import Dispatching, dispatching, title_of
from tightloop.client import ExecutorChoice, TightloopClient
from tightloop.episode.decisions import ACCEPT, ALLOW, CANCEL, END, EXTEND, UNDO
from tightloop.errors import EpisodeNotFoundError, InvalidRequestError
from tightloop.ledger import WorkflowLine
from tightloop.loop.model import LoopRequest, LoopStatus
from tightloop.question import Option, Question, QuestionKind
from tightloop.safety.seal import Role, role_for

LOOK_SECONDS, RECORD_LOOKS = 0.2, 25
"""How often the ledger is asked for what was started."""


CONFIRMED_OPTIONS = frozenset({ALLOW, ACCEPT, EXTEND, CANCEL, UNDO, END})
"""Options of ours that approve, cancel or delete something."""
CONFIRMED_KINDS = frozenset({QuestionKind.GATE, QuestionKind.POLICY, QuestionKind.CLARIFICATION})
"""Questions that approve something, or whose options a plan names: nobody knows what a word of others does."""


class Actor(NamedTuple):
    """A person at work, and the form that the person sent."""

    look: Look
    client: TightloopClient
    target: str
    """Id of the workflow or project in the path; empty for a project that is added."""
    form: Mapping[str, str]

    @property
    def name(self) -> str:
        """Who acts, as the timeline will say."""
        return self.look.person.name

    def text(self, name: str) -> str:
        """Return a field of the form; empty where it was not sent."""
        return self.form.get(name, "").strip()

    def line(self) -> WorkflowLine:
        """Return the workflow of the path; one of another project does not exist for this person."""
        return self.look.ledger.workflow(self.target)

    def line_to_steer(self) -> WorkflowLine:
        """Return the workflow of the path for somebody who may steer it."""
        self.need(Role.OPERATOR)
        return self.line()

    def need(self, role: Role) -> None:
        """Refuse whoever may not do this.

        Raises:
            InvalidRequestError: the role is not enough.
        """
        if not self.look.may(role):
            raise InvalidRequestError(f"{self.name} is {self.look.person.role}; this needs the role {role}")


class Intent(NamedTuple):
    """What an action will do, for the person who confirms it."""

    sentence: str
    quoted: str = ""
    """The person's own text that goes with it."""
    estimate: Dispatching | None = None


class Done(NamedTuple):
    """What came of it."""

    path: str
    """The page that follows."""
    said: str
    """A sentence; it begins with `!` where it was refused."""


class Action(NamedTuple):
    """Something that a person can do."""

    describe: Callable[[Actor], Intent]
    """Says what `run` would do; changes nothing, and refuses who may not."""
    run: Callable[[Actor], Awaitable[Done]]


def is_confirmed(question: Question, option: Option) -> bool:
    """Whether an option is confirmed once more after it was selected and sent."""
    return bool(question.role) or question.kind in CONFIRMED_KINDS or option.name in CONFIRMED_OPTIONS


def describe_answer(actor: Actor) -> Intent:
    """Say what an option of a question does.

    Raises:
        InvalidRequestError: no option was selected, the question waits no more, or the person may not answer it.
    """
    line, option = actor.line(), actor.text("option")
    if not option:
        raise InvalidRequestError("no option was selected, and nothing was sent. Go back, select one and send it again")
    question = _question(actor, line)
    if question is None:
        raise InvalidRequestError(f"{actor.text('question') or 'this question'} of {line.id} does not wait any more")
    effect = next((one.effect for one in question.options if one.name == option), "")
    return Intent(f"“{question.title}” is answered with “{option}”{effect and f': {effect}'}.", actor.text("text"))


async def answer(actor: Actor) -> Done:
    """Answer a question with one of its options."""
    line = actor.line()
    _question(actor, line)
    asked, option, text = (actor.text(name) for name in ("question", "option", "text"))
    said = await actor.client.answer(line.id, option, text, question=asked, by=actor.name)
    return Done(_page(line), said)


def _question(actor: Actor, line: WorkflowLine) -> Question | None:
    """Return the question that a form is about, for somebody who may answer it; None: it is not known."""
    asked = actor.text("question")
    question = next((one for one in line.questions if one.id == asked), None)
    actor.need(role_for(question.kind, question.role) if question is not None else Role.APPROVER)
    return question


def _intent(sentence: str) -> Callable[[Actor], Intent]:
    """Describe an action on a workflow by a sentence with its `title` and the form's `checkpoint`."""

    def describe(actor: Actor) -> Intent:
        line = actor.line_to_steer()
        return Intent(sentence.format(title=title_of(line), checkpoint=actor.text("checkpoint")), actor.text("text"))

    return describe


async def pause(actor: Actor) -> Done:
    """Pause at the next safe point."""
    line = actor.line_to_steer()
    await actor.client.pause(line.id, by=actor.name)
    return Done(_page(line), "It pauses at the next safe point.")


async def cancel(actor: Actor) -> Done:
    """End it for good."""
    line = actor.line_to_steer()
    await actor.client.cancel(line.id, by=actor.name)
    return Done(_page(line), "It ends; what runs is stopped first.")


async def respond(actor: Actor) -> Done:
    """Tell the planner something."""
    line = actor.line_to_steer()
    return Done(_page(line), await actor.client.respond(line.id, actor.text("text"), by=actor.name))


async def restore(actor: Actor) -> Done:
    """Take state and files back to a checkpoint."""
    line = actor.line_to_steer()
    said = await actor.client.restore(line.id, actor.text("checkpoint"), by=actor.name)
    return Done(_page(line), said)


async def fork(actor: Actor) -> Done:
    """Start a new episode from a checkpoint."""
    line = actor.line_to_steer()
    made = await actor.client.fork(line.id, actor.text("checkpoint"), by=actor.name)
    return Done(_page(line), f"Forked as {made}; it appears here when it has begun.")


def describe_plan(actor: Actor) -> Intent:
    """Say that a project is inspected."""
    actor.need(Role.OPERATOR)
    return _describe_planning(actor.look.ledger.project(actor.target).workspace, actor)


async def plan(actor: Actor) -> Done:
    """Inspect a project and divide the work into tasks; nothing is started."""
    actor.need(Role.OPERATOR)
    project = actor.look.ledger.project(actor.target)
    made = await actor.client.plan_project(_loop_request(project.workspace, actor))
    await _wait_for_record(actor, made)
    return Done(f"/projects/{project.id}", "The project is being inspected and planned; nothing is started.")


def describe_add(actor: Actor) -> Intent:
    """Say which folder becomes a project."""
    _need_all_projects(actor)
    return _describe_planning(actor.text("workspace") or "no folder", actor)


async def add(actor: Actor) -> Done:
    """Inspect and plan a project that the ledger does not know yet."""
    _need_all_projects(actor)
    workspace = actor.text("workspace").rstrip("/")
    await actor.client.check_workspace(workspace)
    made = await actor.client.plan_project(_loop_request(workspace, actor))
    line = await _wait_for_record(actor, made)
    if line is None:
        return Done("/projects", f"{made} inspects {workspace}; the project appears here when a worker has begun.")
    return Done(f"/projects/{line.project}", "The project is being inspected and planned; nothing is started.")


def _need_all_projects(actor: Actor) -> None:
    actor.need(Role.OPERATOR)
    if actor.look.person.projects:
        raise InvalidRequestError("only a person who sees all projects adds one. Ask an operator who does")


def _describe_planning(workspace: str, actor: Actor) -> Intent:
    sentence = f"{workspace} is inspected, and its work divided into tasks. Nothing runs before you dispatch them."
    return Intent(sentence, actor.text("goal"))


def _loop_request(workspace: str, actor: Actor) -> LoopRequest:
    name, parallel = actor.text("executor"), actor.text("parallel")
    request = LoopRequest(workspace=workspace, goal=actor.text("goal"))
    if name:
        request = request.evolve(executor=ExecutorChoice(name=name))
    return request.evolve(parallel=int(parallel)) if parallel.isdigit() else request


async def _wait_for_record(actor: Actor, workflow_id: str) -> WorkflowLine | None:
    """Wait until the ledger knows what was started; None: it takes longer than people like to wait."""
    for _ in range(RECORD_LOOKS):
        try:
            return await run_in_threadpool(actor.look.ledger.workflow, workflow_id)
        except EpisodeNotFoundError:
            await asyncio.sleep(LOOK_SECONDS)
    return None


def describe_dispatch(actor: Actor) -> Intent:
    """Say what dispatching may take, from the plan alone."""
    line = actor.line_to_steer()
    estimate = dispatching(LoopStatus.model_validate(line.details))
    tasks = "1 task becomes an episode" if estimate.runs == 1 else f"{estimate.runs} tasks become episodes"
    sentence = f"{tasks}, each in a worktree of its own. A conflict between two of them becomes a task more."
    return Intent(sentence, estimate=estimate)


async def dispatch(actor: Actor) -> Done:
    """Send the tasks out."""
    line = actor.line_to_steer()
    return Done(_page(line), await actor.client.dispatch(line.id, by=actor.name))


async def verify(actor: Actor) -> Done:
    """Run the gates."""
    line = actor.line_to_steer()
    return Done(_page(line), await actor.client.verify(line.id, by=actor.name))


def _page(line: WorkflowLine) -> str:
    return f"/workflows/{line.id}"


ACTIONS: dict[str, Action] = {
    "/workflows/{id}/answer": Action(describe_answer, answer),
    "/workflows/{id}/pause": Action(_intent("“{title}” pauses at its next safe point."), pause),
    "/workflows/{id}/cancel": Action(
        _intent("“{title}” ends for good. What runs is stopped first; files stay as they are."), cancel
    ),
    "/workflows/{id}/respond": Action(
        _intent("The planner of “{title}” gets this message. It decides nothing; it leads to work."), respond
    ),
    "/workflows/{id}/restore": Action(
        _intent("State and files of “{title}” go back to {checkpoint}. What is there now stays restorable."),
        restore,
    ),
    "/workflows/{id}/fork": Action(_intent("A new episode starts from {checkpoint} of “{title}”."), fork),
    "/projects": Action(describe_add, add),
    "/projects/{id}/plan": Action(describe_plan, plan),
    "/loops/{id}/dispatch": Action(describe_dispatch, dispatch),
    "/loops/{id}/verify": Action(_intent("The gates of “{title}” run."), verify),
}
"""By path."""
