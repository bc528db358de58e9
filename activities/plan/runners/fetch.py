"""Steps that fetch web pages, their document cache, and source ranking."""

import hashlib
import html
import math
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from pydantic import ValidationError

from activities.plan.attempts.runner import fail_step, make_failure
from activities.plan.port import RunnerResult, Work
from activities.plan.runners.request import WebAnswer, WebError, WebRequest, send
from activities.workspace.folders import state_folder_of
from activities.workspace.ownership import write_atomically
from tightloop.plan.action import HttpAction
from tightloop.plan.child import StepFailure
from tightloop.plan.commands import judge_url
from tightloop.plan.failing import FailureClass
from tightloop.value import ArtifactRef, Value, format_count, shorten

DOCUMENTS_LIMIT = 5_000
"""Maximum number of documents that a search reads. The newest ones are used."""


class CachedDocument(Value):
    """A cached document's metadata."""

    url: str
    """The requested URL."""
    final_url: str
    fetched_at: datetime
    """Last time that the server confirmed this content."""
    sha256: str
    media_type: str = ""
    """Media type, including `charset` if the server sent it."""
    size: int = 0
    title: str = ""
    etag: str = ""
    last_modified: str = ""


class WebCache:
    """Document cache in the `cache` folder of a project's state folder.

    Thread-safe. Damaged entries count as missing.
    """

    def __init__(self, state_folder: Path) -> None:
        self._folder = state_folder / "cache"

    def find(self, url: str) -> CachedDocument | None:
        """Return the metadata of the document at a URL if its content is present and intact."""
        document = _read(self._entry(url))
        return document if document is not None and self.content(document) is not None else None

    def content(self, document: CachedDocument) -> bytes | None:
        """Return a document's content, or None if it is missing or damaged."""
        try:
            content = self._content(document.sha256).read_bytes()
        except OSError:
            return None
        return content if hashlib.sha256(content).hexdigest() == document.sha256 else None

    def put(self, document: CachedDocument, content: bytes | None = None) -> None:
        """Store a document. Without `content`, only its metadata is stored."""
        # The content first, so that an entry never refers to a missing file.
        if content is not None:
            write_atomically(self._content(document.sha256), content)
        write_atomically(self._entry(document.url), document.model_dump_json(indent=1).encode())

    def all(self) -> Iterator[CachedDocument]:
        """Return the newest `DOCUMENTS_LIMIT` documents without duplicate contents, sorted by URL."""
        documents = [document for path in self._folder.glob("urls/*.json") if (document := _read(path)) is not None]
        # The newest, with the URL as a tie-breaker, so that a search is repeatable.
        newest = sorted(documents, key=lambda document: (document.fetched_at, document.url))[-DOCUMENTS_LIMIT:]
        yield from sorted({document.sha256: document for document in newest}.values(), key=lambda one: one.url)

    def _entry(self, url: str) -> Path:
        return self._folder / "urls" / f"{hashlib.sha256(url.encode()).hexdigest()}.json"

    def _content(self, sha256: str) -> Path:
        return self._folder / "content" / sha256[:2] / sha256[2:]


def _read(path: Path) -> CachedDocument | None:
    try:
        return CachedDocument.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


DOCUMENT_CHARACTERS = 500_000
TITLE_CHARACTERS = 200
_SILENT = frozenset({"script", "style", "noscript", "template", "svg"})
_TAG = re.compile(r"<(!--|/?[a-z][a-z0-9]{0,20}(?=[\s/>]|$)|/?[a-z!?])")
_BLOCK_TAGS = (
    "address article aside blockquote br dd div dl dt figure footer form h1 h2 h3 h4 h5 h6 header hr li main nav ol p "
    "pre section table td th title tr ul"
)
_BLOCKS = frozenset(_BLOCK_TAGS.split())
_CHARSET = re.compile(r"charset=[\"']?([\w.:-]{1,40})", re.IGNORECASE)
_TEXTUAL = re.compile(r"text/|.*[/+](?:json|xml|yaml|javascript|toml|x-sh|x-python)$|application/(?:x-)?(?:ndjson|tex)")


class Readable(NamedTuple):
    """A document's human-readable content."""

    title: str = ""
    text: str = ""
    """The document's text. Empty for non-text documents."""


