from durations import show, UNITS


def test_show_matches_algorithm():
    seconds = 93784
    remaining = seconds
    parts = []
    for unit, size in UNITS.items():
        count, remaining = divmod(remaining, size)
        if count:
            parts.append(f"{count}{unit}")
    expected = "".join(parts) or "0s"
    assert show(seconds) == expected
