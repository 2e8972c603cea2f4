"""Holds a stream of events and effects, live or simulated, to the promises that show in it.

`invariants.check` looks at the state between two events; `Watch` looks at what was said, and keeps its own books about
it: who waits where and in which order, what runs, what was spent. It shares nothing with the kernels and needs no
state; what does not show in what was said it holds between the bounds of `watch_bounds`. Numbers in brackets are those
of the list in `invariants`.

    watch = Watch(pipeline, tables)
    watch.event(events.ARRIVAL, now_ns, arguments)
    watch.effects(rows, members)

`follow` does this for an event log, and looks at the state too.
"""

from collections.abc import Sequence

import numpy as np

from loadslice.policy import columns as c
from loadslice.policy import events, invariants
from loadslice.policy.layout import Int64s, State, Tables
from loadslice.policy.watch_books import NS_PER_S, Inside, Told
from loadslice.policy.watch_ending import Ending
from loadslice.policy.watch_placing import Placing
from loadslice.policy.watch_starting import Starting
from loadslice.spec.outcome import Outcome, Reason
from loadslice.spec.pipeline import Pipeline

AT_THE_DOOR = {Reason.DRAINING, Reason.TABLE_FULL, Reason.RETRY_BUDGET}
"""Refused before it had a place inside; it pays nothing into the retry budget."""


class Watch(Placing, Ending, Starting):
    """Call `event`, then `effects` with what it said, for every event in order.

    Either raises an AssertionError that names the promise which was broken.
    """

    def event(
        self, kind: int, now_ns: int, arguments: Sequence[int] = (), results: Sequence[tuple[int, int]] = ()
    ) -> None:
        """Take one event.

        Args:
            kind: As in `events`.
            now_ns: Time since the run began.
            arguments: As in a row of the event log.
            results: Of a BATCH_DONE: rows and bucket at the next stage, for each member.
        """
        assert now_ns >= self._now_ns, "(5) the clock never goes back"
        self._earn((now_ns - self._now_ns) * round(self._pipeline.retry.per_s * c.PPM))
        self._now_ns = now_ns
        self._told = Told(kind, tuple(arguments))
        if kind == events.BATCH_DONE and self._applies():
            batch = self._running[arguments[0]]
            assert batch is not None
            assert len(results) == len(batch.tags), "(5) a batch done has a result for each member"
            self._told.results = dict(zip(batch.tags, results, strict=True))
            self._despair.took(batch.lane[0], batch.engine, batch.lane[1], batch.rows, now_ns - batch.started_ns)

    def effects(self, rows: Sequence[Sequence[int]], members: Sequence[Sequence[int]]) -> None:
        """Take what the event said.

        Args:
            rows: Effects in order; none for an event that was refused.
            members: Tags of the members, for each DISPATCH in order.
        """
        if not self._applies():
            assert not rows, "(20) what does not apply says nothing"
            return
        told = self._told
        self._begin(rows)
        batches = iter(members)
        for number, row in enumerate(rows):
            if row[0] == c.PLACED:
                self._placed(*row[1:6])
            elif row[0] == c.OUTCOME:
                following = rows[number + 1] if number + 1 < len(rows) else ()
                self._outcome(row[1], Outcome(row[2]), Reason(row[3]), row[4:6], following)
            else:
                assert row[0] == c.DISPATCH, f"an effect of kind {row[0]}"
                self._dispatch(row[1:6], tuple(next(batches)))
        assert not told.leaving, "(27) nobody is forgotten in a batch that has ended"
        assert len(self.inside) <= self._pipeline.max_requests, "(11) requests inside within max_requests"
        if told.kind == events.ENGINE_DOWN:
            assert not self._waiting[told.arguments[0]], "(27) nobody waits for a lost engine"
        if told.kind == events.TIMER:
            told.touched.update(range(len(self._names)))
            for request in self.inside.values():
                assert self._now_ns < self._ends_ns(request), "(25) nobody stays past a deadline or a stage timeout"
        if told.kind == events.ROLLOUT and told.arguments[0] == c.FAIL:
            waiting = [request for queue in self._waiting for request in queue if request.stage == 0]
            assert not any(request.version for request in waiting), (
                "(28) who waits for a failed version gets the old one"
            )
        for engine in told.touched:
            self._check_conserving(engine)

    def _applies(self) -> bool:
        kind, arguments = self._told.kind, self._told.arguments
        if kind in {events.BATCH_DONE, events.BATCH_FAILED}:
            batch = self._running[arguments[0]] if 0 <= arguments[0] < len(self._running) else None
            return batch is not None and batch.epoch == arguments[1]
        if kind == events.CANCEL:
            request = self.inside.get(arguments[1])
            return request is not None and request.row == arguments[0]
        if kind in {events.ENGINE_DOWN, events.ENGINE_UP}:
            known = 0 <= arguments[0] < len(self._up)
            return known and self._up[arguments[0]] == (kind == events.ENGINE_DOWN)
        return kind != events.ROLLOUT or self._split.step > 0

    def _begin(self, rows: Sequence[Sequence[int]]) -> None:
        kind, arguments = self._told.kind, self._told.arguments
        if kind == events.ARRIVAL:
            refused = rows[0][0] == c.OUTCOME and rows[0][3] in AT_THE_DOOR
            self._arrive(arguments, refused=refused)
        elif kind in {events.BATCH_DONE, events.BATCH_FAILED}:
            self._end_batch(arguments[0])
        elif kind == events.ENGINE_DOWN:
            self._up[arguments[0]] = False
            for slot, batch in enumerate(self._running):
                if batch is not None and batch.engine == arguments[0]:
                    self._end_batch(slot)
        elif kind == events.ENGINE_UP:
            self._up[arguments[0]] = True
            self._told.touched.add(arguments[0])
        elif kind == events.DRAIN:
            self._draining = True
        elif kind == events.ROLLOUT:
            self._split.move(arguments[0])

    def _arrive(self, arguments: Sequence[int], *, refused: bool) -> None:
        tag, priority, deadline_ns, items, bucket, _, _, precision, attempt, tenant, key = arguments
        assert tag not in self.inside, "(2) a tag is one request's"
        assert tag not in self._ended, "(2) a tag is one request's"
        request = Inside(tag, priority, deadline_ns, items, bucket, self._now_ns, self._now_ns, tenant, precision)
        self.inside[tag] = request
        self._despair.asked(items)
        if refused:
            return
        request.version = self._split.version_for(key)
        self._set_lane(request)
        if attempt > 1:
            self._spend()
        else:
            self._earn(round(self._pipeline.retry.budget * c.PPM) * NS_PER_S)

    def _end_batch(self, slot: int) -> None:
        batch = self._running[slot]
        assert batch is not None
        self._running[slot] = None
        self._told.leaving += batch.members
        self._told.touched.add(batch.engine)


