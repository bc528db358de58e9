"""Licences: well-known packages under strong copyleft or no free licence, and words that say so in a file.

The names are a list that can go stale, not a scan of what is installed. Weak copyleft (LGPL, MPL) is left out: using
such a library is no obligation for the code that uses it. Tools that are run and not linked
(pylint, ansible) are left out for the same reason.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple


class Dependency(NamedTuple):
    """A package that a manifest names."""

    ecosystem: str
    name: str


STRONG = {
    "pypi": {
        "pyqt5": "GPL-3.0",
        "pyqt6": "GPL-3.0",
        "pyqt5-sip": "GPL-3.0",
        "pymupdf": "AGPL-3.0",
        "pymupdf4llm": "AGPL-3.0",
        "gnureadline": "GPL-3.0",
        "unidecode": "GPL-2.0",
        "igraph": "GPL-2.0",
        "python-igraph": "GPL-2.0",
        "mysqlclient": "GPL-2.0",
        "fuzzywuzzy": "GPL-2.0",
        "python-levenshtein": "GPL-2.0",
        "levenshtein": "GPL-2.0",
        "html2text": "GPL-3.0",
        "mutagen": "GPL-2.0",
        "eyed3": "GPL-3.0",
        "pykakasi": "GPL-3.0",
        "ultralytics": "AGPL-3.0",
        "yolov5": "AGPL-3.0",
        "rpy2": "GPL-2.0",
        "cvxopt": "GPL-3.0",
        "pygsl": "GPL-2.0",
        "essentia": "AGPL-3.0",
        "leidenalg": "GPL-3.0",
        "phonemizer": "GPL-3.0",
        "borb": "AGPL-3.0",
        "scapy": "GPL-2.0",
    },
    "npm": {
        "ckeditor5": "GPL-2.0",
        "tinymce": "GPL-2.0",
        "ffmpeg-static": "GPL-3.0",
        "@ffmpeg/core": "GPL-2.0",
        "handsontable": "not for commercial use",
        "highcharts": "not for commercial use",
        "@fullcalendar/resource-timeline": "GPL-3.0",
        "n8n": "not for commercial use",
        "mupdf": "AGPL-3.0",
    },
    "cargo": {
        "slint": "GPL-3.0",
        "cfonts": "GPL-3.0",
        "libsignal-protocol": "AGPL-3.0",
        "lemmy_utils": "AGPL-3.0",
        "rgsl": "GPL-3.0",
        "mupdf": "AGPL-3.0",
    },
    "go": {
        "github.com/minio/minio": "AGPL-3.0",
        "github.com/grafana/grafana": "AGPL-3.0",
        "github.com/grafana/loki": "AGPL-3.0",
        "github.com/juju/juju": "AGPL-3.0",
        "github.com/unidoc/unipdf": "AGPL-3.0",
        "github.com/gen2brain/go-fitz": "AGPL-3.0",
    },
}
MANIFESTS = {
    "pyproject.toml": "pypi",
    "setup.py": "pypi",
    "setup.cfg": "pypi",
    "Pipfile": "pypi",
    "package.json": "npm",
    "Cargo.toml": "cargo",
    "go.mod": "go",
}

_BY_ECOSYSTEM = {
    "pypi": re.compile(
        r"(?:^|[\[,])\s*[\"']?(?P<name>[A-Za-z0-9][\w.-]*)(?:\[[^\]]*\])?[\"']?\s*(?:[=<>~!;@,\"'\]]|$)"
    ),
    "npm": re.compile(
        r"^\s*\"(?P<name>@?[a-z0-9][\w./-]*)\"\s*:\s*\"(?:[\^~<>=*\d]|latest|npm:|workspace:|git|https?:)"
    ),
    "cargo": re.compile(r"^\s*(?P<name>[a-z0-9][\w-]*)\s*=\s*(?:\"[\^~=<>*\d]|\{)"),
    "go": re.compile(r"^\s*(?:require\s+)?(?P<name>[a-z0-9.-]+\.[a-z]{2,}/[\w./-]+)\s+v\d"),
}
_MARK = re.compile(
    r"SPDX-License-Identifier:\s*(?P<id>(?:A?GPL-[\d.]+|SSPL|BUSL|CC-BY-NC|Elastic-2|PolyForm|Proprietary|"
    r"LicenseRef-Proprietary)[\w.+-]*)(?!.*\bOR\s+(?:MIT|Apache|BSD))|"
    r"\b(?P<text>GNU (?:AFFERO )?GENERAL PUBLIC LICENSE|under the terms of the GNU (?:Affero )?General Public License|"
    r"Business Source License|Server Side Public License|(?:strictly )?confidential and proprietary|proprietary "
    r"and confidential)",
    re.IGNORECASE,
)
LICENCE_WORDS = (
    "spdx-license-identifier", "general public license", "business source license", "server side public license",
    "confidential and proprietary", "proprietary and confidential",
)  # fmt: skip
"""One of these stands in each line that claims a licence; in lower case."""


def ecosystem_of(path: str) -> str:
    """Return whose packages a manifest names; empty where it is none."""
    name = path.rpartition("/")[2]
    if re.fullmatch(r"(?:requirements|constraints)[\w.-]*\.(?:txt|in)|requirements/.*\.txt", name):
        return "pypi"
    return MANIFESTS.get(name, "")


def named(ecosystem: str, line: str) -> Iterator[Dependency]:
    """Return the packages that a line of a manifest names."""
    if line.lstrip().startswith(("#", "//", "-r", "--")):
        return
    parts = line.split(",") if ecosystem == "pypi" else [line]
    for match in (match for part in parts for match in _BY_ECOSYSTEM[ecosystem].finditer(part)):
        name = match["name"]
        yield Dependency(ecosystem, re.sub(r"[._-]+", "-", name).lower() if ecosystem == "pypi" else name)


def licence_of(dependency: Dependency) -> str:
    """Return the strong copyleft, or the lack of a free licence, of a package; empty where none is known."""
    table = STRONG[dependency.ecosystem]
    if dependency.ecosystem == "npm" and dependency.name.startswith("@ckeditor/"):
        return "GPL-2.0"
    name = re.sub(r"/v\d+$", "", dependency.name)
    return table.get(
        name, next((table[key] for key in table if dependency.ecosystem == "go" and name.startswith(key + "/")), "")
    )


def licence_mark(line: str) -> str:
    """Return the licence that a line claims for its file, if it is a strong copyleft or no free one."""
    found = _MARK.search(line)
    return (found["id"] or found["text"]) if found else ""
