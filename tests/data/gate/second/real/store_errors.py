import json

import pytest

from store.files import SettingsError, load


def test_missing_file_gives_defaults(tmp_path):
    assert load(tmp_path / "nope.json", {"a": 1}) == {"a": 1}


@pytest.mark.parametrize("content", ["{", "[1, 2]", '"text"'])
def test_bad_content(tmp_path, content):
    path = tmp_path / "bad.json"
    path.write_text(content)
    with pytest.raises(SettingsError):
        load(path)


def test_file_wins_over_defaults(tmp_path):
    path = tmp_path / "good.json"
    path.write_text(json.dumps({"a": 2}))
    assert load(path, defaults={"a": 1, "b": 3}) == {"a": 2, "b": 3}