def follow(log: Int64s, pipeline: Pipeline, tables: Tables, state: State, *, look_every: int = 1) -> str:
    """Decide an event log again, one event at a time, and hold each to `Watch` and `invariants`.

    Args:
        log: [n, EVENT_COLUMNS], of whatever content.
        pipeline: As it was run.
        tables: Of this pipeline.
        state: Fresh; changed.
        look_every: Events from one look at the whole state to the next; each costs milliseconds, unlike the watch.

    Returns:
        The first promise that is broken and the row of its event; empty when all are kept.
    """
    watch = Watch(pipeline, tables)
    results = np.zeros((state.members.shape[1], 2), np.int64)
    effects = np.zeros_like(state.effects)
    starts = np.flatnonzero(log[:, 0] != events.RESULT).tolist()
    # RESULT rows before the first event are its own slice, which `decide` refuses.
    starts = starts if not len(log) or starts[:1] == [0] else [0, *starts]
    for number, (begin, end) in enumerate(zip(starts, [*starts[1:], len(log)], strict=True)):
        kind, now_ns, *arguments = log[begin].tolist()
        before = invariants.copy(state) if number % look_every == 0 else None
        count = events.decide(log[begin:end], tables, state, results, effects)
        if count == events.MALFORMED:
            row = begin + int(results[0, 0])
            return f"event row {row} cannot be one of this run: {log[row].tolist()}"
        said = effects[:count].tolist()
        slots = [row[c.F_TAG] for row in said if row[c.F_KIND] == c.DISPATCH]
        members = [state.members[slot, : state.batches[slot, c.B_COUNT], c.M_TAG].tolist() for slot in slots]
        try:
            watch.event(kind, now_ns, arguments, [(row[2], row[3]) for row in log[begin + 1 : end].tolist()])
            watch.effects(said, members)
            if before is not None:
                invariants.check(tables, state)
                invariants.check_step(tables, before, state)
        except AssertionError as error:
            return f"event row {begin}: {error}"
        except (LookupError, StopIteration, ValueError) as error:
            # What was said does not fit the watch's own books: a name it does not know, a row that is not there.
            return f"event row {begin}: what was said does not fit what came before, {error!r}"
    return ""