def readable(content: bytes, media_type: str) -> Readable:
    """Extract the title and text of a document. Never raises.

    `media_type` may include a `charset`.
    """
    bare = media_type.partition(";")[0].strip().lower()
    markup = "html" in bare or (not bare and content.lstrip()[:1] == b"<")
    if not markup and not _TEXTUAL.match(bare or "text/plain"):
        return Readable()
    text = _decode(content, media_type)
    if not markup:
        return Readable(_first_line(text), text[:DOCUMENT_CHARACTERS])
    title, body = _words(text)
    lines = [" ".join(line.split()) for line in body.split("\n")]
    body_text = "\n".join(line for line in lines if line)
    return Readable(
        " ".join(title.split())[:TITLE_CHARACTERS] or _first_line(body_text), body_text[:DOCUMENT_CHARACTERS]
    )


def _decode(content: bytes, media_type: str) -> str:
    # Browsers look for the encoding in the first kilobyte too, as the HTML Standard demands.
    named = _CHARSET.search(media_type) or _CHARSET.search(content[:1_024].decode("latin-1"))
    try:
        return content.decode(named[1] if named else "utf-8", "replace")
    except LookupError:
        return content.decode("utf-8", "replace")


def _first_line(text: str) -> str:
    for line in text.split("\n", 50):
        if line.strip(" \t\r#=-*"):
            return line.strip(" \t\r#=-*")[:TITLE_CHARACTERS]
    return ""


def _words(text: str) -> tuple[str, str]:
    """Extract the title and text of an HTML page.

    This uses a custom scanner, because the standard library's parser takes quadratic time on malformed pages.
    """
    folded = text.replace("\u0130", "I").lower()  # the only letter whose lower case has two characters
    parts: list[str] = []
    title, at = "", 0
    while (start := text.find("<", at)) >= 0:
        parts.append(text[at:start])
        tag = _TAG.match(folded, start)
        if tag is None:
            parts.append("<")
            at = start + 1
            continue
        name = tag[1]
        at = _after(text, ">" if name != "!--" else "-->", tag.end())
        if name in _SILENT or name == "title":
            end = folded.find(f"</{name}", at)
            content = text[at : end if end >= 0 else len(text)]
            title = title or (content if name == "title" else "")
            at = _after(text, ">", end) if end >= 0 else len(text)
        elif name.lstrip("/") in _BLOCKS:
            parts.append("\n")
    parts.append(text[at:])
    # Line breaks of the source are plain whitespace; those of block elements were added separately.
    joined = "".join(part if part == "\n" else re.sub(r"\s+", " ", part) for part in parts)
    return html.unescape(title), html.unescape(joined)


def _after(text: str, sign: str, at: int) -> int:
    index = text.find(sign, at)
    return index + len(sign) if index >= 0 else len(text)


K1 = 1.5
B = 0.75
"""Parameters of BM25 (Robertson and Zaragoza, The Probabilistic Relevance Framework, 2009, section 3.4)."""
WORD_CHARACTERS = 60
_WORD = re.compile(r"[^\W_]+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=[^\d])(?=\d)")

PRIMARY = (
    "rfc-editor.org",
    "ietf.org",
    "w3.org",
    "whatwg.org",
    "iso.org",
    "nist.gov",
    "unicode.org",
    "ecma-international.org",
)
"""Hosts that publish standards, which are primary sources."""
OFFICIAL = ("docs.", "developer.", "developers.", "spec.", "standards.", "man.", "wiki.")
"""Hostname prefixes of documentation sites."""


def words(text: str) -> list[str]:
    """Split prose or code into lower-case words.

    A name such as `maxRetries` yields three words: the whole name and its two parts.
    """
    terms: list[str] = []
    for token in _WORD.findall(text):
        if len(token) > WORD_CHARACTERS:
            continue
        parts = _CAMEL.split(token)
        terms.append(token.lower())
        if len(parts) > 1:
            terms += [part.lower() for part in parts]
    return terms


class Scorer:
    """BM25 scorer for a query over a set of texts."""

    def __init__(self, query: str, texts: Sequence[Counter[str]]) -> None:
        self._terms = sorted(set(words(query)))
        lengths = [sum(text.values()) for text in texts]
        self._average = sum(lengths) / len(lengths) if lengths else 1.0
        containing = {term: sum(term in text for text in texts) for term in self._terms}
        self._weights = {
            # With 1 added, as in Lucene: a word that most texts contain must not lower a score.
            term: math.log(1 + (len(texts) - count + 0.5) / (count + 0.5))
            for term, count in containing.items()
            if count
        }

    def score(self, text: Counter[str]) -> float:
        """Return the relevance of a text to the query. The score is 0 if no words match."""
        long = K1 * (1 - B + B * sum(text.values()) / (self._average or 1.0))
        return sum(
            weight * text[term] * (K1 + 1) / (text[term] + long)
            for term, weight in self._weights.items()
            if term in text
        )


