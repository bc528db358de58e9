"""Documents of the capability `http`, into the project's cache with time, hash and where each came from."""

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from activities.plan.attempts.contract import fail_step, make_failure
from activities.plan.port import RunnerResult, Work
from activities.plan.runners.web.cache import CachedDocument, WebCache
from activities.plan.runners.web.document import Readable, readable
from activities.plan.runners.web.ranking import Source, source_score
from activities.plan.runners.web.request import WebAnswer, WebError, WebRequest, send
from activities.workspace.folders import state_folder_of
from tightloop.plan.document.action import HttpAction
from tightloop.plan.document.failing import FailureClass
from tightloop.plan.result import StepFailure
from tightloop.plan.rules.network import judge_url
from tightloop.value import counted, shorten
from tightloop.value.artifact import ArtifactRef

URLS_LIMIT = 200
EXCERPT_CHARACTERS = 400
TEXT_CHARACTERS = 20_000
"""Of each document in the output `texts`."""
DOCUMENT_S = 60.0
"""For one document."""

STOPPED = make_failure("fetching was stopped", FailureClass.TRANSIENT)


@dataclass
class _Fetched:
    """The results of the URLs so far."""

    documents: list[dict[str, Any]] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    duplicates: list[dict[str, str]] = field(default_factory=list)
    failed: list[tuple[str, StepFailure]] = field(default_factory=list)
    artifacts: dict[str, ArtifactRef] = field(default_factory=dict)
    requests: int = 0
    deadline: float = 0.0
    """Monotonic: the time of the attempt is over."""

    def same_as(self, digest: str) -> str:
        return next((document["url"] for document in self.documents if document["sha256"] == digest), "")


class FetchRunner:
    """Fetches the documents of a step one after the other; what an earlier attempt cached is not fetched again."""

    def preview(self, work: Work) -> str:
        """Return which URLs would be asked, and which are cached."""
        cache, urls, _ = self._opened(work)
        fresh = {url for url in urls if _fresh(cache.find(url), work)}
        return "\n".join(f"{'cached' if url in fresh else 'fetch '} {url}" for url in urls)

    def run(self, work: Work) -> RunnerResult:
        """Fetch them; see the port. Partial failures are listed in the output `failed`."""
        cache, urls, problem = self._opened(work)
        command = f"fetch {counted(len(urls), 'document')}: " + shorten(" ".join(urls), 1_000)
        if problem:
            return fail_step(problem, command=command)
        fetched = _Fetched(deadline=time.monotonic() + work.step.timeout_s)
        for url in urls:
            if work.cancelled():
                fetched.failed.append((url, STOPPED))
                break
            self._fetch(work, cache, url, fetched)
        fetched.documents.sort(key=lambda document: (-document["score"], document["url"]))
        return _done(work, fetched, command)

    def _opened(self, work: Work) -> tuple[WebCache, list[str], str]:
        given = work.resolve(work.action(HttpAction).urls)
        listed = [given] if isinstance(given, str) else given
        cache = WebCache(state_folder_of(work.scope))
        if not isinstance(listed, list | tuple):
            return cache, [], f"urls is {type(listed).__name__}, not a list of addresses"
        # An item is an address, or a mapping with `url` such as a source that an earlier step listed.
        named = (item.get("url", item) if isinstance(item, dict) else item for item in listed)
        urls = list(dict.fromkeys(str(item).strip() for item in named))
        if len(urls) > URLS_LIMIT:
            problem = f"{len(urls)} addresses are more than {URLS_LIMIT}: fetch them in several steps"
            return cache, urls[:URLS_LIMIT], problem
        return cache, urls, ""

    def _fetch(self, work: Work, cache: WebCache, url: str, fetched: _Fetched) -> None:
        known = cache.find(url)
        from_cache = _fresh(known, work)
        refusal = judge_url(url, work.plan.policy.network).refusal
        try:
            if refusal:
                raise WebError(FailureClass.POLICY, refusal)
            if not from_cache:
                answer = send(_request(url, known, work, fetched.deadline - time.monotonic()))
                fetched.requests += answer.requests
                from_cache = answer.status == 304
                known = _kept(cache, url, answer, known)
        except WebError as error:
            fetched.requests += error.requests
            fetched.failed.append((url, error.failure))
            return
        assert known is not None
        content = cache.content(known)
        if content is None:
            told = f"the cached copy of {url} was removed while it was read: try again"
            fetched.failed.append((url, make_failure(told, FailureClass.TRANSIENT)))
            return
        if same := fetched.same_as(known.sha256):
            fetched.duplicates.append({"url": known.url, "same_as": same, "sha256": known.sha256})
            return
        read = readable(content, known.media_type)
        ref = work.store.put(content, name=shorten(known.url, 200), media_type=known.media_type or "text/plain")
        query = str(work.inputs.get("query") or work.step.title or work.step.description)
        fetched.artifacts[f"document-{len(fetched.documents) + 1}"] = ref
        fetched.texts[known.url] = read.text
        fetched.documents.append(
            {
                **known.model_dump(
                    mode="json", include={"url", "final_url", "fetched_at", "sha256", "media_type", "size"}
                ),
                "title": read.title,
                "from_cache": from_cache,
                "score": source_score(Source(known.final_url, read.title, read.text), query),
                "excerpt": shorten(" ".join(read.text.split()), EXCERPT_CHARACTERS),
            }
        )


