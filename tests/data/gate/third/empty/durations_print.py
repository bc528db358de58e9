from durations import show


def test_show_prints(capsys):
    print(show(3600))
    captured = capsys.readouterr()
    assert captured.out is not None
