"""Documents of the web as text: title and readable words of HTML, plain text as it is."""

import html
import re
from typing import NamedTuple

TEXT_CHARACTERS = 500_000
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
    """What a person would read of a document."""

    title: str = ""
    text: str = ""
    """Empty for what is not text."""


def readable(content: bytes, media_type: str) -> Readable:
    """Return title and text of a document; never raises. `media_type` may name a `charset`."""
    bare = media_type.partition(";")[0].strip().lower()
    markup = "html" in bare or (not bare and content.lstrip()[:1] == b"<")
    if not markup and not _TEXTUAL.match(bare or "text/plain"):
        return Readable()
    text = _decoded(content, media_type)
    if not markup:
        return Readable(_first_line(text), text[:TEXT_CHARACTERS])
    title, body = _words(text)
    lines = [" ".join(line.split()) for line in body.split("\n")]
    told = "\n".join(line for line in lines if line)
    return Readable(" ".join(title.split())[:TITLE_CHARACTERS] or _first_line(told), told[:TEXT_CHARACTERS])


def _decoded(content: bytes, media_type: str) -> str:
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
    """Return title and text of HTML.

    A scanner of our own: the parser of the standard library needs quadratic time on malformed pages.
    """
    folded = text.replace("\u0130", "I").lower()  # the one letter that becomes two in lower case
    words: list[str] = []
    title, at = "", 0
    while (start := text.find("<", at)) >= 0:
        words.append(text[at:start])
        tag = _TAG.match(folded, start)
        if tag is None:
            words.append("<")
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
            words.append("\n")
    words.append(text[at:])
    # Line ends of the source mean nothing; those of blocks were added as text of their own.
    joined = "".join(word if word == "\n" else re.sub(r"\s+", " ", word) for word in words)
    return html.unescape(title), html.unescape(joined)


def _after(text: str, sign: str, at: int) -> int:
    found = text.find(sign, at)
    return found + len(sign) if found >= 0 else len(text)
