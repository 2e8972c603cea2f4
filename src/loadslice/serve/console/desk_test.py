from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from loadslice.serve.access import Access
from loadslice.serve.console.desk import ANSWERS_MAX, BODIES_MAX, DATA, PAGE, REQUESTS, SEARCHES_MAX, ConsoleDesk
from loadslice.serve.head import Head
from loadslice.serve.refusals import RefusalError
from loadslice.spec.access import Tokens, make


class CountingView:
    """Says how often it was asked."""

    def __init__(self) -> None:
        self.number = 100
        self.asked: list[int] = []

    def turn(self) -> None:
        self.number += 1

    def document(self, since: int) -> dict[str, Any]:
        self.asked.append(since)
        return {"since": since}

    def requests(self, name: str | None, *, notable: bool) -> dict[str, Any] | None:
        return None if name == "gone" else {"name": name, "notable": notable}


def head(target: str, **headers: str) -> Head:
    return Head("GET", target, {"host": "127.0.0.1:8000"} | headers, http11=True, keeps_alive=True)


@pytest.fixture
def view() -> CountingView:
    return CountingView()


@pytest.fixture
def desk(view: CountingView) -> ConsoleDesk:
    made = ConsoleDesk(Access(None))
    made._view = view
    return made


def status(desk: ConsoleDesk, asked: Head) -> int:
    try:
        return desk.answer(asked).status
    except RefusalError as refusal:
        return refusal.status


def test_all_who_look_share_one_document_a_second(desk: ConsoleDesk, view: CountingView) -> None:
    for _ in range(10):
        desk.answer(head(f"{DATA}?since=99"))
    assert view.asked == [99]
    desk.take_in()
    desk.answer(head(f"{DATA}?since=99"))
    assert view.asked == [99, 99]


def test_answers_and_what_is_kept_of_them_are_bounded(desk: ConsoleDesk) -> None:
    found = [status(desk, head(f"{DATA}?since={number}")) for number in range(ANSWERS_MAX + 5)]
    assert found == [200] * ANSWERS_MAX + [429] * 5
    assert len(desk._bodies) == BODIES_MAX
    found = [status(desk, head(REQUESTS)) for _ in range(SEARCHES_MAX + 1)]
    assert found == [200] * SEARCHES_MAX + [429]
    desk.take_in()
    assert status(desk, head(DATA)) == 200


def test_a_viewer_of_another_run_begins_anew(desk: ConsoleDesk, view: CountingView) -> None:
    desk.answer(head(f"{DATA}?since=5000"))
    assert view.asked == [0]


@pytest.mark.parametrize("since", ["-1", "1.5", "x", "", "9" * 16, "%D9%A3", "1e3", "<b>"])
def test_a_second_that_is_none_is_refused_or_taken_as_the_first(desk: ConsoleDesk, view: CountingView, since) -> None:
    if status(desk, head(f"{DATA}?since={since}")) == 200:
        assert view.asked == [0]
    else:
        assert view.asked == []
    assert since == "" or view.asked == []


def test_long_queries_are_refused(desk: ConsoleDesk) -> None:
    assert status(desk, head(f"{REQUESTS}?id={'x' * 5000}")) == 400


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1:8000", 200),
        ("[::1]:8000", 200),
        ("192.168.1.5", 200),
        ("localhost:8000", 200),
        ("LOCALHOST", 403),
        ("evil.example", 403),
        ("127.0.0.1.evil.example:8000", 403),
        ("localhost.evil.example", 403),
        ("[::1].evil.example", 403),
    ],
)
def test_without_tokens_a_name_that_was_pointed_here_is_refused(desk: ConsoleDesk, host: str, expected: int) -> None:
    assert status(desk, head(DATA, host=host)) == expected


def test_with_tokens_single_requests_need_the_scope_admin_too(view: CountingView) -> None:
    now = datetime.now(UTC)
    metrics, measures = make("ops", scopes=["metrics"], now=now)
    both, administers = make("ops", scopes=["metrics", "admin"], now=now)
    desk = ConsoleDesk(Access(Tokens(version=1, tokens=[measures, administers])))
    desk._view = view
    assert status(desk, head(DATA, host="console.example")) == 200
    assert status(desk, head(REQUESTS, authorization=f"Bearer {metrics}")) == 403
    assert status(desk, head(REQUESTS, authorization=f"Bearer {both}")) == 200
    assert status(desk, head(REQUESTS)) == 401


def test_the_page_is_there_before_the_models_and_its_data_are_not() -> None:
    desk = ConsoleDesk(Access(None))
    assert status(desk, head(PAGE)) == 200
    assert status(desk, head(DATA)) == 503


def test_a_request_that_is_not_kept_is_not_found(desk: ConsoleDesk) -> None:
    assert status(desk, head(f"{REQUESTS}?id=gone")) == 404
    told = msgspec.json.decode(desk.answer(head(f"{REQUESTS}?id=a%26b&notable=1")).body)
    assert told == {"name": "a&b", "notable": True}


def test_a_view_that_fails_is_asked_again(desk: ConsoleDesk, view: CountingView, caplog) -> None:
    view.turn = lambda: 1 / 0  # type: ignore[method-assign,assignment,return-value]
    desk.take_in()
    assert "could not take in a second" in caplog.text
    del view.turn
    desk.take_in()
    assert view.number == 101
