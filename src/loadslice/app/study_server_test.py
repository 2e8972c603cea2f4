"""A server that was started for a while does not outlive whoever started it."""

import os
import signal

import pytest

from loadslice.app.study_server import ended_in_order


def test_a_sigterm_ends_the_block_in_order_and_then_has_its_usual_effect() -> None:
    cleaned = []

    def told_to_end() -> None:
        with ended_in_order(), ended_in_order():
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                signal.pause()
            finally:
                cleaned.append(True)

    with pytest.raises(SystemExit) as ended:
        told_to_end()
    assert ended.value.code == 128 + signal.SIGTERM
    assert cleaned == [True]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
