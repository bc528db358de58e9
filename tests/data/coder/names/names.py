from pathlib import Path


def read_names(path):
    """Return the names in a file, one a line, without blanks around them and without repetitions."""
    text = Path(path).read_text(encoding="latin-1")
    names = []
    for line in text.split("\n"):
        name = line.strip(" ")
        if name and name not in names:
            names.append(name)
    return names


def same(one, other):
    """Return whether two names are equal but for case."""
    return one.lower() == other.lower()
