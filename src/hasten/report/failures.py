"""An error as one block: where and what, then what to do."""

from __future__ import annotations

from hasten.errors import HastenError


def failure_block(error: HastenError) -> list[tuple[str, str]]:
    """Labels and texts, in the order in which they are read. The place comes first: it is often the subject."""
    place = f"{error.where}: " if error.where else ""
    return [("error", place + error.what), *([("fix", error.fix)] if error.fix else [])]
