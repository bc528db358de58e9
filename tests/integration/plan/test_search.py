"""The capability `search`: passages of a real project and of cached documents."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from activities.plan.runners.fetch import FetchRunner
from activities.plan.runners.search import SearchRunner
from tests.support.fake_site import FakeSite, html
from tests.support.plan.work import work_for

Git = Callable[..., str]


@pytest.fixture
def project(tmp_path: Path, git: Git) -> Path:
    folder = tmp_path / "project"
    (folder / "src").mkdir(parents=True)
    (folder / "docs").mkdir()
    filler = "".join(f"value_{n} = {n}\n" for n in range(40))
    (folder / "src" / "client.py").write_text(f"{filler}def retryRequest(policy):\n    return policy.backoff\n{filler}")
    (folder / "src" / "server.py").write_text(filler + "def serve():\n    pass\n")
    (folder / "docs" / "retries.md").write_text("# Retries\nA request is retried with backoff.\n")
    (folder / ".gitignore").write_text("secret.txt\n")
    (folder / "secret.txt").write_text("retry backoff policy\n")
    (folder / "image.bin").write_bytes(b"retry backoff\0" * 10)
    (folder / "new.txt").write_text("not yet added: backoff\n")
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "add", "src", "docs", ".gitignore", "image.bin")
    git(folder, "commit", "--quiet", "-m", "start")
    return folder


def search(folder: Path, query: str, **options: Any) -> list[dict[str, Any]]:
    done = SearchRunner().run(
        work_for(folder, {"search": {"query": query, **options}}, values={"plan.term": "backoff"})
    )
    assert done.failure is None
    hits: list[dict[str, Any]] = done.outputs["hits"]
    return hits


def test_best_passage_stands_first_and_names_its_line(project: Path) -> None:
    hits = search(project, "retry request policy backoff")
    assert hits[0]["where"] == "src/client.py:41"
    assert "def retryRequest" in hits[0]["text"]
    assert [hit["score"] for hit in hits] == sorted((hit["score"] for hit in hits), reverse=True)


def test_only_text_that_git_does_not_ignore_is_searched(project: Path) -> None:
    paths = {hit["path"] for hit in search(project, "${plan.term}")}
    assert paths == {"src/client.py", "docs/retries.md", "new.txt"}


def test_paths_narrow_the_search_and_limit_bounds_it(project: Path) -> None:
    assert {hit["path"] for hit in search(project, "backoff", paths=["docs/**"])} == {"docs/retries.md"}
    assert len(search(project, "value", limit=3)) == 3


def test_same_question_gives_the_same_hits(project: Path) -> None:
    assert search(project, "value_7 serve backoff") == search(project, "value_7 serve backoff")


def test_cached_documents_are_found_by_title_and_text(project: Path) -> None:
    with FakeSite({"/rfc": html("Retry-After", "A server tells when to come back.")}) as site:
        fetching = work_for(
            project, {"http": {"urls": site.url("/rfc")}}, plan={"policy": {"network": [site.authority]}}
        )
        assert FetchRunner().run(fetching).failure is None
        url = site.url("/rfc")
    (hit,) = search(project, "when does the server tell to come back", where="cache")
    assert (hit["url"], hit["title"], hit["path"]) == (url, "Retry-After", "")
    assert hit["where"].startswith(f"{url}:")
    assert any(hit["url"] == url for hit in search(project, "retry after"))
    assert not any(hit["url"] for hit in search(project, "retry after", where="project"))


def test_link_out_of_the_tree_is_not_read(project: Path, tmp_path: Path) -> None:
    (tmp_path / "outside.txt").write_text("zebra\n")
    (project / "link.txt").symlink_to(tmp_path / "outside.txt")
    assert search(project, "zebra") == []


def test_query_without_words_is_refused(project: Path) -> None:
    done = SearchRunner().run(work_for(project, {"search": {"query": "?!"}}))
    assert done.failure is not None
    assert "no words" in done.failure.reason


def test_search_stops_when_it_is_cancelled(project: Path) -> None:
    done = SearchRunner().run(work_for(project, {"search": {"query": "backoff"}}, cancelled=lambda: True))
    assert done.failure is not None
    assert done.failure.reason == "the search was stopped"
