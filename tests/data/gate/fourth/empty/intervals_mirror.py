from intervals import merge


def reference_merge(items):
    out = []
    for a, b in sorted(items):
        if out and a <= out[-1][1]:
            out[-1] = (out[-1][0], max(b, out[-1][1]))
        else:
            out.append((a, b))
    return out


def test_merge_against_reference():
    data = [(5, 7), (1, 3), (2, 6)]
    assert merge(data) == reference_merge(data)
