"""What the watch asks of a batch: who is in it, whose turn was it, and does nothing that could start stand still?"""

from collections.abc import Sequence

from loadslice.policy.watch_books import Books, Inside, Running, Streak
from loadslice.spec.pipeline import CLASSES


class Starting(Books):
    """Promises about what starts, and when."""

    def _dispatch(self, row: Sequence[int], tags: tuple[int, ...]) -> None:
        slot, engine, stage, bucket, epoch = row
        assert self._engine_of_slot[slot] == engine, "(12) a slot is one engine's"
        assert self._running[slot] is None, "(12) in flight within the quota"
        assert epoch > self._epochs[slot], "(20) every batch has an epoch of its own"
        assert self._up[engine], "(27) a lost engine starts nothing"
        assert tags, "(25) no batch is empty"
        assert all(tag in self.inside for tag in tags), "(2) who has ended is not dispatched"
        members = [self.inside[tag] for tag in tags]
        for member in members:
            assert member in self._waiting[engine], "(5) only what waits there is dispatched"
            assert member.lane == (stage, bucket), "(25) one stage and one bucket per batch"
            assert member.deadline_ns > self._now_ns, "(25) nobody past a deadline is dispatched"
        batch = self._batch_of(engine, stage)
        rows = sum(member.items for member in members)
        assert rows <= batch.size or len(members) == 1, "(25) rows within the batch size"
        self._check_order(engine, members)
        self._check_turn(engine, members)
        self._waiting[engine] = [request for request in self._waiting[engine] if request not in members]
        self._epochs[slot] = epoch
        self._running[slot] = Running(engine, epoch, tags, members, (stage, bucket), rows, self._now_ns)

    def _check_order(self, engine: int, members: list[Inside]) -> None:
        lane = members[0].lane
        for priority in range(len(CLASSES)):
            fifo = [one for one in self._waiting[engine] if one.lane == lane and one.priority == priority]
            taken = [member for member in members if member.priority == priority]
            for tenant in {member.tenant for member in taken}:
                theirs = [member for member in taken if member.tenant == tenant]
                assert theirs == [one for one in fifo if one.tenant == tenant][: len(theirs)], (
                    "(7) first in, first out inside a class and a lane"
                )
            lower = any(member.priority > priority for member in members[1:])
            assert not lower or len(taken) == len(fifo), "(6) nobody of a lower class overtakes in a batch"

    def _check_turn(self, engine: int, members: list[Inside]) -> None:
        first = members[0]
        if self._settings[engine].memory_mb is not None:
            return  # which models could be loaded does not show
        ready = [one for one in self._heads(engine) if self._is_surely_ready(engine, one)]
        assert not self._is_held_back(engine, first), "(6) an offline class starts only while no other waits"
        higher = any(one.priority < first.priority for one in ready)
        dropped = {priority for where, priority in self._told.dropped if where == engine}
        classes = dropped | {one.priority for one in self._waiting[engine]}
        self._leads[engine].start(first.priority, classes, inverted=higher)
        if not self._pipeline.tenants and not any(
            self._names[engine] in stage.share for stage in self._pipeline.stages
        ):
            for one in ready:
                earlier = (one.arrived_ns, one.sequence) < (first.arrived_ns, first.sequence)
                assert one.priority != first.priority or not earlier, "(7) what arrived first starts first in its class"
        owed = sum(floor > 0 for floor in self._floors)
        for priority, floor in enumerate(self._floors):
            streak = self._streaks[engine][priority]
            if not any(one.priority == priority for one in ready):
                self._streaks[engine][priority] = Streak()
                continue
            streak.dispatches += 1
            streak.own += any(member.priority == priority for member in members)
            assert streak.own >= floor * streak.dispatches - owed, "(9) a class that waits gets its floor"

    def _check_conserving(self, engine: int) -> None:
        if not self._up[engine] or not self._has_free_slot(engine) or self._settings[engine].memory_mb is not None:
            return
        for head in self._heads(engine):
            assert not self._is_surely_ready(engine, head), "(26) no free slot beside work that could start"
