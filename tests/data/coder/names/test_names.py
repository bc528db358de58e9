from names import read_names, same


def test_names_are_read_as_utf_8_with_any_line_ends(tmp_path):
    path = tmp_path / "names.txt"
    path.write_bytes(b"\xef\xbb\xbfZo\xc3\xab\r\nBj\xc3\xb6rn \r\nZo\xc3\xab\r\n")
    assert read_names(path) == ["Zo\u00eb", "Bj\u00f6rn"]


def test_names_are_the_same_in_another_case_and_another_form():
    assert same("STRASSE", "stra\u00dfe")
    assert same("Zoe\u0308", "ZO\u00cb")
    assert not same("Zoe", "Zo\u00eb")
