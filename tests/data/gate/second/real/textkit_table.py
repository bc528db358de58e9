import textkit


def test_columns_are_aligned():
    rows = [("name", "qty"), ("pen", 3), ("notebook", 12)]
    assert textkit.table(rows).splitlines() == [
        "name      qty",
        "pen       3",
        "notebook  12",
    ]
    assert textkit.table([]) == ""
