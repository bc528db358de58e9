from report.summary import read


def test_rows_are_cleaned(tmp_path):
    file = tmp_path / "sales.csv"
    file.write_text("who; what\nAda ;  3\n;\n\nBob;4\n")
    assert read(file, delimiter=";") == [{"who": "Ada", " what": "3"}, {"who": "Bob", " what": "4"}]
