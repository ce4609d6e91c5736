"""What stands in a Saver's place on ranks that save nothing, as they hold what the leader holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hasten.errors import StorageFailed

if TYPE_CHECKING:
    from hasten.training.saving.saver import State


class NoSaver:
    has_news = last_failed = False
    save_seconds = 0.0

    def due(self, step: int) -> bool:
        return False

    def worth_saving_best(self) -> bool:
        return False

    def now(self) -> float:
        return 0.0

    def save(self, state: State) -> None:
        pass

    def save_now(self, state: State) -> None:
        pass

    def refused(self, step: int, error: StorageFailed) -> None:
        pass

    def poll(self) -> None:
        pass

    def settle(self) -> None:
        pass

    def close(self) -> None:
        pass
