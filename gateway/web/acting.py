"""What people do on the page: each action is one call of the client, under the person's name."""

import asyncio
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from gateway.access.body import body_of
from gateway.web.look import Look
from tightloop.client import ExecutorChoice, TightloopClient
from tightloop.errors import EpisodeNotFoundError, InvalidRequestError
from tightloop.ledger import WorkflowLine
from tightloop.loop.model import LoopRequest
from tightloop.safety.person import Role, role_for

FORM_BYTES = 100_000
LOOK_SECONDS, RECORD_LOOKS = 0.2, 25
"""How often the ledger is asked for what was started."""


class Actor(NamedTuple):
    """A person at work."""

    look: Look
    client: TightloopClient

    @property
    def name(self) -> str:
        """Who acts, as the timeline will say."""
        return self.look.person.name

    def line(self, request: Request) -> WorkflowLine:
        """Return the workflow of a request; one of another project does not exist for this person."""
        return self.look.ledger.workflow(request.path_params["id"])

    def need(self, role: Role) -> None:
        """Refuse whoever may not do this.

        Raises:
            InvalidRequestError: the role is not enough.
        """
        if not self.look.may(role):
            raise InvalidRequestError(f"{self.name} is {self.look.person.role}; this needs the role {role}")


class Done(NamedTuple):
    """What came of it."""

    path: str
    """The page that follows."""
    said: str
    """A sentence; it begins with `!` where it was refused."""


async def answer(actor: Actor, request: Request) -> Done:
    """Answer a question with one of its options."""
    line, form = actor.line(request), await _form(request)
    asked = _text(form, "question")
    question = next((one for one in line.questions if one.id == asked), None)
    actor.need(role_for(question) if question is not None else Role.APPROVER)
    said = await actor.client.answer(line.id, _text(form, "option"), _text(form, "text"), question=asked, by=actor.name)
    return Done(_page(line), said)


async def pause(actor: Actor, request: Request) -> Done:
    """Pause at the next safe point."""
    line = _steered(actor, request)
    await actor.client.pause(line.id, by=actor.name)
    return Done(_page(line), "It pauses at the next safe point.")


async def resume(actor: Actor, request: Request) -> Done:
    """Go on."""
    line = _steered(actor, request)
    await actor.client.resume(line.id, by=actor.name)
    return Done(_page(line), "It goes on.")


async def cancel(actor: Actor, request: Request) -> Done:
    """End it for good."""
    line = _steered(actor, request)
    await actor.client.cancel(line.id, by=actor.name)
    return Done(_page(line), "It ends; what runs is stopped first.")


async def respond(actor: Actor, request: Request) -> Done:
    """Tell the planner something."""
    line, form = _steered(actor, request), await _form(request)
    return Done(_page(line), await actor.client.respond(line.id, _text(form, "text"), by=actor.name))


async def restore(actor: Actor, request: Request) -> Done:
    """Take state and files back to a checkpoint."""
    line, form = _steered(actor, request), await _form(request)
    said = await actor.client.restore(line.id, _text(form, "checkpoint"), by=actor.name)
    return Done(_page(line), said)


async def fork(actor: Actor, request: Request) -> Done:
    """Start a new episode from a checkpoint."""
    line, form = _steered(actor, request), await _form(request)
    made = await actor.client.fork(line.id, _text(form, "checkpoint"), by=actor.name)
    return Done(_page(line), f"Forked as {made}; it appears here when it has begun.")


async def plan(actor: Actor, request: Request) -> Done:
    """Inspect a project and divide the work into tasks; nothing is started."""
    actor.need(Role.OPERATOR)
    project, form = actor.look.ledger.project(request.path_params["id"]), await _form(request)
    made = await actor.client.plan_project(_asked(project.workspace, form))
    await _recorded(actor, made)
    return Done(f"/projects/{project.id}", "The project is being inspected and planned; nothing is started.")


async def add(actor: Actor, request: Request) -> Done:
    """Inspect and plan a project that the ledger does not know yet."""
    actor.need(Role.OPERATOR)
    if actor.look.person.projects:
        raise InvalidRequestError("only a person who sees all projects adds one. Ask an operator who does")
    form = await _form(request)
    workspace = _text(form, "workspace").rstrip("/")
    await actor.client.check_workspace(workspace)
    made = await actor.client.plan_project(_asked(workspace, form))
    line = await _recorded(actor, made)
    if line is None:
        return Done("/projects", f"{made} inspects {workspace}; the project appears here when a worker has begun.")
    return Done(f"/projects/{line.project}", "The project is being inspected and planned; nothing is started.")


def _asked(workspace: str, form: Mapping[str, str]) -> LoopRequest:
    name, parallel = _text(form, "executor"), _text(form, "parallel")
    asked = LoopRequest(workspace=workspace, goal=_text(form, "goal"))
    if name:
        asked = asked.evolve(executor=ExecutorChoice(name=name))
    return asked.evolve(parallel=int(parallel)) if parallel.isdigit() else asked


async def _recorded(actor: Actor, workflow_id: str) -> WorkflowLine | None:
    """Wait until the ledger knows what was started; None: it takes longer than people like to wait."""
    for _ in range(RECORD_LOOKS):
        try:
            return await run_in_threadpool(actor.look.ledger.workflow, workflow_id)
        except EpisodeNotFoundError:
            await asyncio.sleep(LOOK_SECONDS)
    return None


async def dispatch(actor: Actor, request: Request) -> Done:
    """Send the tasks out."""
    line = _steered(actor, request)
    return Done(_page(line), await actor.client.dispatch(line.id, by=actor.name))


async def verify(actor: Actor, request: Request) -> Done:
    """Run the gates."""
    line = _steered(actor, request)
    return Done(_page(line), await actor.client.verify(line.id, by=actor.name))


def _steered(actor: Actor, request: Request) -> WorkflowLine:
    actor.need(Role.OPERATOR)
    return actor.line(request)


def _page(line: WorkflowLine) -> str:
    return f"/workflows/{line.id}"


async def _form(request: Request) -> Mapping[str, str]:
    """Return the fields of a form; one that is too large is refused."""
    return dict(parse_qsl((await body_of(request, FORM_BYTES)).decode("utf-8", "replace")))


def _text(form: Mapping[str, str], name: str) -> str:
    return form.get(name, "").strip()
