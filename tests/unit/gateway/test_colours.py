"""Every word on the page has enough contrast with what is behind it (WCAG 2.2, 1.4.3 and 1.4.11), computed."""

import re
from itertools import product

import pytest

from gateway.web import app

TEXT, GRAPHIC = 4.5, 3.0
SHEET = app.content("page.css").decode()
BADGES = ("quiet", "running", "needs", "paused", "good", "bad")
CODE = tuple(f"--code-{kind}" for kind in "kscfmn")


def themes() -> dict[str, dict[str, str]]:
    blocks = re.findall(r"(:root[^{]*)\{([^}]*)\}", SHEET)
    return {selector.strip(): dict(re.findall(r"(--[\w-]+): (#[0-9a-f]{6})", body)) for selector, body in blocks}


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def pairs() -> list[tuple[str, str, float]]:
    words = list(product(("--text", "--muted", "--link"), ("--page", "--raised"), (TEXT,)))
    words += [(f"--{tone}-fg", f"--{tone}-bg", TEXT) for tone in BADGES]
    words += [("--on-accent", "--accent", TEXT), ("--on-danger", "--danger", TEXT), ("--danger", "--page", TEXT)]
    words += [("--good-fg", "--page", TEXT), ("--bad-fg", "--raised", TEXT), ("--good-fg", "--raised", TEXT)]
    words += list(product((*CODE, "--text", "--muted"), ("--page", "--add", "--del"), (TEXT,)))
    return [
        *words,
        ("--focus", "--page", GRAPHIC),
        *(("--accent", under, GRAPHIC) for under in ("--quiet-bg", "--page")),
    ]


@pytest.mark.parametrize("theme", themes())
def test_everything_can_be_read(theme: str) -> None:
    colours = themes()[theme]
    poor = [
        f"{a} on {b}: {contrast(colours[a], colours[b]):.1f}"
        for a, b, least in pairs()
        if contrast(colours[a], colours[b]) < least
    ]
    assert not poor


def test_both_ways_to_the_dark_theme_have_the_same_colours() -> None:
    light, by_system, by_choice = themes().values()
    assert by_system == by_choice
    assert light.keys() == by_choice.keys()


def test_the_badge_pulses_by_its_dot_alone() -> None:
    animated = re.findall(r"([^{}]+)\{[^{}]*animation: pulse", SHEET)
    assert [rule.strip().splitlines()[-1] for rule in animated] == [".badge-awaiting::before"]
    assert "prefers-reduced-motion" in SHEET
