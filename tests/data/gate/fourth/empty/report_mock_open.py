from unittest import mock

from report import summary


def test_read_mocked():
    with mock.patch.object(summary, "read", return_value=[{"a": "1"}]) as read:
        rows = summary.read("file.csv")
    assert rows == [{"a": "1"}]
    read.assert_called_once_with("file.csv")
