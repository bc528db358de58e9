"""Prompts of the reviewer of a proven change, and its reading of answers, over real HTTP."""

from pathlib import Path

import pytest

from activities.model.client import ModelService
from activities.proof.reviewer import Reviewer
from tests.data.alignment import KEYS
from tests.support.git_sample import make_repository
from tests.support.model_server import ModelServer, says
from tightloop.episode.planning import Briefing
from tightloop.safety.drift import PromptPrivacy

CONSENT = says({"doubts": False, "reason": "", "quotes": []})
BRIEFING = Briefing(goal="add() must return the sum of two numbers", definition_of_done=("python3 test_calc.py",))
PATCH = """diff --git a/calc.py b/calc.py
index 1111111..2222222 100644
--- a/calc.py
+++ b/calc.py
@@ -1,2 +1,2 @@
 def add(a, b):
-    return a - b
+    return a + b
"""


def service(server: ModelServer, **changes: int) -> ModelService:
    return ModelService(api_key="key-1", base_url=server.url, models=("m1",), timeout_s=60.0, **changes)


def add_file(path: str, *lines: str) -> str:
    body = "".join(f"+{line}\n" for line in lines)
    head = f"diff --git a/{path} b/{path}\nnew file mode 100644\nindex 0000000..1111111\n--- /dev/null\n+++ b/{path}\n"
    return f"{head}@@ -0,0 +1,{len(lines)} @@\n{body}"


@pytest.mark.parametrize("characters", [8_000, 24_000])
async def test_a_long_diff_is_cut_and_the_prompt_and_the_review_say_so(tmp_path: Path, characters: int) -> None:
    tests = "".join(f"assert add({number}, 1) == {number + 1}\n" for number in range(1_000))
    root = make_repository(
        tmp_path / "project", {"calc.py": "def add(a, b):\n    return a + b\n", "test_calc.py": tests}
    )
    patch = add_file("a_table.py", *(f"ROW_{number} = {number}" for number in range(50_000))) + PATCH
    with ModelServer(CONSENT) as server:
        answer = await Reviewer(service(server, context_characters=characters)).review(BRIEFING, patch, root)
        prompt = server.requests[0].text
    assert answer.review is not None
    assert (answer.review.files, answer.review.unread, answer.review.doubt) == (2, 1, "")
    assert "Parts of 1 of 2 files are missing" in prompt
    assert "+    return a + b" in prompt, "a large file must not displace the others"
    assert "+ROW_0 = 0" in prompt
    assert "    assert add(0, 1) == 1" in prompt
    # The instructions come on top.
    assert len(prompt) < characters + 4_000


async def test_secrets_are_not_sent_where_prompts_are_redacted_and_a_quotation_of_their_line_counts(
    tmp_path: Path,
) -> None:
    line = f"KEY = '{KEYS['openai']}'"
    root = make_repository(tmp_path / "project", {"client.py": f"{line}\n"})
    quote = {"path": "client.py", "line": "KEY = '[secret:openai-key]'"}
    doubt = says(
        {"doubts": True, "reason": "it works with one key only", "quotes": [quote, {**quote, "line": "x = 1"}]}
    )
    redacted = BRIEFING.evolve(prompt_privacy=PromptPrivacy.REDACTED)
    with ModelServer(doubt) as server:
        answer = await Reviewer(service(server)).review(redacted, add_file("client.py", line), root)
        [request] = server.requests
    assert KEYS["openai"] not in str(request.body)
    assert answer.review is not None
    assert answer.review.quotes == ("client.py:1: KEY = '[secret:openai-key]'",)
    assert answer.review.paths == ("client.py",)


async def test_a_model_that_invents_its_quotation_is_asked_for_another_one(tmp_path: Path) -> None:
    root = make_repository(tmp_path / "project", {"calc.py": "def add(a, b):\n    return a + b\n"})
    doubt = {"doubts": True, "reason": "add('a', 1) fails", "quotes": [{"path": "calc.py", "line": "return a * b"}]}
    better = {**doubt, "quotes": [{"path": "calc.py", "line": "+    return a + b"}]}
    with ModelServer(says(doubt), says(better)) as server:
        answer = await Reviewer(service(server)).review(BRIEFING, PATCH, root)
        assert "no line that the diff adds or removes" in server.requests[1].text
    assert answer.review is not None
    assert answer.review.quotes == ("calc.py:2: return a + b",)