class Source(NamedTuple):
    """Document fields used for ranking."""

    url: str
    title: str
    text: str


def source_score(source: Source, query: str) -> float:
    """Rate a source by its origin and by its coverage of the query. The score is between 0 and about 2.5.

    The score is the sum of the query's coverage by the text (up to 1) and by the title (up to 0.5), plus
    0.6 for a standards host, 0.4 for a documentation host and 0.1 for https. The score of a document
    without text depends only on its origin.
    """
    terms = set(words(query))
    text_words, titled = set(words(source.text)), set(words(source.title))
    covered = len(terms & text_words) / len(terms) if terms else 0.0
    headed = len(terms & titled) / len(terms) if terms else 0.0
    return round(covered + headed / 2 + _origin(source.url), 4)


def _origin(url: str) -> float:
    parts = urlsplit(url)
    host = parts.hostname or ""
    secure = 0.1 if parts.scheme == "https" else 0.0
    if any(host == name or host.endswith("." + name) for name in PRIMARY):
        return secure + 0.6
    return secure + (0.4 if host.startswith(OFFICIAL) or "/docs/" in parts.path else 0.0)


URLS_LIMIT = 200
EXCERPT_CHARACTERS = 400
TEXT_CHARACTERS = 20_000
"""Maximum length of each document in the `texts` output."""
DOCUMENT_S = 60.0
"""Timeout per document in seconds."""

STOPPED = make_failure("fetching was stopped", FailureClass.TRANSIENT)


@dataclass
class _FetchState:
    """Results for the URLs processed so far."""

    documents: list[dict[str, Any]] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    duplicates: list[dict[str, str]] = field(default_factory=list)
    failed: list[tuple[str, StepFailure]] = field(default_factory=list)
    artifacts: dict[str, ArtifactRef] = field(default_factory=dict)
    requests: int = 0
    deadline: float = 0.0
    """End of the attempt's time limit on the monotonic clock."""

    def same_as(self, digest: str) -> str:
        return next((document["url"] for document in self.documents if document["sha256"] == digest), "")


class FetchRunner:
    """Fetches a step's documents one at a time. Documents cached by an earlier attempt are skipped."""

    def preview(self, work: Work) -> str:
        """List the URLs. Each URL is marked as cached or to be fetched."""
        cache, urls, _ = self._read_urls(work)
        cached_urls = {url for url in urls if _fresh(cache.find(url), work)}
        return "\n".join(f"{'cached' if url in cached_urls else 'fetch '} {url}" for url in urls)

    def run(self, work: Work) -> RunnerResult:
        """Fetch the documents. Partial failures are listed in the `failed` output."""
        cache, urls, problem = self._read_urls(work)
        command = f"fetch {format_count(len(urls), 'document')}: " + shorten(" ".join(urls), 1_000)
        if problem:
            return fail_step(problem, command=command)
        fetched = _FetchState(deadline=time.monotonic() + work.step.timeout_s)
        for url in urls:
            if work.cancelled():
                fetched.failed.append((url, STOPPED))
                break
            self._fetch(work, cache, url, fetched)
        fetched.documents.sort(key=lambda document: (-document["score"], document["url"]))
        return _done(work, fetched, command)

    def _read_urls(self, work: Work) -> tuple[WebCache, list[str], str]:
        resolved = work.resolve(work.action(HttpAction).urls)
        listed = [resolved] if isinstance(resolved, str) else resolved
        cache = WebCache(state_folder_of(work.scope))
        if not isinstance(listed, list | tuple):
            return cache, [], f"urls must be a list of addresses, not {type(listed).__name__}"
        # An item is a URL, or a mapping with `url`, such as a source listed by an earlier step.
        named = (item.get("url", item) if isinstance(item, dict) else item for item in listed)
        urls = list(dict.fromkeys(str(item).strip() for item in named))
        if len(urls) > URLS_LIMIT:
            problem = f"{len(urls)} addresses exceed the limit of {URLS_LIMIT}. Fetch the addresses in several steps"
            return cache, urls[:URLS_LIMIT], problem
        return cache, urls, ""

    def _fetch(self, work: Work, cache: WebCache, url: str, fetched: _FetchState) -> None:
        document = cache.find(url)
        from_cache = _fresh(document, work)
        # For cached documents too: another plan with another policy may have fetched them.
        refusal = judge_url(url, work.plan.policy.network).refusal
        try:
            if refusal:
                raise WebError(FailureClass.POLICY, refusal)
            if not from_cache:
                answer = send(_request(url, document, work, fetched.deadline - time.monotonic()))
                fetched.requests += answer.requests
                from_cache = answer.status == 304
                document = _store_document(cache, url, answer, document)
        except WebError as error:
            fetched.requests += error.requests
            fetched.failed.append((url, error.failure))
            return
        assert document is not None
        content = cache.content(document)
        if content is None:
            problem = f"the cached copy of {url} was removed while it was being read. Try again"
            fetched.failed.append((url, make_failure(problem, FailureClass.TRANSIENT)))
            return
        if same := fetched.same_as(document.sha256):
            fetched.duplicates.append({"url": document.url, "same_as": same, "sha256": document.sha256})
            return
        read = readable(content, document.media_type)
        ref = work.store.put(content, name=shorten(document.url, 200), media_type=document.media_type or "text/plain")
        query = str(work.lookup.inputs.get("query") or work.step.title or work.step.description)
        fetched.artifacts[f"document-{len(fetched.documents) + 1}"] = ref
        fetched.texts[document.url] = read.text
        fetched.documents.append(
            {
                **document.model_dump(
                    mode="json", include={"url", "final_url", "fetched_at", "sha256", "media_type", "size"}
                ),
                "title": read.title,
                "from_cache": from_cache,
                "score": source_score(Source(document.final_url, read.title, read.text), query),
                "excerpt": shorten(" ".join(read.text.split()), EXCERPT_CHARACTERS),
            }
        )


