"""One signal asks a run to stop; whether a second one ends it depends on who else passes it on."""

from __future__ import annotations

import os
import signal

import pytest

from cona.interrupt import TIME_LIMIT, Interrupted, stop_signals

WANTED = (signal.SIGTERM, signal.SIGINT, TIME_LIMIT)


@pytest.mark.parametrize("number", WANTED)
def test_a_signal_stops_at_the_next_check(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with stop_signals() as stop:
        stop.check()
        os.kill(os.getpid(), number)
        with pytest.raises(Interrupted) as stopped:
            stop.check()
        assert signal.getsignal(number) == signal.SIG_DFL  # a second one ends the process
    assert stopped.value.exit_code == 128 + number
    assert signal.getsignal(number) == before


@pytest.mark.parametrize("number", WANTED)
def test_a_rank_gets_its_launchers_signal_twice(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "7")
    with stop_signals() as stop:
        for _ in range(2):
            os.kill(os.getpid(), number)
        with pytest.raises(Interrupted) as stopped:
            stop.check()
    assert stopped.value.signal_number == number


def test_the_launcher_passes_on_what_a_run_listens_to() -> None:
    from cona.launch import PASSED_ON

    assert set(WANTED) <= set(PASSED_ON)
