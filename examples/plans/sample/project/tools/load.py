"""Puts load on the service and prints what came of it as JSON. The same seed gives the same requests."""

import argparse
import json
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from relay.message import Request
from relay.pool import Pool
from relay.service import Service
from relay.tally import Tally


class Upstream:
    """A service behind ours: it is too slow for a while at each burst, or for the share of requests that is asked."""

    def __init__(self, payload: str, burst: bool, slow: float, seed: int) -> None:
        self._answer = "x" * (20 if payload == "small" else 20_000)
        self._burst, self._slow = burst, slow
        self._random, self._lock, self._number = random.Random(seed), threading.Lock(), 0
        self.timeouts = 0

    def __call__(self, path: str) -> str:
        with self._lock:
            self._number += 1
            late = (self._burst and self._number % 10 == 0) or self._random.random() < self._slow
            self.timeouts += late
        if late:
            raise TimeoutError(f"{path} took too long")
        time.sleep(0.001)
        return self._answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--load", choices=("light", "heavy"), default="light")
    parser.add_argument("--payload", choices=("small", "large"), default="small")
    parser.add_argument("--burst", choices=("on", "off"), default="off")
    parser.add_argument("--slow-upstream", type=float, default=0.0, help="share of requests")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    threads, requests = (2, 40) if asked.load == "light" else (8, 160)
    upstream = Upstream(asked.payload, asked.burst == "on", asked.slow_upstream, asked.seed)
    pool, tally = Pool(8), Tally()
    service = Service(upstream, pool, tally)
    with ThreadPoolExecutor(threads) as workers:
        answers = list(workers.map(service.handle, [Request("GET", f"/{n}") for n in range(requests)]))
    counts = tally.counts()
    print(
        json.dumps(
            {
                "load": asked.load,
                "payload": asked.payload,
                "burst": asked.burst,
                "requests": requests,
                "errors": sum(answer.status == 500 for answer in answers),
                "counted": sum(counts.values()),
                "upstream_timeouts": upstream.timeouts,
                "pool_most": pool.most,
                "pool_in_vain": pool.in_vain,
            }
        )
    )


if __name__ == "__main__":
    main()
