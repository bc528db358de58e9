import os

import pytest

from store import files


def test_old_file_stays_when_replacing_fails(tmp_path, monkeypatch):
    path = tmp_path / "s.json"
    files.save(path, {"a": 1})

    def broken(source, target):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(OSError, match="disk full"):
        files.save(path, {"a": 2})
    assert files.load(path) == {"a": 1}
