"""An error that we know is one line for a person and an exit code; one that we do not know is a traceback."""

from __future__ import annotations

import logging

import pytest

from flows.cli.errors import Refused, guarded
from infra.engines.base import EngineError
from infra.processes import ProcessError
from infra.store import StoreError
from training.checkpoint import CheckpointError
from training.errors import StepFailed, StepLost
from training.guards import TrainingHalted
from training.parity import ParityError


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (TrainingHalted("loss nan", ("c7",)), 1, "longbreath: loss nan; offending samples: c7\n"),
        (CheckpointError("step-3 is damaged"), 1, "longbreath: step-3 is damaged\n"),
        (ParityError("0.3 nats apart"), 1, "longbreath: 0.3 nats apart\n"),
        (StepLost("killed"), 1, "longbreath: killed\n"),
        (StepFailed("ModelError: no config"), 1, "longbreath: ModelError: no config\n"),
        (ProcessError("cannot start"), 1, "longbreath: cannot start\n"),
        (StoreError("disk full"), 1, "longbreath: disk full\n"),
        (Refused("not better"), 3, "longbreath: not better\n"),
        (ValueError("seeds is 0"), 2, "longbreath: seeds is 0\n"),
    ],
)
def test_a_known_error_is_one_line_and_an_exit_code(error, code, said, capsys):
    def work() -> int:
        raise error

    assert guarded(work) == code
    assert capsys.readouterr().err == said


def test_an_unknown_error_escapes():
    def work() -> int:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        guarded(work)


def test_what_prefect_logs_of_a_known_error_has_no_trace_and_of_another_one_has(caplog):
    def failing(error):
        def work():
            log = logging.getLogger("prefect.flow_runs")
            try:
                raise error
            except type(error):
                log.exception("the flow raised", extra={"send_to_api": False})
            return 0

        return work

    for error in (EngineError("no server; start it"), ZeroDivisionError()):
        assert guarded(failing(error)) == 0
    assert [record.exc_info is None for record in caplog.records] == [True, False]