def _fresh(known: CachedDocument | None, work: Work) -> bool:
    limit = work.action(HttpAction).max_age_s
    # What is dated in the future would never become old.
    return known is not None and 0 <= (datetime.now(UTC) - known.fetched_at).total_seconds() < limit


def _request(url: str, known: CachedDocument | None, work: Work, left_s: float) -> WebRequest:
    if left_s <= 0:
        told = f"{url} was not fetched within the step's {work.step.timeout_s:g} s; another attempt goes on there"
        raise WebError(FailureClass.TRANSIENT, told)
    headers = {"accept": "text/html, text/plain, application/json, */*;q=0.5"}
    if known is not None and known.etag:
        headers["if-none-match"] = known.etag
    if known is not None and known.last_modified:
        headers["if-modified-since"] = known.last_modified
    return WebRequest(
        url=url,
        headers=headers,
        network=work.plan.policy.network,
        # 304 answers only a request with a condition (RFC 9110, section 15.4.5).
        accept=frozenset({200, 203} | ({304} if len(headers) > 1 else set())),
        timeout_s=min(DOCUMENT_S, left_s),
        cancelled=work.cancelled,
    )


def _kept(cache: WebCache, url: str, answer: WebAnswer, known: CachedDocument | None) -> CachedDocument:
    now = datetime.now(UTC)
    if answer.status == 304 and known is not None:
        kept = known.evolve(fetched_at=now)
        cache.put(kept)
        return kept
    media_type = answer.headers.get("content-type", "")
    read: Readable = readable(answer.body, media_type)
    document = CachedDocument(
        url=url,
        final_url=answer.url,
        fetched_at=now,
        sha256=sha256(answer.body).hexdigest(),
        media_type=media_type,
        size=len(answer.body),
        title=read.title,
        etag=answer.headers.get("etag", ""),
        last_modified=answer.headers.get("last-modified", ""),
    )
    cache.put(document, answer.body)
    return document


def _done(work: Work, fetched: _Fetched, command: str) -> RunnerResult:
    count, wanted = len(fetched.documents), work.action(HttpAction).at_least
    summary = (
        f"{counted(count, 'document')}, {counted(len(fetched.duplicates), 'duplicate')}, {len(fetched.failed)} failed"
    )
    failure: StepFailure | None = None
    if count < wanted or any(failed is STOPPED for _, failed in fetched.failed):
        failed = [failed for _, failed in fetched.failed]
        told = f"{count} of at least {wanted} documents"
        order = (FailureClass.TRANSIENT, FailureClass.POLICY, FailureClass.LOGIC)
        worst = min(failed, key=lambda one: order.index(one.failure_class), default=None)
        waits = [one.retry_after_s for one in failed if one.retry_after_s is not None]
        reasons = "; ".join(one.reason for one in failed[:3]) or "there were no more addresses"
        failure = StepFailure(
            failure_class=worst.failure_class if worst else FailureClass.LOGIC,
            reason=shorten(f"{told} were fetched: {reasons}", 500),
            retry_after_s=max(waits, default=None),
        )
    return RunnerResult(
        outputs={
            "documents": fetched.documents,
            "texts": [
                {"url": one["url"], "title": one["title"], "text": shorten(fetched.texts[one["url"]], TEXT_CHARACTERS)}
                for one in fetched.documents
            ],
            "duplicates": fetched.duplicates,
            "failed": [
                {"url": url, "reason": failed.reason, "class": failed.failure_class.value}
                for url, failed in fetched.failed
            ],
        },
        artifacts=fetched.artifacts,
        command=command,
        failure=failure,
        api_calls=fetched.requests,
        summary=summary,
    )
