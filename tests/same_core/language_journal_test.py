"""A journal of the token desk gives the same decisions again, compiled and not; one that was altered is found out."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import polars as pl
import pytest

from loadslice.backends.language.messages import Sampling
from loadslice.policy.tokens import columns as c
from loadslice.policy.tokens import desk
from loadslice.policy.tokens.tables import fresh, lower
from loadslice.serve.language.journal import LanguageJournalWriter
from loadslice.serve.language.request import LanguageRequest
from loadslice.sim.finding import Finding
from loadslice.sim.language_check import check_language_journal, retake
from loadslice.spec.errors import InputError
from loadslice.spec.language import Language, LanguageEngine, Link, Router, StepCost, check_language
from loadslice.spec.language_journal import EVENTS, LanguageJournal, load_language_journal
from loadslice.spec.outcome import Outcome, Reason

COST = StepCost(step_ms=5, token_us=1000, row_us=2000)
BESIDE = {"p": {"d": 0.25}, "d": {"p": 0.5}}


def language() -> Language:
    return check_language(
        Language(
            version=1,
            language="small",
            model="m.gguf",
            context=256,
            max_sequences=12,
            engines={
                "p": LanguageEngine(backend="x", roles=("prefill",), seats=2, kv_tokens=512, cost=COST),
                "d": LanguageEngine(backend="x", seats=4, kv_tokens=512, step_tokens=64, chunk=32, queue=3, cost=COST),
            },
            links=[Link(from_="p", to="d", slots=1)],
            router=Router(policy="cost"),
        ),
        "test",
    )


SAID, SHARES = (c.GOES_ON, c.ENDS, c.LATE, c.LOST), (0.8, 0.08, 0.08, 0.04)


class Player:
    """Plays a server: calls the desk by chance, has every call kept first, and obeys what it says."""

    def __init__(self, folder: Path, seed: int) -> None:
        said = language()
        self.tables = lower(said, beside=BESIDE)
        self.state = fresh(self.tables, said.max_sequences)
        self.journal = LanguageJournalWriter(folder, said, {"p": COST, "d": COST}, BESIDE, self.tables, self.state)
        self.random = np.random.default_rng(seed)
        self.now_ns = self.tag = 0
        self.steps: dict[int, tuple[int, int]] = {}
        self.moving: dict[int, int] = {}
        self.inside: dict[int, LanguageRequest] = {}

    def call(self, kind: str, *arguments: int) -> None:
        self.journal.event(kind, self.now_ns, arguments)
        tables, state = self.tables, self.state
        answer: int | None
        if kind == "arrival":
            hits = np.array(arguments[6:], np.int64)
            tag, priority, prompt, new_max, first_by_ns, deadline_ns, *found = arguments
            hits = np.array(found, np.int64)
            desk.on_arrival(self.now_ns, tables, state, tag, priority, prompt, new_max, first_by_ns, deadline_ns, hits)
            answer = 0  # a refusal at the door has effects too
        elif kind == "step_done":
            ends = np.zeros(state.rows.shape[1], np.int64)
            ends[: len(arguments) - 2] = arguments[2:]
            answer = desk.on_step_done(self.now_ns, tables, state, arguments[0], arguments[1], ends)
        else:
            answer = getattr(desk, f"on_{kind}")(self.now_ns, tables, state, *arguments)
        if answer != c.REFUSED:
            self.obey()

    def obey(self) -> None:
        for kind, tag, row, a, b, detail in self.state.effects[: self.state.counters[c.C_EFFECTS]].tolist():
            if kind == c.PLACED:
                request = self.inside[tag]
                request.row, request.prefill, request.decode, request.places = row, a, b, request.places + 1
            elif kind == c.STEP:
                self.steps[a] = (b, detail)
            elif kind == c.HAND_OVER:
                self.moving[row] = detail
            elif kind == c.ENDED:
                request = self.inside.pop(tag)
                request.outcome, request.reason, request.end_ns = Outcome(a), Reason(b), self.now_ns
                self.journal.ended(request)

    def arrive(self) -> None:
        prompt, new = int(self.random.integers(1, 120)), int(self.random.integers(1, 40))
        request = LanguageRequest(
            list(range(prompt)), new, Sampling(), lambda _: False, lambda: None, lambda _: None, tag=self.tag
        )
        self.inside[self.tag] = request
        self.tag += 1
        hits = [int(self.random.integers(0, 2)) * (prompt - 1) // 32 * 32 for _ in range(2)]
        late_ns = self.now_ns + int(self.random.integers(10**8, 10**10))
        self.call("arrival", request.tag, int(self.random.integers(0, 4)), prompt, new, c.FOREVER, late_ns, *hits)

    def advance(self) -> None:
        self.now_ns += int(self.random.integers(10**5, 10**8))
        choice = int(self.random.integers(0, 20))
        if choice < 5:
            self.arrive()
        elif choice < 14 and self.steps:
            engine = int(self.random.choice(sorted(self.steps)))
            epoch, rows = self.steps.pop(engine)
            self.call("step_done", engine, epoch, *self.random.choice(SAID, rows, p=SHARES).tolist())
        elif choice < 17 and self.moving:
            row = int(self.random.choice(sorted(self.moving)))
            self.call("handover", row, self.moving.pop(row), int(self.random.integers(0, 3)))
        elif choice == 17 and self.inside:
            request = self.inside[int(self.random.choice(sorted(self.inside)))]
            self.call("cancel", request.row, request.tag)
        elif choice == 18:
            engine = int(self.random.integers(0, 2))
            self.steps.pop(engine, None)
            self.call("engine_down", engine)
            self.call("engine_up", engine)
        elif desk.next_timer_ns(self.state) < c.FOREVER:
            self.now_ns = max(self.now_ns, desk.next_timer_ns(self.state))
            self.call("timer")

    def end(self) -> None:
        self.call("drain")
        for request in list(self.inside.values()):
            self.call("cancel", request.row, request.tag)
        self.journal.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("journal") / "kept"
    player = Player(place, seed=7)
    for number in range(600):
        player.advance()
        if number % 200 == 0:
            player.journal.flush()
    player.end()
    return place


def test_a_disk_that_fails_is_said_when_closing_and_the_journal_is_not_clean(tmp_path: Path) -> None:
    player = Player(tmp_path / "kept", seed=3)
    (tmp_path / "kept" / "parts").rmdir()
    (tmp_path / "kept" / "parts").write_text("in the way")
    for _ in range(100):
        player.advance()
    with pytest.raises(InputError, match="cannot be written"):
        player.end()
    assert b'"clean": false' in (tmp_path / "kept" / "journal.json").read_bytes()


def broken(findings: list[Finding]) -> list[str]:
    return [one.promise for one in findings if not one.held]


def test_every_call_made_again_gives_the_same(folder: Path) -> None:
    journal = load_language_journal(folder)
    kinds = set(journal.events["kind"].unique().to_list())
    assert kinds == set(range(len(EVENTS))), "a history that shows every kind of event"
    assert journal.requests["outcome"].n_unique() >= 3
    assert broken(check_language_journal(journal)) == []


def test_compiled_or_not_the_decisions_are_the_same(folder: Path) -> None:
    program = (
        "import sys; from pathlib import Path; import numpy as np\n"
        "from loadslice.sim.language_check import check_language_journal\n"
        "from loadslice.spec.language_journal import load_language_journal\n"
        "found = check_language_journal(load_language_journal(Path(sys.argv[1])))\n"
        "print([one.promise for one in found if not one.held])\n"
    )
    for disabled in ("0", "1"):
        environment = os.environ | {"NUMBA_DISABLE_JIT": disabled}
        done = subprocess.run(
            [sys.executable, "-c", program, str(folder)], env=environment, capture_output=True, text=True, check=True
        )
        assert done.stdout == "[]\n"


def altered(journal: LanguageJournal, what: str) -> LanguageJournal:
    replace = msgspec.structs.replace
    if what == "an outcome":
        first = journal.requests.with_columns(outcome=pl.lit("failed"))
        return replace(journal, requests=first)
    if what == "an end":
        steps = journal.events["kind"].to_numpy() == EVENTS.index("step_done")
        counts = journal.events["arguments"].to_numpy().astype(np.int64)
        at = int((np.cumsum(counts) - counts)[steps][3]) + 2
        values = journal.arguments["value"].to_numpy().copy()
        values[at] ^= 1
        return replace(journal, arguments=pl.DataFrame({"value": values}))
    if what == "a call":
        return replace(journal, events=journal.events.with_columns(kind=pl.lit(99, pl.Int8)))
    if what == "the end of it":
        return replace(journal, arguments=journal.arguments.head(40))
    assert what == "a cost"
    costs = {**journal.head.costs, "p": StepCost(step_ms=50, token_us=1, row_us=1)}
    return replace(journal, head=replace(journal.head, costs=costs))


@pytest.mark.parametrize("what", ["an outcome", "an end", "a call", "the end of it", "a cost"])
def test_what_was_altered_is_found_out(folder: Path, what: str) -> None:
    assert broken(check_language_journal(altered(load_language_journal(folder), what)))


def test_a_killed_run_is_read_from_its_parts(tmp_path: Path) -> None:
    player = Player(tmp_path / "kept", seed=3)
    for _ in range(100):
        player.advance()
    player.journal.flush()
    player.journal._queue.put(None)
    player.journal._thread.join()
    journal = load_language_journal(tmp_path / "kept")
    assert broken(check_language_journal(journal)) == ["the run was closed in order"]
    again = retake(journal.events, journal.arguments, player.tables, 12)
    assert again.state.counters.tolist() == player.state.counters.tolist()
    with pytest.raises(InputError, match="holds a journal already"):
        Player(tmp_path / "kept", seed=3)
