"""Texts are compared exactly and stored as verified deltas; big ones without stopping the worker."""

import hashlib
import itertools
import os
import random
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
from diff_match_patch import diff_match_patch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from activities.artifacts.local import open_local_store
from activities.artifacts.port import get_model, put_model
from activities.tracking.git_differ import GitDiffer
from activities.tracking.port import TextDelta
from activities.tracking.similarity import similarity
from activities.tracking.text_differ import SMALL_LIMIT, apply_delta, text_delta
from tightloop.errors import ArtifactCorruptError, InvalidRequestError

TEXT = "\n".join(f"line {number}: the words of line {number * 7 % 13}" for number in range(400))
PATIENCE = timedelta(seconds=30)
PARTS = (
    "a",
    "line\n",
    "crlf\r\n",
    "\r",
    "\0",
    "\u2028",
    "\x0c",
    "e\u0301",
    "\N{GRINNING FACE}",
    "\t",
    "%41",
    "+",
    "=1",
    "",
)
TEXTS = st.lists(st.sampled_from(PARTS) | st.text(max_size=20), max_size=12).map("".join)
ANY_CHARACTERS = st.text(
    st.characters(codec=None, exclude_categories=()) | st.sampled_from("\ud83d\ude00a"), max_size=30
)


def big_text(seed: int, lines: int = 4_000) -> str:
    noise = random.Random(seed)
    return "\n".join(f"line {number}: {noise.getrandbits(60):x}" for number in range(lines))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(old=TEXTS, new=TEXTS)
def test_delta_of_any_text_leads_to_the_new_text_by_the_library_too(old: str, new: str) -> None:
    found = GitDiffer().text(old, new)
    assert apply_delta(old, found) == new
    if found.kind == "delta":
        engine = diff_match_patch()
        assert engine.diff_text2(engine.diff_fromDelta(old, found.body)) == new
    assert len(found.body.encode()) <= len(new.encode())
    assert found.result_sha256 == hashlib.sha256(new.encode()).hexdigest()
    assert 0.0 <= found.ratio <= 1.0
    assert found.ratio == 1.0 or old != new


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(old=ANY_CHARACTERS, new=ANY_CHARACTERS)
@example(old="\ud83d", new="\ud83d\ude00x")
@example(old="\U0001f600", new="\ud83d\ude00")
@example(old="ab\ud83dcd", new="ab\ud83d\ude00cd")
def test_delta_of_characters_that_are_no_unicode_leads_to_the_new_text(old: str, new: str) -> None:
    found = GitDiffer().text(old, new)
    again = TextDelta.model_validate_json(found.model_dump_json())
    assert apply_delta(old, again) == new


@pytest.mark.parametrize("edit", [0.001, 0.2, 0.9])
def test_delta_of_a_big_text_leads_to_the_new_text(edit: float) -> None:
    noise = random.Random(1)
    old = big_text(1)
    new = "\r\n".join(line[::-1] if noise.random() < edit else line for line in old.split("\n"))
    found = text_delta(old, new)
    assert len(old) + len(new) > SMALL_LIMIT
    assert apply_delta(old, found) == new
    assert len(found.body.encode()) <= len(new.encode())


def test_small_edit_of_a_big_text_is_stored_as_a_small_delta() -> None:
    old = big_text(1, 20_000)
    new = old.replace("line 500:", "line five hundred:").replace("line 9000:", "line nine thousand:")
    found = text_delta(old, new, bound=PATIENCE)
    assert (found.kind, found.approximate) == ("delta", False)
    assert len(found.body) < 100
    assert apply_delta(old, found) == new


def test_ratio_is_the_same_in_both_processes() -> None:
    old, new = big_text(1, 1_200), big_text(1, 1_200).replace("line 5", "row 5")
    assert len(old) + len(new) > SMALL_LIMIT
    assert text_delta(old, new, bound=PATIENCE).ratio == similarity(old, new).ratio


def test_small_edit_is_stored_as_a_delta() -> None:
    found = GitDiffer().text(TEXT, TEXT.replace("line 200:", "line two hundred:"))
    assert found.kind == "delta"
    assert len(found.body) < len(TEXT) / 20
    assert found.ratio > 0.99


def test_rewrite_is_stored_in_full() -> None:
    found = GitDiffer().text(TEXT, "all new")
    assert (found.kind, found.body) == ("full", "all new")
    assert found.ratio < 0.1


def test_delta_of_characters_that_are_no_unicode_can_be_stored(tmp_path: Path) -> None:
    store = open_local_store(tmp_path)
    found = GitDiffer().text("a\ud800b", "all else\ud800")
    stored = get_model(store, put_model(store, found, name="plan delta"), TextDelta)
    assert apply_delta("a\ud800b", stored) == "all else\ud800"


