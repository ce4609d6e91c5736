"""What might help: one technique a file, all of them enrolled here."""

from hasten.techniques.contract import No, Stage, Symptom, Technique, Yes
from hasten.techniques.setup import Setup

ALL: tuple[Technique, ...] = ()

__all__ = ["ALL", "No", "Setup", "Stage", "Symptom", "Technique", "Yes"]
