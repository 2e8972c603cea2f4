"""What `/metrics` says of what is served: which generation, which version, and where its rollout stands."""

from collections.abc import Iterator
from typing import Protocol, get_args

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from loadslice.serve.rollout_record import Record
from loadslice.spec.rollout import RolloutState


class Standing(Protocol):
    """A server's rollout, as far as it is told where that stands."""

    @property
    def record(self) -> Record:
        """What is remembered of it."""


class ServingMetrics:
    """Of one generation. Labels are the states of a rollout, and the one version that is served.

    Args:
        generation: Its number.
        version: Of a repository; ``None``: a pipeline file.
        rollout: Of the server; ``None``: it has none.
    """

    def __init__(self, generation: int = 1, version: str | None = None, rollout: Standing | None = None) -> None:
        self._generation = generation
        self._version = version
        self._rollout = rollout

    def collect(self) -> Iterator[Metric]:
        """Called at each scrape."""
        yield GaugeMetricFamily(
            "loadslice_generation",
            "Generation that takes what arrives: 1, and one more after each switch to something else.",
            value=self._generation,
        )
        version = GaugeMetricFamily(
            "loadslice_version_info", "1 for the version of the repository that is served.", labels=["version"]
        )
        if self._version is not None:
            version.add_metric([self._version], 1.0)
        yield version
        state = GaugeMetricFamily(
            "loadslice_rollout_state", "1 for the state that the rollout is in, 0 for the others.", labels=["state"]
        )
        dwelt = GaugeMetricFamily("loadslice_rollout_dwelt_seconds", "Served at this step of the rollout.")
        dwell = GaugeMetricFamily("loadslice_rollout_dwell_seconds", "How long this step has to last at least.")
        if self._rollout is not None:
            record = self._rollout.record
            for name in get_args(RolloutState):
                state.add_metric([name], float(name == record.state))
            if record.state == "running":
                dwelt.add_metric([], record.dwelt_s)
                dwell.add_metric([], record.dwell_s)
        yield from (state, dwelt, dwell)
