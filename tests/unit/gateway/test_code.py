"""Patches as the page shows them."""

import difflib
import html
import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from gateway.web.code import read_files

PATCH = """diff --git a/app.py b/app.py
index 1111111..2222222 100644
--- a/app.py
+++ b/app.py
@@ -1,4 +1,4 @@
 def add(a, b):
-    return a - b  # <wrong>
+    return a + b  # <right> & tested

 print("hi")
"""


def text_of(marked: str) -> str:
    return html.unescape(re.sub(r"</?i[^>]*>", "", marked))


def test_removed_and_added_lines_stand_side_by_side_with_their_numbers() -> None:
    [file] = read_files(PATCH)
    [(_, rows)] = file.hunks
    changed = next(row for row in rows if row.kind == "changed")
    assert (changed.old.number, changed.new.number) == (2, 2)
    assert text_of(changed.new.html) == "    return a + b  # <right> & tested"
    assert (file.path, file.added, file.removed) == ("app.py", 1, 1)


def test_code_is_coloured_and_what_looks_like_markup_is_escaped() -> None:
    [file] = read_files(PATCH)
    shown = "".join(row.new.html for _, rows in file.hunks for row in rows)
    assert '<i class="k">def</i>' in shown
    assert "<right>" not in shown


def test_a_head_before_the_first_file_is_passed_over() -> None:
    assert [file.path for file in read_files(f"tree 1\ntree 2\n{PATCH}")] == ["app.py"]


def test_a_binary_file_says_so() -> None:
    [file] = read_files("diff --git a/x.png b/x.png\nindex 1..2 100644\nBinary files a/x.png and b/x.png differ\n")
    assert (file.path, file.note, file.hunks) == ("x.png", "a binary file", ())


def test_what_is_no_patch_is_shown_as_it_is() -> None:
    broken = "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1,9 +1,9 @@\n-only one line\n"
    shown = "".join(row.new.html for file in read_files(broken) for _, rows in file.hunks for row in rows)
    assert "only one line" in text_of(shown)


LINES = st.lists(
    st.text(st.characters(codec="utf-8", exclude_characters="\r\n\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"), max_size=12),
    max_size=12,
)


@given(LINES, LINES)
def test_no_line_of_a_change_is_lost(old: list[str], new: list[str]) -> None:
    body = list(difflib.unified_diff(old, new, "a/x.py", "b/x.py", lineterm=""))
    shown = [
        row
        for file in read_files("\n".join(["diff --git a/x.py b/x.py", *body, ""]))
        for _, rows in file.hunks
        for row in rows
    ]
    removed = [text_of(row.old.html) for row in shown if row.kind in ("removed", "changed")]
    added = [text_of(row.new.html) for row in shown if row.kind in ("added", "changed")]
    assert removed == [line[1:] for line in body[2:] if line.startswith("-")]
    assert added == [line[1:] for line in body[2:] if line.startswith("+")]


def test_vendored_files_are_those_that_the_manifest_names() -> None:
    import hashlib
    import json

    folder = Path("gateway/web/vendor")
    manifest = json.loads((folder / "manifest.json").read_text())
    found = {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "manifest.json"
    }
    assert found == manifest
