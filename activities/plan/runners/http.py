"""HTTP steps, which either send one request to a host allowed by the policy or fetch documents into the cache."""

import json
import os
from collections.abc import Mapping
from typing import Any

from activities.plan.attempts.runner import fail_step
from activities.plan.outputs import find_unfit
from activities.plan.port import RunnerResult, Work
from activities.plan.runners.fetch import FetchRunner
from activities.plan.runners.request import WebAnswer, WebError, WebRequest, send
from activities.sandbox.proxy import Resolve, system_addresses
from tightloop.plan.action import HttpAction
from tightloop.plan.commands import judge_secrets
from tightloop.plan.failing import FailureClass
from tightloop.value import format_count
from tightloop.value.scrub import Scrubber

ANSWER_BYTES = 5_000_000
TEXT_CHARACTERS = 1_000_000


class HttpRunner:
    """Sends a step's request and stores the response, or fetches the step's documents."""

    def __init__(
        self,
        secrets: Mapping[str, tuple[str, ...]],
        environ: Mapping[str, str] = os.environ,
        resolve: Resolve = system_addresses,
    ) -> None:
        """Create the runner.

        Args:
            secrets: the hosts to which each secret variable may be sent.
            environ: the environment that contains the secrets.
            resolve: the function that resolves host names.
        """
        self._secrets = secrets
        self._environ = environ
        self._resolve = resolve
        self._documents = FetchRunner()

    def preview(self, work: Work) -> str:
        """Return the request line, without the values of secrets."""
        action = work.action(HttpAction)
        if action.urls:
            return self._documents.preview(work)
        names = ", ".join(f"{name} from ${variable}" for name, variable in action.secret_headers.items())
        return f"{action.method.upper()} {work.resolve(action.url)}" + (f" with {names}" if names else "")

    def run(self, work: Work) -> RunnerResult:
        """Send the request. Not idempotent, because a retried activity sends it again."""
        action = work.action(HttpAction)
        if action.urls:
            return self._documents.run(work)
        command = self.preview(work)
        url = str(work.resolve(action.url))
        # Before any value is read: a plan must not send a key to a host that the settings do not name for it.
        if refusal := judge_secrets(url, action.secret_headers.values(), self._secrets):
            return fail_step(refusal, FailureClass.POLICY, command=command)
        missing = [variable for variable in action.secret_headers.values() if not self._environ.get(variable)]
        if missing:
            problem = (
                f"the worker's environment does not set {', '.join(missing)}. Set each of these variables where you "
                "start the worker"
            )
            return fail_step(f"{problem}, then retry", command=command)
        secrets = {name: self._environ[variable] for name, variable in action.secret_headers.items()}
        content, media_type = _content(work.resolve(action.body))
        # In lower case, so that an author's content type replaces ours instead of being sent as well.
        headers = {str(name).lower(): str(value) for name, value in work.resolve(action.headers).items()}
        request = WebRequest(
            url=url,
            method=action.method,
            headers={"content-type": media_type, **headers} if media_type else headers,
            secret_headers=secrets,
            content=content,
            network=work.plan.policy.network,
            accept=frozenset(action.expect_status),
            limit_bytes=ANSWER_BYTES,
            timeout_s=work.step.timeout_s,
            cancelled=work.cancelled,
            resolve=self._resolve,
        )
        # Servers echo what they were sent, especially in error messages.
        scrubber = Scrubber(secrets.values())
        try:
            answer = send(request)
        except WebError as error:
            failure = scrubber.model(error.failure)
            return RunnerResult(failure=failure, command=scrubber(command), api_calls=error.requests)
        return _done(work, answer, scrubber, scrubber(command))


def _content(body: Any) -> tuple[bytes | None, str]:
    if body is None:
        return None, ""
    if isinstance(body, str):
        return body.encode(), "text/plain; charset=utf-8"
    return json.dumps(body, ensure_ascii=False).encode(), "application/json"


def _done(work: Work, answer: WebAnswer, scrubber: Scrubber, command: str) -> RunnerResult:
    media_type = answer.headers.get("content-type", "").partition(";")[0].strip() or "application/octet-stream"
    text = scrubber(answer.body.decode("utf-8", "replace"))
    outputs: dict[str, Any] = {
        "status": answer.status,
        "url": scrubber(answer.url),
        "headers": {name: scrubber(value) for name, value in sorted(answer.headers.items())},
        "body": text[:TEXT_CHARACTERS],
        "size": len(answer.body),
    }
    # Includes types such as `application/problem+json` (RFC 6839, section 3.1).
    if media_type.endswith("json"):
        try:
            outputs["json"] = json.loads(text)
        except (ValueError, RecursionError):
            outputs["json"] = None
        # Python's parser accepts NaN and half surrogate pairs, which no record can hold.
        if find_unfit({"json": outputs["json"]}):
            outputs["json"] = None
    body = work.store.put(text.encode(), name="answer", media_type=media_type)
    return RunnerResult(
        outputs=outputs,
        artifacts={"answer": body},
        command=command,
        api_calls=answer.requests,
        summary=f"{answer.status}, {format_count(len(answer.body), 'byte')}",
    )
