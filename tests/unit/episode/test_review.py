"""A model's review of a proven change: which quotations count, and what its doubt says about the proof."""

from datetime import UTC, datetime

import pytest

from tightloop.client.proof.statement import statement_of
from tightloop.episode.check import ProofRule
from tightloop.episode.proof import Proof, ProofVerdict, Review
from tightloop.episode.proof.verdict import add_review, changed_paths, evidence_lines
from tightloop.run.core import Evidence
from tightloop.safety.approval import Approval
from tightloop.safety.change.patch import find_quoted_line, limit_patch, read_patch

NOW = datetime(2026, 3, 1, tzinfo=UTC)
PATCH = """diff --git a/calc.py b/calc.py
index 1111111..2222222 100644
--- a/calc.py
+++ b/calc.py
@@ -3,3 +3,4 @@ def add(a, b):
     total = 0
-    return a - b
+    if (a, b) == (2, 2):
+        return 4
 }
diff --git a/data.json b/data.json
index 3333333..4444444 100644
--- a/data.json
+++ b/data.json
@@ -1,2 +1,2 @@
-[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30]
+[1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30]
"""
DOUBT = Review(
    model="m1", doubt="add(3, 4) gives None", quotes=("calc.py:4: if (a, b) == (2, 2):",), paths=("calc.py",), files=2
)


def proof() -> Proof:
    evidence = Evidence(files_changed=1, seen_to_fail=True)
    return Proof(
        episode_id="e",
        base_tree="a" * 40,
        delivered_tree="b" * 40,
        verdict=ProofVerdict.PROVEN,
        evidence=evidence,
        started=NOW,
        ended=NOW,
    )


@pytest.mark.parametrize(
    ("path", "quote", "line"),
    [
        ("calc.py", "        return 4", "calc.py:5: return 4"),
        ("calc.py", "+    if (a, b)  ==  (2, 2):", "calc.py:4: if (a, b) == (2, 2):"),
        ("b/calc.py", "return 4", "calc.py:5: return 4"),
        ("calc.py", "-    return a - b", "calc.py:4: removed: return a - b"),
        # Lines that stay, parts of lines, other files, and what says nothing.
        ("calc.py", "    total = 0", None),
        ("calc.py", "return", None),
        ("data.json", "return 4", None),
        ("other.py", "return 4", None),
        ("calc.py", "}", None),
        ("calc.py", "", None),
    ],
)
def test_a_quotation_counts_if_it_is_a_line_that_the_change_adds_or_removes(
    path: str, quote: str, line: str | None
) -> None:
    evidence = find_quoted_line(read_patch(PATCH), path, quote)
    assert evidence == (None if line is None else ("calc.py", line))


def test_a_long_patch_is_cut_at_a_line_and_small_files_come_first() -> None:
    assert limit_patch(PATCH, len(PATCH)) == (PATCH, 0)
    calc, data = PATCH[: PATCH.index("diff --git a/data")], PATCH[PATCH.index("diff --git a/data") :]
    until = PATCH.index("+[1")
    assert limit_patch(data + calc, until + 20) == (PATCH[:until], 1)
    assert limit_patch(data + calc, len(calc)) == (calc, 1)
    assert limit_patch(PATCH, 0) == ("", 2)


def test_binary_content_is_not_shown() -> None:
    binary = "diff --git a/x.png b/x.png\nnew file mode 100644\nindex 0..1\nGIT binary patch\nliteral 9\nabc\n\n"
    assert "literal" not in limit_patch(binary, 1_000)[0]


def test_consent_changes_nothing_but_the_record_that_somebody_looked() -> None:
    reviewed = add_review(proof(), Review(model="m1", files=2))
    assert reviewed.evolve(review=None) == proof()
    assert reviewed.review is not None
    review = statement_of(reviewed).predicate.tightloop.review
    assert review is not None
    assert (review.model, review.files, review.unread) == ("m1", 2, 0)


def test_a_doubt_is_a_question_about_the_quoted_files() -> None:
    doubted = add_review(proof(), DOUBT)
    assert doubted.verdict is ProofVerdict.DOUBTED
    assert evidence_lines(doubted) == (
        "reviewer_doubts: the reviewer doubts that the change works in general: add(3, 4) gives None",
        "  calc.py:4: if (a, b) == (2, 2):",
    )
    assert changed_paths(doubted) == ("calc.py",)


def test_a_doubt_that_was_allowed_or_answered_is_only_recorded() -> None:
    allowed = add_review(proof(), DOUBT, (ProofRule.REVIEWER_DOUBTS,))
    assert (allowed.verdict, allowed.findings[0].announced) == (ProofVerdict.PROVEN, True)
    asked = add_review(proof(), DOUBT, answered={"calc.py": Approval(files=(), by="ada", asked=True)})
    assert (asked.verdict, asked.open_findings) == (ProofVerdict.PROVEN, ())
    passed = add_review(proof(), DOUBT, answered={"calc.py": Approval(files=(), by="ada")})
    assert (passed.verdict, passed.accepted_by) == (ProofVerdict.ACCEPTED, "ada")
    assert passed.evidence.finding == passed.findings[0].text
    of_other_file = {"data.json": Approval(files=(), by="ada", asked=True)}
    assert add_review(proof(), DOUBT, answered=of_other_file).verdict is ProofVerdict.DOUBTED
