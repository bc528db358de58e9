import pytest

from store.files import SettingsError, load


class TestErrors:
    def test_error_tells_type_and_cause(self, tmp_path):
        path = tmp_path / "x.json"
        path.write_text("[]")
        with pytest.raises(SettingsError, match="has a list, not an object"):
            load(path)
        path.write_text("oops")
        with pytest.raises(SettingsError) as caught:
            load(path)
        assert isinstance(caught.value.__cause__, ValueError)
