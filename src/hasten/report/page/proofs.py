"""Whether what each choice claims to preserve held on this job, as far as anybody asked.

A proof has four answers. That no harm was seen is no proof of sameness, and is never counted as one: its reason says
how large a harm would have been seen. That an arm failed on the way says nothing of the choice at all.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum

from hasten.facts.choice import Preserves
from hasten.facts.plan import PlannedChoice
from hasten.facts.trials import Proven
from hasten.report.page import words
from hasten.report.page.markup import Part, element
from hasten.report.page.plan_evidence import Evidence, identity
from hasten.report.page.shell import two_lines


class Answer(StrEnum):
    HOLDS = "holds"
    NO_HARM = "no harm seen"
    FAILS = "does not hold"
    UNANSWERED = "not answered"


_SHOWN = {
    Answer.HOLDS: ("✓", "kept"),
    Answer.NO_HARM: ("·", "other"),
    Answer.FAILS: ("✕", "failed"),
    Answer.UNANSWERED: ("…", "other"),
}
"""Answer -> its sign, and its class."""


def answer_of(record: Proven) -> Answer:
    if record.unanswered:
        return Answer.UNANSWERED
    if not record.passes:
        return Answer.FAILS
    return Answer.NO_HARM if record.inconclusive else Answer.HOLDS


def proofs_in_short(evidence: Evidence) -> Part:
    """How many of the plan's proofs hold, and what the others are; None where nothing was put to a proof."""
    ours = set(map(identity, evidence.choices))
    found = Counter(answer_of(record) for record in evidence.proven if identity(record.choice) in ours)
    if not found:
        return None
    told = {
        Answer.NO_HARM: "with no harm seen",
        Answer.FAILS: "failed",
        Answer.UNANSWERED: "not answered",
    }
    others = [f"{found[answer]} {what}" for answer, what in told.items() if found[answer]]
    return two_lines(f"{found[Answer.HOLDS]} of {found.total()}", " · ".join(others) or "on this job")


def proof_of(evidence: Evidence, planned: PlannedChoice) -> Part:
    """Whether what the choice claims held on this job. Of a proof that only the plan states, nothing but its figures is
    known."""
    name = identity(planned.choice)
    record = next((record for record in evidence.proven if identity(record.choice) == name), None)
    if record is None and planned.proof is None:
        changes = planned.choice.preserves in (None, Preserves.TRAINING)
        return "judged by the time to the target" if changes and evidence.gained else "not proven here"
    if record is None:
        assert planned.proof is not None
        stated = planned.proof
        told = _error(stated.gradient_error, stated.bound) if stated.losses is None else _by_losses(stated.losses)
        return two_lines("as the plan states", told)
    measured = _error(record.gradient_error, record.bound)
    told = "; ".join(filter(None, [record.reason.rstrip("."), measured]))
    answer = answer_of(record)
    sign, kind = _SHOWN[answer]
    return two_lines(
        element("span", f"{sign} {answer}", class_=f"verdict {kind}"), _by_losses(told) if record.by_losses else told
    )


def _by_losses(told: str) -> str:
    return f"by its losses: {told}"


def _error(error: float | None, bound: float | None) -> str:
    if error is None:
        return ""
    most = f" (at most {words.plainly(bound)})" if bound is not None else ""
    return f"gradient error {words.plainly(error)} times the plain job's own{most}"
