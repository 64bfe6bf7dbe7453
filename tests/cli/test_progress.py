"""Sinks that a run can do without: the first error detaches one, with one line."""

from __future__ import annotations

import pytest

from rollart.cli.progress import OptionalSink
from rollart.events import Alarm, Event, MemorySink, Tee


class Faulty:
    """Takes two records, then fails."""

    def __init__(self, error: BaseException) -> None:
        self.calls = 0
        self.ended = 0
        self._error = error

    def emit(self, event: Event) -> None:
        self.calls += 1
        if self.calls > 2:
            raise self._error

    def end(self) -> None:
        self.ended += 1
        raise self._error


@pytest.mark.parametrize("error", [ConnectionError("the server is gone"), SystemExit(1)])
def test_the_first_error_detaches(error: BaseException, capsys: pytest.CaptureFixture[str]) -> None:
    faulty, memory = Faulty(error), MemorySink()
    optional = OptionalSink("log.somewhere", faulty, faulty.end)
    sinks = Tee(optional, memory)

    for number in range(5):
        sinks.emit(Alarm("test", f"record {number}"))
    optional.close()

    assert len(memory.events) == 5
    assert faulty.calls == 3
    assert faulty.ended == 1, "what it holds is freed all the same"
    told = capsys.readouterr().err
    assert told == (f"rollart: log.somewhere stopped ({type(error).__name__}: {error}): the run goes on without it\n")


def test_an_interrupt_is_no_error_of_the_sink() -> None:
    faulty = Faulty(KeyboardInterrupt())
    optional = OptionalSink("log.somewhere", faulty, faulty.end)
    with pytest.raises(KeyboardInterrupt):
        optional.close()
