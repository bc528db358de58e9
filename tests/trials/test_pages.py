"""Every code block of README and documentation is followed literally, page by page, by somebody with an empty home."""

from pathlib import Path

import pytest

from tests.support.pages.blocks import before, blocks_of
from tests.support.pages.reader import Reader
from tests.support.stack.stack import ROOT
from tightloop.settings import parse_settings

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
@pytest.mark.timeout(900)
def test_every_block_of_a_page_works_as_written(page: Path, tmp_path: Path) -> None:
    blocks = blocks_of(page)
    for block in blocks:
        assert block.language in ("console", "sh", "yaml", "json", "python", "text"), (
            f"{block.place}: name its language"
        )
        # What the reference of plans shows are plans: tests/unit/plan/test_plan_reference.py.
        if block.language == "yaml" and not block.file and page.stem != "plan":
            parse_settings(block.text, {})
    followed = [block for block in blocks if not block.not_run and (block.file or block.language in ("console", "sh"))]
    if not followed:
        return
    earlier = [block for each in before(page) for block in blocks_of(each)]
    with Reader(tmp_path) as reader:
        for block in (*earlier, *followed):
            reader.follow(block)
    for block in blocks:
        if block.not_run:
            print(f"{block.place}: not run: {block.not_run}")
