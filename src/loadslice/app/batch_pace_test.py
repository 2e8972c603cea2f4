from loadslice.app.batch_pace import WAIT_S_MAX, Pace


def test_it_grows_by_one_for_each_window_that_completes_and_stops_at_its_ceiling() -> None:
    pace = Pace(8)
    seen = [pace.window]
    for _ in range(100):
        pace.completed()
        seen.append(pace.window)
    assert seen == sorted(seen)
    assert seen[-1] == 8
    assert seen[: seen.index(3)].count(2) == 3


def test_a_refusal_halves_it_and_nothing_is_sent_before_the_hint() -> None:
    pace = Pace(8)
    for _ in range(100):
        pace.completed()
    pace.refused(7, 10.0, 2.5)
    assert pace.window == 4
    assert not pace.may_send(0, 12.4)
    assert pace.may_send(0, 12.5)


def test_after_a_refusal_it_comes_back_to_one_below_and_stays_there_a_long_time() -> None:
    pace = Pace(16)
    while pace.window < 8:
        pace.completed()
    pace.refused(7, 10.0, 0.1)
    for _ in range(7):
        pace.completed()
    completed = 0
    while pace.window < 7:
        pace.completed()
        completed += 1
    assert completed < 40
    while pace.window < 8:
        pace.completed()
        completed += 1
    assert completed > 100 * 7


def test_refusals_of_requests_that_were_open_already_count_once() -> None:
    pace = Pace(8)
    for _ in range(100):
        pace.completed()
    for still_open in range(7, -1, -1):
        pace.refused(still_open, 10.0, 0.1)
    assert (pace.window, pace.refusals) == (4, 1)


def test_refusals_in_a_row_wait_longer_and_one_answer_ends_that() -> None:
    pace = Pace(4)
    waits = []
    now_s = 0.0
    for _ in range(9):
        pace.refused(0, now_s, 1.0)
        waits.append(pace.wait_s(now_s))
        now_s += waits[-1]
    assert waits == [1, 2, 4, 8, 16, WAIT_S_MAX, WAIT_S_MAX, WAIT_S_MAX, WAIT_S_MAX]
    assert pace.window == 1
    pace.completed()
    pace.refused(0, now_s, 1.0)
    assert pace.wait_s(now_s) == 1


def test_a_long_hint_is_kept_to() -> None:
    pace = Pace(4)
    pace.refused(0, 0.0, 120.0)
    assert pace.wait_s(0.0) == 120