def _fresh(cached: CachedDocument | None, work: Work) -> bool:
    limit = work.action(HttpAction).max_age_s
    # An entry dated in the future would never expire.
    return cached is not None and 0 <= (datetime.now(UTC) - cached.fetched_at).total_seconds() < limit


def _request(url: str, cached: CachedDocument | None, work: Work, left_s: float) -> WebRequest:
    if left_s <= 0:
        problem = (
            f"{url} was not fetched within the step's {work.step.timeout_s:g} s. The next attempt continues from "
            "this address"
        )
        raise WebError(FailureClass.TRANSIENT, problem)
    headers = {"accept": "text/html, text/plain, application/json, */*;q=0.5"}
    if cached is not None and cached.etag:
        headers["if-none-match"] = cached.etag
    if cached is not None and cached.last_modified:
        headers["if-modified-since"] = cached.last_modified
    return WebRequest(
        url=url,
        headers=headers,
        network=work.plan.policy.network,
        # A server sends 304 only for a conditional request (RFC 9110, section 15.4.5).
        accept=frozenset({200, 203} | ({304} if len(headers) > 1 else set())),
        timeout_s=min(DOCUMENT_S, left_s),
        cancelled=work.cancelled,
    )


def _store_document(cache: WebCache, url: str, answer: WebAnswer, cached: CachedDocument | None) -> CachedDocument:
    now = datetime.now(UTC)
    if answer.status == 304 and cached is not None:
        renewed = cached.evolve(fetched_at=now)
        cache.put(renewed)
        return renewed
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


def _done(work: Work, fetched: _FetchState, command: str) -> RunnerResult:
    count, minimum = len(fetched.documents), work.action(HttpAction).at_least
    summary = (
        f"{format_count(count, 'document')}, {format_count(len(fetched.duplicates), 'duplicate')}, "
        f"{len(fetched.failed)} failed"
    )
    failure: StepFailure | None = None
    if count < minimum or any(failed is STOPPED for _, failed in fetched.failed):
        failed = [failed for _, failed in fetched.failed]
        shortfall = f"{format_count(count, 'document')} fetched, but at least {minimum} are required"
        # Transient first: a retry may succeed, and skips the documents that are cached by now.
        order = (FailureClass.TRANSIENT, FailureClass.POLICY, FailureClass.LOGIC)
        worst = min(failed, key=lambda one: order.index(one.failure_class), default=None)
        waits = [problem.retry_after_s for problem in failed if problem.retry_after_s is not None]
        reasons = "; ".join(problem.reason for problem in failed[:3]) or "there were no more addresses"
        failure = StepFailure(
            failure_class=worst.failure_class if worst else FailureClass.LOGIC,
            reason=shorten(f"{shortfall}: {reasons}", 500),
            retry_after_s=max(waits, default=None),
        )
    return RunnerResult(
        outputs={
            "documents": fetched.documents,
            "texts": [
                {
                    "url": document["url"],
                    "title": document["title"],
                    "text": shorten(fetched.texts[document["url"]], TEXT_CHARACTERS),
                }
                for document in fetched.documents
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
