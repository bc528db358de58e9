from store.files import load, save


def test_settings_are_written_as_a_whole(tmp_path):
    file = tmp_path / "deep" / "settings.json"
    save(file, {"b": 1, "a": [2]})
    assert file.read_text() == '{\n  "a": [\n    2\n  ],\n  "b": 1\n}\n'
    assert [path.name for path in file.parent.iterdir()] == ["settings.json"]
    assert load(file) == {"a": [2], "b": 1}
