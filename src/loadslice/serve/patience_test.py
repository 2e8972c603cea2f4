"""What hangs is waited for so long, named, and left behind."""

import threading

import pytest

from loadslice.serve.patience import Patience
from loadslice.spec.errors import InputError


def test_what_comes_back_gives_its_result_or_its_error() -> None:
    assert Patience().run(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        Patience().run(lambda: 1 // 0)


def test_a_step_that_hangs_is_named_and_ends_itself_where_it_comes_back_after_all() -> None:
    come_back, ended = threading.Event(), threading.Event()
    patience = Patience(0.05)

    def hang() -> None:
        patience.step("stage 'a' on engine 'b': warming up")
        assert come_back.wait(20)
        with pytest.raises(InputError, match="given up"):
            patience.step("stage 'c' on engine 'b': warming up")
        ended.set()

    with pytest.raises(InputError, match=r"stage 'a' on engine 'b': warming up: has not come back for 0.05 s"):
        patience.run(hang)
    come_back.set()
    assert ended.wait(20)


def test_who_gives_up_waits_no_longer() -> None:
    come_back = threading.Event()
    patience = Patience()

    def hang() -> None:
        patience.give_up()
        assert come_back.wait(20)

    with pytest.raises(InputError, match="given up"):
        patience.run(hang)
    come_back.set()
