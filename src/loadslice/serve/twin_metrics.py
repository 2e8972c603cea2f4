"""What `/metrics` says of engines that are emulated."""

from collections.abc import Iterator, Sequence

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from loadslice.serve.runners import ModelRunner
from loadslice.serve.stages import LoadedStage
from loadslice.spec.pipeline import Pipeline
from loadslice.spec.twin import dilation, twins


class TwinMetrics:
    """Late runs by engine, and the dilation of every time beside them."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._dilation = dilation(pipeline)
        self._engines = list(pipeline.engines)
        self._twins = twins(pipeline)
        self._runners: list[tuple[str, ModelRunner]] = []
        self._before: dict[str, int] = {}

    def watch(self, stages: Sequence[LoadedStage]) -> None:
        """Count from now on; what was late while models were warmed up was no client's."""
        self._runners = [
            (self._engines[index], runner)
            for loaded in stages
            for version in loaded.versions
            for index, runner in version.runners.items()
            if isinstance(runner, ModelRunner) and self._engines[index] in self._twins
        ]
        self._before = self._late()

    def collect(self) -> Iterator[Metric]:
        """Called at each scrape."""
        emulated = GaugeMetricFamily(
            "loadslice_dilation", "Seconds of the world for one in these metrics; 1 unless devices are emulated."
        )
        emulated.add_metric([], self._dilation)
        yield emulated
        late = CounterMetricFamily(
            "loadslice_twin_late_runs",
            "Batches that took longer on this processor than on the emulated device; their times are the processor's.",
            labels=["engine"],
        )
        for name, runs in self._late().items():
            late.add_metric([name], max(0, runs - self._before.get(name, 0)))
        yield late

    def _late(self) -> dict[str, int]:
        counts = dict.fromkeys(self._twins, 0)
        for name, runner in self._runners:
            # Asked by name: importing what makes twins would bring a library that looks into models to every server.
            counts[name] += getattr(runner.session, "late_runs", 0)
        return counts
