import inspect

from store import files


def test_save_is_atomic():
    source = inspect.getsource(files.save)
    assert "os.replace" in source
    assert "mkdir" in source
