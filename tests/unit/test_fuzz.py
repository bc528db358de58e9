"""Readers of texts of others take any text, in little time. `python -m tests.fuzz` looks for longer."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import TARGETS

LONGEST_S = 5.0
"""Processor time for one text of at most some thousand bytes: a bound against hangs, not a figure."""
PIECES = [
    *(
        b"{",
        b"}",
        b"[",
        b"]",
        b":",
        b"- ",
        b"\n",
        b"\n\n",
        b'"',
        b"'",
        b"\\",
        b",",
        b"#",
        b"&a ",
        b"*a",
        b"<<: ",
        b"!!",
    ),
    *(b"null", b"true", b"1e999", b"NaN", b"-", b"0" * 50, b"\xff", b"\xed\xa0\x80", b"\x00", b"\xef\xbb\xbf", b"\r"),
    *(b"**/", b"*a", b"${", b"}", b"$(", b"```", b"<think>", b"|", b">", b"a: ", b"id", b"steps", b"data: ", b"[DONE]"),
]


@st.composite
def damaged(draw: st.DrawFn, seeds: list[bytes]) -> bytes:
    """Return a text that is nearly right: with parts cut out, repeated, or replaced."""
    text = draw(st.sampled_from(seeds) | st.binary(max_size=200))[:6_000]
    for _ in range(draw(st.integers(0, 6))):
        start = draw(st.integers(0, len(text)))
        end = draw(st.integers(start, min(len(text), start + 200)))
        piece = draw(st.sampled_from(PIECES) | st.binary(max_size=4))
        middle = draw(st.sampled_from((b"", text[start:end] * 2, piece, piece * 100)))
        text = text[:start] + middle + text[end:]
    return text


@pytest.mark.parametrize("name", TARGETS)
def test_any_text_is_read_or_refused(name: str) -> None:
    target = TARGETS[name]

    @settings(max_examples=150)
    @given(damaged(target.seeds()))
    def read(text: bytes) -> None:
        start = time.thread_time()
        target.try_one(text)
        assert time.thread_time() - start < LONGEST_S

    for seed in target.seeds():
        target.try_one(seed)
    read()
