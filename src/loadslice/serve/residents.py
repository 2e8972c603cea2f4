"""Models on an engine whose memory does not hold them all: loaded and dropped as the core says.

The core decides at each dispatch which models are there (`policy.residency`); the worker that takes the batch up makes
it so. Rules of this file: what is dropped goes before what is loaded comes, so that memory never holds more than the
core thinks; it is always the newest word of the core that counts, because workers may take batches up in another order
than they were dispatched in; a model that runs is in that word.
"""

import threading
from collections.abc import Mapping, Sequence

from loadslice.policy.layout import State
from loadslice.serve.runners import Runner
from loadslice.serve.stages import LoadedStage, goes_by_turns
from loadslice.spec.pipeline import Pipeline


class Residents:
    """The models of one engine.

    Args:
        runners: By stage index; those whose models are loaded are the residents.
    """

    def __init__(self, runners: Mapping[int, Runner]) -> None:
        self._runners = runners
        self._lock = threading.Lock()
        self.wanted = frozenset(stage for stage, runner in runners.items() if runner.is_open)
        """Stages whose models are there, as the core last said; set on the loop's thread."""

    def make_room_for(self, stage: int) -> None:
        """Drop what the core has dropped, then load a stage's model where it is not there; on a worker's thread.

        Raises:
            InputError: The model cannot be loaded any more.
        """
        with self._lock:
            for other, runner in self._runners.items():
                if other not in self.wanted and runner.is_open:
                    runner.close()
            self._runners[stage].open()

    def probe(self, slot: int) -> None:
        """Do the smallest piece of real work with every model that is there; nothing is dropped meanwhile.

        Raises:
            EngineError: The runtime failed.
        """
        with self._lock:
            for runner in self._runners.values():
                if runner.is_open:
                    runner.probe(slot)


def open_first(pipeline: Pipeline, stages: Sequence[LoadedStage], state: State) -> None:
    """Load the models that the core takes to be there when a run begins.

    Raises:
        InputError: One cannot be loaded.
    """
    for engine, name in enumerate(pipeline.engines):
        if goes_by_turns(pipeline, name):
            for stage, loaded in enumerate(stages):
                if engine in loaded.stable.runners and state.resident[engine, stage] >= 0:
                    loaded.stable.runners[engine].open()


def residents_of(pipeline: Pipeline, stages: Sequence[LoadedStage]) -> dict[int, Residents]:
    """Residents by engine index, of the engines that do not hold all their models."""
    return {
        engine: Residents(
            {
                stage: loaded.stable.runners[engine]
                for stage, loaded in enumerate(stages)
                if engine in loaded.stable.runners
            }
        )
        for engine, name in enumerate(pipeline.engines)
        if goes_by_turns(pipeline, name)
    }


def resident_stages(state: State, engine: int) -> frozenset[int]:
    """Stages whose models are on an engine of bounded memory now."""
    return frozenset(stage for stage, used_ns in enumerate(state.resident[engine].tolist()) if used_ns >= 0)
