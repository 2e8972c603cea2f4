"""The one door to Ray for searches: the same judge on a cluster that the user names."""

import os
from collections.abc import Iterator
from itertools import islice
from typing import Any

from loadslice.plan.fleet.judge import Verdict
from loadslice.plan.sweep import Job, Judging, Runner
from loadslice.spec.errors import InputError, MissingExtraError

ATTEMPTS = 3
"""A node that goes away takes its simulations with it; each is started anew this often."""


def cluster(judge: Judging, address: str) -> Runner:
    """Judge on a Ray cluster, as many at a time as it has processors.

    Args:
        judge: Sent once; traffic and times travel with it.
        address: As ``ray.init`` takes it; ``local`` starts a cluster of one machine for this run.

    Raises:
        MissingExtraError: Ray is not installed.
        InputError: No cluster answers there.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("ray", "a search on a cluster") from error
    try:
        ray.init(
            address=None if address == "local" else address,
            ignore_reinit_error=True,
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise InputError(f"--ray {address}: no cluster answers there. Start one with `ray start --head`.") from error
    return _runner(ray, judge)


def _runner(ray: Any, judge: Judging) -> Runner:
    def simulate(sent: Judging, job: Job) -> Verdict | None:
        return sent(job[1], job[2])

    remote = ray.remote(max_retries=ATTEMPTS)(simulate)
    shared = ray.put(judge)
    processors = max(1, int(ray.cluster_resources().get("CPU", 1)))

    def run(wanted: Iterator[Job]) -> Iterator[tuple[int, Verdict | None]]:
        running: dict[Any, int] = {}
        while True:
            for job in islice(wanted, processors - len(running)):
                running[remote.remote(shared, job)] = job[0]
            if not running:
                return
            done, _ = ray.wait(list(running), num_returns=1)
            for reference in done:
                yield running.pop(reference), ray.get(reference)

    return run
