"""A receiver of events that keeps them in a list."""

from __future__ import annotations

from hasten.facts.events import Event


class Collected:
    """Keeps the events in a list."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def log(self, event: Event) -> None:
        self.events.append(event)

    def close(self) -> None:
        """Nothing to close: the events stay."""
