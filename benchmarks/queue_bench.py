"""Simulators on the queues that all of them can do, beside theory: M/M/1 and M/M/4 at one utilisation each.

Each tool draws its own arrivals and services, and its processor time holds all of that, but not what it compiles once.
Ours decides every request with the whole policy core; the others have a queue. Tools that are not there are said to be
missing: ``pip install simpy ciw cimba``.
"""

import importlib.util
import math
import random
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any

import numpy as np
import polars as pl

from loadslice.sim import simulate
from loadslice.spec.latency import Entry, LatencyTable, Milliseconds
from loadslice.spec.outcome import Outcome
from loadslice.spec.pipeline import Engine, Pipeline, Queue, Stage, check

UTILISATION = {1: 0.75, 4: 0.85}
"""Servers -> share of them that is busy."""

REQUESTS = {"loadslice": 2_000_000, "cimba": 2_000_000, "simpy": 200_000, "ciw": 100_000}
"""Enough for a second or two each."""

SEED = 11
QUEUE_LIMIT = 4096
"""Queues as long as this have no measurable probability at these loads; a refusal would end the benchmark."""

Answer = tuple[float, float]
"""Processor seconds, and mean wait in the queue in mean service times."""


def theory_wait(servers: int, rate: float) -> float:
    """Mean wait in an M/M/c queue, in service times (Erlang C; Kleinrock, Queueing Systems I, sec. 3.5)."""
    terms = [rate**k / math.factorial(k) for k in range(servers)]
    last = rate**servers / math.factorial(servers) * servers / (servers - rate)
    return last / (sum(terms) + last) / (servers - rate)


def ours(servers: int, rate: float, requests: int) -> Answer:
    """This simulator; service times are 1 ms. Its mean latency less the mean service time is the wait."""
    engine = Engine(backend="twin", max_inflight=servers, queue=Queue(limit=QUEUE_LIMIT))
    pipeline = Pipeline(
        version=1,
        pipeline="queue",
        engines={"e": engine},
        stages=[Stage(name="s", variant="v", engine="e")],
        max_requests=QUEUE_LIMIT + servers,
    )
    times = Milliseconds(mean=1.0, family="exponential")
    latency = LatencyTable(entries=[Entry(variant="v", engine="e", batch=1, latency_ms=times, basis="modelled")])
    simulate.warm()
    started = time.process_time()
    gaps_s = np.random.default_rng(SEED).exponential(1e-3 / rate, requests)
    frame = pl.DataFrame({"arrival_s": np.cumsum(gaps_s)})
    tally = simulate.tallied(simulate.run(simulate.prepare(frame, check(pipeline, "queue"), latency), seed=SEED))
    took_s = time.process_time() - started
    mean_ms = tally.latency_ms().mean
    assert mean_ms is not None
    assert tally.outcomes[Outcome.COMPLETED] == requests
    return took_s, mean_ms - 1.0


def simpy_queue(servers: int, rate: float, requests: int) -> Answer:
    """SimPy: one process per customer, a resource of so many servers."""
    import simpy

    draws = random.Random(SEED)
    waits: list[float] = []

    def customer(environment: Any, desk: Any) -> Any:
        arrived = environment.now
        with desk.request() as turn:
            yield turn
            waits.append(environment.now - arrived)
            yield environment.timeout(draws.expovariate(1.0))

    def source(environment: Any, desk: Any) -> Any:
        for _ in range(requests):
            yield environment.timeout(draws.expovariate(rate))
            environment.process(customer(environment, desk))

    started = time.process_time()
    environment = simpy.Environment()
    environment.process(source(environment, simpy.Resource(environment, capacity=servers)))
    environment.run()
    return time.process_time() - started, sum(waits) / len(waits)


def ciw_queue(servers: int, rate: float, requests: int) -> Answer:
    """Ciw: a network of one node."""
    import ciw

    ciw.seed(SEED)
    started = time.process_time()
    network = ciw.create_network(
        arrival_distributions=[ciw.dists.Exponential(rate=rate)],
        service_distributions=[ciw.dists.Exponential(rate=1.0)],
        number_of_servers=[servers],
    )
    simulation = ciw.Simulation(network)
    simulation.simulate_until_max_customers(requests)
    waits = [record.waiting_time for record in simulation.get_all_records()]
    return time.process_time() - started, sum(waits) / len(waits)


def cimba_queue(servers: int, rate: float, requests: int) -> Answer:
    """Cimba: compiled; so many server processes take from one container. The wait is the mean level over the rate."""
    import cimba as cb
    from cimba import inputs

    class Servers(cb.Model):  # type: ignore[misc]
        interarrival: cb.Input[float] = inputs.dist.exponential(mean=1 / rate)
        service_time: cb.Input[float] = inputs.dist.exponential(mean=1)
        queue: cb.Container
        mean_queue: cb.Output[float]

        @cb.process
        def arrivals(self) -> None:
            while True:
                cb.hold(self.interarrival.next())
                self.queue.put(1)

        @cb.process(copies=servers)
        def server(self) -> None:
            while True:
                self.queue.get(1)
                cb.hold(self.service_time.next())

        @cb.on_end
        def measure(self) -> None:
            self.mean_queue = self.queue.mean_level()

    model = Servers()

    def level(customers: float) -> float:
        window = cb.Window(warmup=100, duration=customers / rate)
        results = cb.Experiment(model, replications=1, window=window, seed=SEED).run()
        return float(np.mean(results[model].mean_queue))

    level(1000)  # compiles
    started = time.process_time()
    waiting = level(requests)
    return time.process_time() - started, waiting / rate


TOOLS: dict[str, Callable[[int, float, int], Answer]] = {
    "cimba": cimba_queue,  # first: numba does not learn of its types once it has compiled something else
    "loadslice": ours,
    "simpy": simpy_queue,
    "ciw": ciw_queue,
}


def run() -> dict[str, Any]:
    """Measure each tool once on each queue; repeats of the benchmark interleave them."""
    figures: dict[str, Any] = {}
    for servers, utilisation in UTILISATION.items():
        rate = utilisation * servers
        queue = f"mm{servers}"
        figures[f"{queue}_theory_wait"] = theory_wait(servers, rate)
        for tool, simulated in TOOLS.items():
            if importlib.util.find_spec(tool) is None:
                figures[f"{queue}_{tool}"] = "not installed"
                continue
            took_s, wait = simulated(servers, rate, REQUESTS[tool])
            figures[f"{queue}_{tool}_requests_per_cpu_s"] = REQUESTS[tool] / took_s
            figures[f"{queue}_{tool}_wait"] = wait
    for tool in TOOLS:
        if importlib.util.find_spec(tool) is not None:
            figures[f"{tool}_version"] = metadata.version(tool)
    return figures
