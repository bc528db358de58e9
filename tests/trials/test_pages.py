"""Every code block of README and documentation is followed literally, page by page, by somebody with an empty home."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.pages.blocks import before, blocks_of
from tests.support.pages.reader import Reader
from tests.support.stack.stack import ROOT
from tightloop.settings import parse_settings

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


Readers = Callable[[tuple[Path, ...]], Reader]


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Readers]:
    """Return somebody who has followed some pages; who continues the same ones takes up from there."""
    known: dict[tuple[Path, ...], Reader] = {}
    with ExitStack() as stack:

        def after(pages: tuple[Path, ...]) -> Reader:
            if pages not in known:
                reader = stack.enter_context(Reader(tmp_path_factory.mktemp("reader") / "files"))
                for block in (block for page in pages for block in blocks_of(page) if not block.not_run):
                    reader.follow(block)
                reader.keep()
                known[pages] = reader
            known[pages].go_back()
            return known[pages]

        yield after


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
@pytest.mark.timeout(900)
def test_every_block_of_a_page_works_as_written(page: Path, readers: Readers) -> None:
    blocks = blocks_of(page)
    for block in blocks:
        assert block.language in ("console", "sh", "yaml", "json", "python", "text", "mermaid"), (
            f"{block.place}: name its language"
        )
        # What the reference of plans shows are plans: tests/unit/plan/test_plan_reference.py.
        if block.language == "yaml" and not block.file and page.stem != "plan":
            parse_settings(block.text, {})
    followed = [block for block in blocks if not block.not_run and (block.file or block.language in ("console", "sh"))]
    if not followed:
        return
    reader = readers(tuple(before(page)))
    for block in followed:
        reader.follow(block)
    for block in blocks:
        if block.not_run:
            print(f"{block.place}: not run: {block.not_run}")
