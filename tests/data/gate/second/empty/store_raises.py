import pytest

from store.files import SettingsError, load


def test_settings_error():
    with pytest.raises(SettingsError):
        raise SettingsError("broken")
    assert issubclass(SettingsError, Exception)
