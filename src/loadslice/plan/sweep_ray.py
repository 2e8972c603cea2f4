"""The one door to Ray for searches: the same judge on a cluster that the user names."""

import os
import socket
from collections.abc import Iterator
from typing import Any

from loadslice.plan.fleet.judge import Judge, Verdict
from loadslice.plan.sweep import Job, Ledger, Runner
from loadslice.spec.errors import InputError, MissingExtraError

KNOCK_S = 5.0
ATTEMPTS = 3
"""A node that goes away takes its simulations with it; each is started anew this often."""


def connect(address: str, jobs: int | None = None) -> Any:
    """Ray, connected; before a search, so that one who waited for it is not told afterwards.

    Args:
        address: As ``ray.init`` takes it; ``local`` starts a cluster of one machine for this run.
        jobs: Processors of a local cluster; ``None``: all.

    Raises:
        MissingExtraError: Ray is not installed.
        InputError: No cluster answers there.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("ray", "a search on a cluster") from error
    _knock(address)
    try:
        ray.init(
            address=address,
            num_cpus=jobs if address == "local" else None,
            ignore_reinit_error=True,
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise _nobody(address) from error
    return ray


def _knock(address: str) -> None:
    """Ray itself tries an address at which nobody listens for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), timeout=KNOCK_S).close()
    except (OSError, OverflowError) as error:
        raise _nobody(address) from error


def _nobody(address: str) -> InputError:
    return InputError(f"--ray {address}: no cluster answers there. Start one with `ray start --head`.")


def cluster(judge: Judge, address: str, ledger: Ledger, jobs: int | None = None) -> Runner:
    """Judge on a Ray cluster, as many at a time as it has processors.

    Args:
        judge: Sent once; traffic and times travel with it.
        address: As `connect` takes it.
        ledger: Asked and written to here, for the cluster's machines may not see its file.
        jobs: Processors of a local cluster; ``None``: all.

    Raises:
        MissingExtraError: Ray is not installed.
        InputError: No cluster answers there.
    """
    return _runner(connect(address, jobs), judge, ledger)


_OWN: dict[int, Judge] = {}


def _own(judge: Judge, key: int) -> Judge:
    """A judge whose arrays may be written to: Ray's may not, and for those every kernel would be compiled again."""
    if key not in _OWN:
        _OWN.clear()
        _OWN[key] = judge.copied()
    return _OWN[key]


def _runner(ray: Any, judge: Judge, ledger: Ledger) -> Runner:
    def simulate(sent: Judge, key: int, job: Job) -> Verdict | None:
        return _own(sent, key)(job[1], job[2])

    remote = ray.remote(max_retries=ATTEMPTS)(simulate)
    shared, key = ray.put(judge), id(judge)
    processors = max(1, int(ray.cluster_resources().get("CPU", 1)))

    def run(wanted: Iterator[Job]) -> Iterator[tuple[int, Verdict | None]]:
        running: dict[Any, int] = {}
        while True:
            while len(running) < processors and (job := next(wanted, None)) is not None:
                known = ledger.known(job[1], job[2])
                if known is not None:
                    yield job[0], known
                    continue
                running[remote.remote(shared, key, job)] = job[0]
            if not running:
                return
            done, _ = ray.wait(list(running), num_returns=1)
            for reference in done:
                verdict = ray.get(reference)
                ledger.keep(verdict)
                yield running.pop(reference), verdict

    return run
