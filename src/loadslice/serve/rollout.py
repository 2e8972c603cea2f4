"""A rollout on a live server: start, steps, promotion, abortion, and the way back.

Rules of this file: the share of traffic moves in the core (`policy.versions`) and by nothing else; on a failure traffic
moves first, then what has happened is written down, then the canary's capacity goes; a step up is written down before
it is taken, so that a server that dies in between comes back at the lower one; what a repository is told is written
down before, so that one that dies meanwhile sees whether it was told; everything is read from the state file when the
server starts, and a rollout of another pipeline than the one that serves now is over.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from loadslice.policy import columns as c
from loadslice.serve.generation import Generation
from loadslice.serve.rollout_analysis import Finding, Value, findings, judge
from loadslice.serve.rollout_record import Record, Versions, complain, read, waited, write
from loadslice.serve.rollout_versions import at_step, check_candidate, fingerprint, has_canary, promoted, without_canary
from loadslice.serve.rollout_watch import RolloutWatch, ShadowingShell
from loadslice.serve.serving import Serving
from loadslice.serve.shell import Observer, Shell
from loadslice.serve.state_file import StateFile
from loadslice.spec.errors import InputError
from loadslice.spec.pipeline import Pipeline
from loadslice.spec.rollout import RolloutPlan, RolloutState

log = logging.getLogger(__name__)

SAVE_S = 5.0
"""How often evidence is written down between events."""
IDLE_S_MAX = 60.0
"""How long the canary's requests inside may take to end before its capacity goes anyway."""


