"""A rollout whose server ends at the worst moments: its record and the repository never tell different things."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from loadslice.serve.rollout import Rollout
from loadslice.serve.rollout_versions import promoted
from loadslice.serve.serving import Serving
from loadslice.serve.state_file import StateFile
from loadslice.spec import pipeline as pipelines
from loadslice.spec.errors import InputError
from loadslice.spec.rollout import RolloutPlan

PIPELINE = """
version: 1
pipeline: m
rollout: {steps: [0.5, 1.0]}
engines: {host: {backend: python}}
stages: [{name: work, python: "a:old", engine: host, canary: {python: "a:new"}}]
"""


class KilledError(BaseException):
    """The server ends here."""


class Repository:
    """Two versions, of which the second is the first one's canary; the server is killed before or after it is told."""

    def __init__(self, folder: Path) -> None:
        (folder / "m.yaml").write_text(PIPELINE)
        paired = pipelines.load(folder / "m.yaml")
        self._paired = Serving(paired, folder, version="1")
        stages = [msgspec.structs.replace(stage, canary=None) for stage in paired.stages]
        old = msgspec.structs.replace(paired, stages=stages)
        self._served = {"1": Serving(old, folder, version="1"), "2": Serving(promoted(paired), folder, version="2")}
        self.current = "1"
        self.killed: str | None = None

    def now(self) -> Serving:
        return self._served[self.current]

    def beside(self, _version: str) -> Serving:
        return self._paired

    def adopt(self, version: str) -> None:
        self._make_current(version)

    def revert(self) -> None:
        self._make_current("1")

    def _make_current(self, version: str) -> None:
        if self.killed == "before":
            raise KilledError
        self.current = version
        if self.killed == "after":
            raise KilledError


class Host:
    """A server as far as a rollout sees it: what serves, and its being started again on the same state file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.repository = Repository(folder)
        self.refuses = False
        self.start()

    def start(self) -> None:
        self.file = StateFile(self._folder / "state.sqlite")
        self.rollout = Rollout(self.file, self._switch, self._generation, versions=self.repository)
        self.serves = self.rollout.first(self.repository.now())
        self.rollout.begin(self.repository.now())

    def _generation(self) -> Any:
        return SimpleNamespace(pipeline=self.serves.pipeline, shell=None)

    async def _switch(self, serving: Serving | None) -> None:
        if self.refuses:
            raise InputError("it does not load.")
        stable = self.repository.now()
        self.serves = self.rollout.apply(stable) if serving is None else serving
        if serving is None:
            self.rollout.begin(stable)

    def end(self) -> None:
        self.rollout.stop()
        self.file.close()

    def says(self) -> tuple[str, str | None, float]:
        status = self.rollout.status()
        assert status["serves"] == self.repository.current
        return status["state"], self.serves.pipeline.stages[0].python, status["weight"]


def play(folder: Path, scene: Callable[[Host], Any]) -> None:
    async def run() -> None:
        host = Host(folder)
        await host.rollout.start("2", RolloutPlan(look_s=1000.0))
        try:
            await scene(host)
        finally:
            host.end()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("killed", "then"), [("before", ("running", "a:old", 0.5)), ("after", ("promoted", "a:new", 1.0))]
)
def test_killed_while_it_is_promoted_it_runs_or_is_promoted_as_the_repository_says(tmp_path, killed, then) -> None:
    async def scene(host: Host) -> None:
        host.repository.killed = killed
        with pytest.raises(KilledError):
            await host.rollout.promote(force=True)
        host.repository.killed = None
        host.file.close()  # and nothing more is written
        host.start()
        assert host.says() == then
        if then[0] == "running":
            await host.rollout.promote(force=True)
        assert host.says() == ("promoted", "a:new", 1.0)

    play(tmp_path, scene)


@pytest.mark.parametrize(
    ("killed", "then"), [("before", ("promoted", "a:new", 1.0)), ("after", ("rolled_back", "a:old", 0.0))]
)
def test_killed_while_it_is_rolled_back_it_is_promoted_or_not_as_the_repository_says(tmp_path, killed, then) -> None:
    async def scene(host: Host) -> None:
        await host.rollout.promote(force=True)
        host.repository.killed = killed
        with pytest.raises(KilledError):
            await host.rollout.roll_back()
        host.repository.killed = None
        host.file.close()
        host.start()
        assert host.says() == then

    play(tmp_path, scene)


def test_a_version_that_does_not_load_is_not_promoted_after_a_restart_either(tmp_path) -> None:
    async def scene(host: Host) -> None:
        host.refuses = True
        with pytest.raises(InputError, match="does not load"):
            await host.rollout.promote(force=True)
        assert host.says() == ("running", "a:old", 0.5)
        host.end()
        host.start()
        assert host.says() == ("running", "a:old", 0.5)

    play(tmp_path, scene)


def test_what_was_chosen_since_is_not_rolled_back(tmp_path) -> None:
    async def scene(host: Host) -> None:
        await host.rollout.promote(force=True)
        host.repository.current = "1"
        await host._switch(None)
        with pytest.raises(InputError, match="version '1' serves, not '2'"):
            await host.rollout.roll_back()

    play(tmp_path, scene)
