from store.files import load, save


def test_save_and_load(tmp_path):
    path = tmp_path / "settings.json"
    expected = {"a": 1}
    save(path, expected)
    load(path)
    assert expected == {"a": 1}
    assert path.name == "settings.json"