class Rollout:
    """The rollout of one server.

    Args:
        file: Remembers it; may be shared.
        replace: Has the server load, warm and switch to something else; ``None``: to what its source says now.
        current: The server's generation now.
        versions: The repository that is served; ``None``: a pipeline file.
        monotonic_s: Never goes back.
        wall_s: Seconds since 1970; only told, never decided by.
    """

    def __init__(
        self,
        file: StateFile,
        replace: Callable[[Serving | None], Awaitable[Any]],
        current: Callable[[], Generation],
        *,
        versions: Versions | None = None,
        monotonic_s: Callable[[], float] = time.monotonic,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._file = file
        self._replace = replace
        self._current = current
        self._versions = versions
        self._monotonic_s = monotonic_s
        self._wall_s = wall_s
        self._lock = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._acting: asyncio.Task[None] | None = None
        self._looked_s = self._saved_s = monotonic_s()
        self.stable: Serving | None = None
        """What the file, or the repository, says is to be served, and is."""
        self.record = read(file)

    def first(self, stable: Serving) -> Serving:
        """What to start with; a candidate that cannot be served any more ends its rollout, and the stable one serves.

        Args:
            stable: As the source gives it.
        """
        record, towards = self.record, self.record.towards
        if towards != "none" and (stable.version == record.candidate) == (towards == "promoted"):
            self._close(towards, "the server ended before that was written down")
        record.towards = "none"
        try:
            return self.apply(stable)
        except InputError as error:
            log.error("the rollout that was running is over: %s", error)
            self._close("aborted", "the candidate could not be served any more")
            return stable

    def apply(self, stable: Serving) -> Serving:
        """What is to be served, given what the file says and what has happened.

        Args:
            stable: As the source gives it.

        Raises:
            InputError: The candidate of a rollout that runs cannot be served any more.
        """
        record = self.record
        if record.state == "none" or record.about != self._about(stable):
            return stable
        if record.state == "running":
            return self._paired(stable, record.candidate, record.step)
        if record.candidate is not None:
            return stable
        pipeline = promoted(stable.pipeline) if record.state == "promoted" else without_canary(stable.pipeline)
        return replace(stable, pipeline=pipeline)

    def _about(self, stable: Serving) -> str:
        return fingerprint(stable.pipeline, stable.version)

    def _paired(self, stable: Serving, candidate: str | None, step: int) -> Serving:
        if candidate is None:
            return replace(stable, pipeline=at_step(stable.pipeline, step))
        assert self._versions is not None
        paired = self._versions.beside(candidate)
        return replace(paired, pipeline=at_step(paired.pipeline, step))

    def shell(self, pipeline: Pipeline, observer: Observer, record: Callable[[Any], None], **arguments: Any) -> Shell:
        """What decides for a pipeline; with a canary under way, one that looks on and asks it some requests again."""
        if self.record.state != "running" or not has_canary(pipeline):
            return Shell(observer=observer, **arguments)
        watch = RolloutWatch(pipeline, self.record.plan, self.record.evidence, observer)
        return ShadowingShell(watch, self.record.plan, record, **arguments)

    def begin(self, stable: Serving) -> None:
        """Look at the signals from now on; called once the server is ready, and after every switch.

        Args:
            stable: What `apply` was given for what serves now.
        """
        self.stable = stable
        if self.record.state == "running" and self.record.about != self._about(stable):
            self._close("aborted", "what is served has changed")
        self._looked_s = self._monotonic_s()
        if self._timer is None:
            self._arm()

    def stop(self) -> None:
        """Look no more, and have what there is written down."""
        if self._timer is not None:
            self._timer.cancel()
        if self._acting is not None:
            self._acting.cancel()
        if self.record.state == "running":
            self._save()

    async def start(self, candidate: str | None, plan: RolloutPlan) -> None:
        """Begin: the canary is loaded and warmed beside, then gets the first step's share.

        Args:
            candidate: Version of the repository; ``None``: the canaries that the pipeline file has.
            plan: How it is judged.

        Raises:
            InputError: One runs already, or there is nothing that could be rolled out.
        """
        async with self._lock:
            if self.record.state == "running":
                raise InputError("a rollout runs already; see `loadslice rollout status`, or abort it first.")
            stable = self.stable
            if stable is None:
                raise InputError("models are being loaded.")
            check_candidate(stable.pipeline, candidate, is_repository=self._versions is not None)
            before = self.record
            self.record = Record(
                state="running",
                step=1,
                since=self._now(),
                candidate=candidate,
                about=self._about(stable),
                plan=plan,
            )
            try:
                serving = await asyncio.to_thread(self._paired, stable, candidate, 1)
                if serving.pipeline.rollout.steps[:1] == []:
                    raise InputError("rollout.steps: at least one share is needed.")
                await waited(self._save("started", candidate or "canaries of the pipeline file"))
                await self._replace(serving)
            except BaseException:
                self.record = before
                self._save("not started", candidate or "canaries of the pipeline file")
                raise
            self._looked_s = self._monotonic_s()

    def status(self) -> dict[str, Any]:
        """Where it stands; what `loadslice rollout status --json` prints."""
        record, serves = self.record, None if self.stable is None else self.stable.version
        running = record.state == "running"
        found = findings(record.plan, record.evidence, self._monotonic_s()) if running else record.last
        finding = self._judge() if running else Finding(decision=record.decision, why=record.why)
        return record.status(finding, found, self._steps(), serves)

    async def promote(self, *, force: bool) -> None:
        """Take the next step; after the last, the new version alone.

        Args:
            force: Even though it has not been shown to be well.

        Raises:
            InputError: None runs, or it has not been shown and is not forced.
        """
        async with self._lock:
            self._must_run()
            finding = self._judge()
            if finding.decision != "pass" and not force:
                raise InputError(f"not shown to be well: {finding.why}. Wait, or say --force.")
            await self._advance("forced" if force and finding.decision != "pass" else "passed")

    async def abort(self, why: str = "by order", state: RolloutState = "aborted") -> None:
        """Give all traffic to the stable version, then free the canary's capacity.

        Raises:
            InputError: None runs.
        """
        async with self._lock:
            self._must_run()
            await self._turn_back(why, state)

    async def roll_back(self) -> None:
        """Go back to the version before: of a rollout that runs, or of one that was promoted.

        Raises:
            InputError: There is nothing to go back from.
        """
        if self.record.state == "running":
            await self.abort("rolled back by order", "rolled_back")
            return
        async with self._lock:
            if self.record.state != "promoted" or self.stable is None:
                raise InputError("no rollout runs and none was promoted; there is nothing to go back from.")
            if self.record.candidate is None:
                await self._replace(replace(self.stable, pipeline=without_canary(self.stable.pipeline)))
                await self._end("rolled_back", "rolled back by order")
                return
            assert self._versions is not None
            if self.stable.version != self.record.candidate:
                raise InputError(
                    f"version '{self.stable.version}' serves, not '{self.record.candidate}', which was promoted; "
                    "choose one with `loadslice model use`."
                )
            await self._tell("rolled_back", self._versions.revert)
            await self._end("rolled_back", "rolled back by order")
            await self._replace(None)

    def post(self, name: str, stable: float | None, canary: float | None) -> None:
        """Take in a business metric.

        Raises:
            InputError: The plan has none of that name.
        """
        self._must_run()
        if name not in self.record.plan.metrics:
            known = ", ".join(self.record.plan.metrics) or "none"
            raise InputError(f"metric '{name:.64}' is not in the rollout's plan ({known}).")
        self.record.evidence.values[name] = Value(stable=stable, canary=canary, at_s=self._monotonic_s())

    async def look(self) -> None:
        """Look at the signals and do what follows; called by a timer."""
        now_s = self._monotonic_s()
        passed_s, self._looked_s = now_s - self._looked_s, now_s
        if self.record.state != "running" or self._lock.locked():
            return
        self.record.dwelt_s += passed_s
        self.record.evidence.close_window()
        finding = self._judge()
        if finding.decision == "fail":
            async with self._lock:
                await self._turn_back(finding.why, "rolled_back")
        elif finding.decision == "pass" and self.record.plan.automatic:
            async with self._lock:
                await self._advance("passed")
        elif now_s - self._saved_s >= SAVE_S:
            self._save()

    def _judge(self) -> Finding:
        record = self.record
        return judge(record.plan, record.evidence, record.dwelt_s, record.dwell_s, self._monotonic_s())

    def _must_run(self) -> None:
        if self.record.state != "running":
            raise InputError("no rollout runs; start one with `loadslice rollout start`.")

    def _steps(self) -> list[float]:
        return self._current().pipeline.rollout.steps

    async def _advance(self, how: str) -> None:
        """One step up; where no baseline would be left beside the canary, that is the new version alone."""
        record = self.record
        steps = self._steps()
        if record.step < len(steps) and steps[record.step] < 1:
            record.last = findings(record.plan, record.evidence, self._monotonic_s())
            record.step += 1
            record.since, record.dwelt_s = self._now(), 0.0
            record.evidence.next_step()
            try:
                await waited(self._save("step", f"{how}: {steps[record.step - 1]:g} of the traffic"))
            except InputError:
                record.step -= 1
                raise
            shell = self._current().shell
            assert shell is not None
            shell.rollout(c.PASS)
            return
        await self._promote(how)

    async def _promote(self, how: str) -> None:
        record, stable = self.record, self.stable
        assert stable is not None
        if record.candidate is None:
            await self._replace(replace(stable, pipeline=promoted(stable.pipeline)))
            await self._end("promoted", how)
            return
        assert self._versions is not None
        await self._tell("promoted", self._versions.adopt, record.candidate)
        await self._end("promoted", how)
        try:
            await self._replace(None)
        except InputError:
            # Both versions are still loaded, and the canary still has its share.
            record.state = "running"
            await self._tell("promoted", self._versions.revert)
            record.towards = "none"
            self._save("promotion failed", record.candidate)
            raise

    async def _tell(self, towards: RolloutState, tell: Callable[..., None], *arguments: str) -> None:
        """Tell the repository something, which may or may not bring the rollout to another state.

        Raises:
            InputError: It does not take it, or it cannot be written down that it is told.
        """
        self.record.towards = towards
        try:
            await waited(self._save())
            await asyncio.to_thread(tell, *arguments)
        except InputError:
            self.record.towards = "none"
            raise

    async def _turn_back(self, why: str, state: RolloutState) -> None:
        generation = self._current()
        shell = generation.shell
        assert shell is not None
        shell.rollout(c.FAIL)
        await self._end(state, why)
        log.warning("the canary gets no more traffic: %s", why)
        began_s = self._monotonic_s()
        while int(generation.state.counters[c.C_CANARY_INSIDE]) and self._monotonic_s() - began_s < IDLE_S_MAX:
            await asyncio.wait((asyncio.get_running_loop().create_future(),), timeout=0.05)
        stable = self.stable
        assert stable is not None
        try:
            await self._replace(replace(stable, pipeline=without_canary(stable.pipeline)))
        except InputError as error:
            log.error("the canary gets nothing, but its capacity could not be freed: %s", error)

    def _close(self, state: RolloutState, why: str) -> "Future[None]":
        """It is over, and that is being written down."""
        record = self.record
        finding = self._judge()
        record.last = findings(record.plan, record.evidence, self._monotonic_s())
        record.state, record.towards, record.why, record.since = state, "none", why, self._now()
        record.decision = finding.decision
        if state != "promoted":
            record.step = 0
        return self._save(state, why)

    async def _end(self, state: RolloutState, why: str) -> None:
        """The same, and wait until that stands written."""
        with contextlib.suppress(InputError):  # traffic has moved; a restart would only judge the same evidence again
            await waited(self._close(state, why))

    def _save(self, event: str = "", detail: str = "") -> "Future[None]":
        """Have everything written down."""
        self._saved_s = self._monotonic_s()
        written = write(self._file, self.record, self._now(), event, detail)
        written.add_done_callback(complain)
        return written

    def _now(self) -> str:
        return datetime.fromtimestamp(self._wall_s(), UTC).isoformat(timespec="seconds")

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self.record.plan.look_s, self._fire)

    def _fire(self) -> None:
        if self._acting is None or self._acting.done():
            self._acting = asyncio.get_running_loop().create_task(self._look_well())
        self._arm()

    async def _look_well(self) -> None:
        try:
            await self.look()
        except InputError as error:
            log.error("the rollout stands still: %s", error)
