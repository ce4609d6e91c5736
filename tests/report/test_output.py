"""Errors as one block."""

from __future__ import annotations

from hasten.errors import HastenError, JobError, PlanError
from hasten.report.terminal.output import failure_block


def test_a_block_says_where_what_and_what_to_do():
    assert failure_block(PlanError("is not valid TOML", where="plan.toml:3", fix="see https://toml.io")) == [
        ("error", "plan.toml:3: is not valid TOML"),
        ("fix", "see https://toml.io"),
    ]
    assert failure_block(JobError("epochs", "is 0 (int)", "write 1 or more"))[0] == ("error", "Job.epochs: is 0 (int)")


def test_what_an_error_does_not_say_has_no_line():
    assert failure_block(HastenError("happened")) == [("error", "happened")]
