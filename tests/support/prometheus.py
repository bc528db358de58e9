"""A real Prometheus on a free port, with the configuration and the rules of `deploy/`."""

import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.support.stack.stack import ROOT, wait_for_port
from worker.server import free_port

PROMETHEUS = shutil.which("prometheus")
SCRAPE = "1s"
_STOP_SECONDS = 20


class Prometheus:
    """Asks a running Prometheus."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def values(self, query: str) -> list[float]:
        """Return the value of each series that a query gives."""
        asked = urllib.parse.urlencode({"query": query})
        with urllib.request.urlopen(f"{self._url}/api/v1/query?{asked}", timeout=20) as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return [float(series["value"][1]) for series in found]


@contextmanager
def scraping(folder: Path, targets: Sequence[str]) -> Iterator[Prometheus]:
    """Run a Prometheus that reads the workers at these addresses, every second."""
    assert PROMETHEUS is not None
    configuration = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())
    configuration["global"] = {"scrape_interval": SCRAPE, "evaluation_interval": SCRAPE}
    configuration["rule_files"] = [str(ROOT / "deploy" / "prometheus" / "alerts.yml")]
    [workers] = [job for job in configuration["scrape_configs"] if job["job_name"] == "tightloop"]
    workers["static_configs"] = [{"targets": list(targets)}]
    configuration["scrape_configs"] = [workers]
    folder.mkdir()
    (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration))
    port = free_port()
    command = [
        PROMETHEUS, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
    ]  # fmt: skip
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            wait_for_port(f"127.0.0.1:{port}", 30)
            yield Prometheus(port)
        finally:
            process.terminate()
            process.wait(_STOP_SECONDS)
