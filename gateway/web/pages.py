"""The pages: what each one shows, read from the ledger. Nothing here changes anything."""

from datetime import UTC, datetime
from http import HTTPStatus
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request

from gateway.web import episode_page, plan_page
from gateway.web.look import Look, Screen
from tightloop.client import CLOSED_STATUSES, OPEN_STATUSES, Topology
from tightloop.ledger import InboxItem, WorkflowFilter, WorkflowLine
from tightloop.loop.model import LoopState, LoopStatus
from tightloop.safety.person import Role, role_for

PAGE_LINES = 50
RUNNING_LINES = 20
ENDED_LINES = 10


def inbox(look: Look, request: Request) -> Screen:
    """Show what waits for a person, what runs, and what ended."""
    project = request.query_params.get("project", "")
    waiting = [item for item in look.inbox if project in ("", item.project)]
    top = WorkflowFilter(project=project, parent="")
    running = look.ledger.workflows(top.evolve(status="running"), limit=RUNNING_LINES).lines
    newest = look.ledger.workflows(top, limit=PAGE_LINES).lines
    ended = sorted((one for one in newest if one.closed), key=_closed, reverse=True)[:ENDED_LINES]
    content = {
        "items": waiting,
        "running": running,
        "ended": ended,
        "any": bool(newest or waiting),
        "may_answer_item": lambda item: may_answer(look, item),
    }
    return Screen("inbox.html", content, section="/", live="*")


def may_answer(look: Look, item: InboxItem | WorkflowLine, number: int = 0) -> bool:
    """Whether the person may answer a question."""
    question = item.question if isinstance(item, InboxItem) else item.questions[number]
    return look.may(role_for(question))


def episodes(look: Look, request: Request) -> Screen:
    """List episodes."""
    command = 'tightloop start "Get the tests green" --workspace ~/project --done "pytest -q"'
    return _listed(look, request, "episode", "Episodes", command)


def plans(look: Look, request: Request) -> Screen:
    """List plans."""
    return _listed(look, request, "plan", "Plans", "tightloop plan run plan.yaml --workspace ~/project")


def projects(look: Look, _request: Request) -> Screen:
    """List projects."""
    return Screen("projects.html", {"projects": look.ledger.projects()}, section="/projects", live="*")


def project(look: Look, request: Request) -> Screen:
    """Show a project: its plan, and the one action that applies."""
    ledger, key = look.ledger, request.path_params["id"]
    shown = ledger.project(key)
    newest = ledger.workflows(WorkflowFilter(project=key, kind="loop"), limit=1).lines
    current = ledger.workflow(newest[0].id) if newest else None
    status = LoopStatus.model_validate(current.details) if current is not None else LoopStatus()
    is_open = current is not None and status.status not in (LoopState.VERIFIED, LoopState.FAILED, LoopState.CANCELLED)
    may_act = look.may(Role.OPERATOR)
    content = {
        "project": shown,
        "current": current,
        "status": status,
        "ended": sum(task.state.has_ended for task in status.tasks),
        "may_plan": may_act and not is_open,
        "reason": _why_not(may_act, is_open),
        "digest": ledger.digest(key, datetime.now(UTC).date()),
        "lines": ledger.workflows(WorkflowFilter(project=key, parent=""), limit=RUNNING_LINES).lines,
    }
    return Screen("project.html", content, section="/projects", live=key)


def workflow(look: Look, request: Request) -> Screen:
    """Show an episode, a plan, or a project's plan."""
    line = look.ledger.workflow(request.path_params["id"])
    show = {"episode": episode_page.show, "plan": plan_page.show_plan, "loop": plan_page.show_loop}[line.kind]
    template, content = show(look.ledger, line, request.query_params)
    may = [may_answer(look, line, number) for number in range(len(line.questions))]
    is_open = line.closed is None and line.status not in CLOSED_STATUSES
    content |= {"line": line, "may_answer": may, "is_open": is_open}
    section = "/episodes" if line.kind == "episode" else "/plans" if line.kind == "plan" else "/projects"
    children = " ".join(one.id for one in content.get("children", ()))
    return Screen(template, content, section=section, live=f"{line.id} {children}".strip())


def workers(look: Look, seen: Topology) -> Screen:
    """Show each task queue with its workers, and what an episode would wait for."""
    if look.person.projects:
        raise HTTPException(HTTPStatus.FORBIDDEN, "Only a token for all projects sees the workers.")
    return Screen("workers.html", {"seen": seen}, section="/workers", live="*")


def _listed(look: Look, request: Request, kind: str, heading: str, command: str) -> Screen:
    asked = {name: request.query_params.get(name, "") for name in ("text", "status", "project")}
    wanted = WorkflowFilter(kind=kind, **asked)
    page = look.ledger.workflows(wanted, cursor=request.query_params.get("cursor", ""), limit=PAGE_LINES)
    kept = urlencode({name: value for name, value in asked.items() if value})
    content = {
        "heading": heading,
        "wanted": wanted,
        "statuses": (*OPEN_STATUSES, *CLOSED_STATUSES),
        "projects": look.around.names,
        "lines": page.lines,
        "cursor": page.cursor,
        "query": f"{kept}&" if kept else "",
        "filtered": any(asked.values()),
        "command": command,
    }
    return Screen("list.html", content, section=f"/{kind}s", live="*")


def _why_not(may_act: bool, is_open: bool) -> str:
    if not may_act:
        return "Your token may look, and not act."
    return "A new plan can be made when this one has ended." if is_open else ""


def _closed(line: WorkflowLine) -> datetime:
    return line.closed or line.at