def test_wrong_base_is_refused_with_its_hash() -> None:
    found = GitDiffer().text(TEXT, TEXT.replace("line 200:", "line two hundred:"))
    same_length = TEXT.replace("line 100:", "LINE 100:")
    with pytest.raises(InvalidRequestError, match=f"made for the text with SHA-256 {found.base_sha256}, this one has"):
        apply_delta(same_length, found)


@pytest.mark.parametrize("body", ["=999999", "=-1", "+%ff", "=3", "?1", "=1\t", "+other text\t-16687"])
def test_damaged_delta_is_refused(body: str) -> None:
    found = GitDiffer().text(TEXT, TEXT + "more")
    with pytest.raises(ArtifactCorruptError, match=found.result_sha256):
        apply_delta(TEXT, found.model_copy(update={"body": body}))


def test_edit_of_a_fifth_of_the_lines_keeps_most_of_the_text() -> None:
    edited = "\n".join(line + " more" if number % 5 == 0 else line for number, line in enumerate(TEXT.split("\n")))
    assert 0.9 < similarity(TEXT, edited).ratio < 1.0


def test_shuffled_lines_are_less_similar_than_edited_ones() -> None:
    lines = TEXT.split("\n")
    random.Random(1).shuffle(lines)
    assert similarity(TEXT, "\n".join(lines)).ratio < 0.6


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(old=st.text("ab \n", max_size=60), new=st.text("ab \n", max_size=60))
def test_similarity_lies_between_none_and_equal(old: str, new: str) -> None:
    ratio = similarity(old, new).ratio
    assert 0.0 <= ratio <= 1.0
    assert ratio < 1.0 or old.split() == new.split()
    assert similarity(old, old).ratio == 1.0


HARD_TEXTS = {
    "one line of 10 MB": ("word " * 2_000_000, "other " * 1_700_000),
    "ten million characters without a space": ("ab" * 5_000_000, "ba" * 5_000_000),
    "a million different lines": (
        "\n".join(map(str, range(1_000_000))),
        "\n".join(map(str, range(1_000_000, 2_000_000))),
    ),
    "all lines equal": ("same\n" * 2_000_000, "same\n" * 1_000_000),
    "only line ends": ("\n" * 10_000_000, "\r\n" * 5_000_000),
    "one character in 40 MB": ("ab " * 13_000_000, "ab " * 6_000_000 + "x" + "ab " * 7_000_000),
}


@pytest.mark.parametrize("name", HARD_TEXTS)
def test_hard_texts_are_compared_in_bounded_time_and_marked(name: str) -> None:
    old, new = HARD_TEXTS[name]
    found = GitDiffer().text(old, new)
    assert apply_delta(old, found) == new
    assert len(found.body) <= len(new)
    assert 0.0 <= found.ratio <= 1.0
    assert found.approximate or name == "ten million characters without a space"


def test_text_without_time_is_coarse_exact_and_marked() -> None:
    old = big_text(1)
    new = old.replace("line 2000:", "the line 2000:")
    found = text_delta(old, new, bound=timedelta(0))
    assert (found.kind, found.approximate) == ("delta", True)
    assert apply_delta(old, found) == new
    assert 0.99 < found.ratio < 1.0


def test_no_process_is_left_after_a_text_ran_out_of_time() -> None:
    code = (
        "import os, pathlib; from datetime import timedelta\n"
        "from activities.tracking.text_differ import text_delta\n"
        "text_delta('a b ' * 1_000_000, 'b c ' * 1_000_000, bound=timedelta(milliseconds=60))\n"
        "try:\n    os.waitpid(-1, os.WNOHANG)\nexcept ChildProcessError:\n    print('none left')\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True, timeout=60)
    assert done.stdout == b"none left\n"


def test_other_threads_run_while_a_big_text_is_compared() -> None:
    old, new = HARD_TEXTS["a million different lines"]
    # A busy machine may keep a thread waiting; a comparison that holds the lock does so each time.
    assert any(longest_gap(old, new) < 0.5 for _ in range(5))


def longest_gap(old: str, new: str) -> float:
    """Return the longest time that another thread had to wait, as a part of the whole comparison."""
    beats = [time.monotonic()]
    over = threading.Event()

    def beat() -> None:
        while not over.wait(0.005):
            beats.append(time.monotonic())

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        GitDiffer().text(old, new)
    finally:
        over.set()
        thread.join()
    beats.append(time.monotonic())
    return max(after - before for before, after in itertools.pairwise(beats)) / (beats[-1] - beats[0])
