"""Fuzzes a reader with atheris, guided by coverage: `python -m tests.fuzz NAME [NAME ...] --minutes 10`.

Needs `pip install -e '.[fuzz]'`. Each reader runs in a process of its own. What it crashes on stays in the folder that
is named at the end; give that file as `--replay FILE` to see the error again.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

LONGEST_BYTES = 20_000
LONGEST_INPUT_S = 10
"""A text that takes longer, instrumented, counts as a hang."""
MEMORY_MB = 1_500
INSTRUMENTED = ["tightloop", "activities", "yaml", "json", "acp"]


def main() -> int:
    """Fuzz readers one after the other; return 1 where one crashed, hung or took too much memory."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="readers; none: list them")
    parser.add_argument("--minutes", type=float, default=10.0, help="for each reader")
    parser.add_argument("--corpus", type=Path, help="folder that keeps what was found interesting, for the next time")
    parser.add_argument("--replay", type=Path, help="read this file once, without fuzzing")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child is not None:
        return fuzz(given.names[0], given.child.split("\n"))
    if given.replay is not None:
        from tests.fuzz.targets import TARGETS

        TARGETS[given.names[0]].try_one(given.replay.read_bytes())
        return 0
    if not given.names:
        from tests.fuzz.targets import TARGETS

        print("\n".join(TARGETS))
        return 0
    corpora = given.corpus or Path(tempfile.mkdtemp(prefix="tightloop-fuzz-"))
    return max(run(name, given.minutes, corpora / name) for name in given.names)


def run(name: str, minutes: float, folder: Path) -> int:
    """Fuzz one reader in a process; print its figures."""
    corpus, found = folder / "corpus", folder / "found"
    for place in (corpus, found):
        place.mkdir(parents=True, exist_ok=True)
    seconds = round(minutes * 60)
    flags = [
        f"-max_total_time={seconds}",
        f"-max_len={LONGEST_BYTES}",
        f"-timeout={LONGEST_INPUT_S}",
        f"-rss_limit_mb={MEMORY_MB}",
        f"-artifact_prefix={found}/",
        "-print_final_stats=1",
        "-verbosity=1",
        str(corpus),
    ]
    child = [sys.executable, "-m", "tests.fuzz", name, "--child=" + "\n".join(flags)]
    log = folder / "log"
    with log.open("wb") as output:
        done = subprocess.run(
            child, stdin=subprocess.DEVNULL, stdout=output, stderr=output, timeout=seconds + 300, check=False
        )
    text = log.read_text(errors="replace")
    figures = re.findall(r"stat::(number_of_executed_units|peak_rss_mb|slowest_unit_time_sec):\s+(\d+)", text)
    covered = re.findall(r"cov: (\d+)", text)
    shown = ", ".join(f"{what.replace('_', ' ')} {value}" for what, value in figures)
    left = sorted(path.name for path in found.iterdir() if not path.name.startswith("slow-unit"))
    ended = "ok" if done.returncode == 0 and not left else f"FOUND {', '.join(left) or 'see the log'}"
    print(
        f"{name}: {ended}; {minutes:g} minutes, {shown}, edges {covered[-1] if covered else '?'}; {folder}", flush=True
    )
    return int(ended != "ok")


def fuzz(name: str, flags: list[str]) -> int:
    """Fuzz one reader in this process, which ends with it."""
    import atheris  # type: ignore[import-not-found]

    with atheris.instrument_imports(include=INSTRUMENTED):
        from tests.fuzz.targets import TARGETS
    target = TARGETS[name]
    corpus = Path(flags[-1])
    for number, seed in enumerate(target.seeds()):
        (corpus / f"seed-{number}").write_bytes(seed[:LONGEST_BYTES])
    atheris.Setup([sys.argv[0], *flags], target.try_one)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
