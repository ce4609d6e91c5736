"""A rendezvous that only this machine can reach, for processes that are all on it.

torch's stores listen on every interface of a machine, whatever address they are given; but a store that is handed a
socket listens on that one. TorchElastic finds a rendezvous by its name, so this one is registered under NAME.

Source: https://docs.pytorch.org/docs/stable/elastic/rendezvous.html
"""

from __future__ import annotations

import socket
import sys

from torch.distributed import PrefixStore, TCPStore  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)

NAME = "hasten-loopback"
ADDRESS = "127.0.0.1"
INTERFACE = "lo0" if sys.platform == "darwin" else "lo"


class Loopback(RendezvousHandler):
    """The rendezvous of one agent: its processes are all that there are."""

    def __init__(self, run_id: str) -> None:
        self._run_id, self._closed = run_id, False
        self._store = store_on_loopback()

    def get_backend(self) -> str:
        return NAME

    @property
    def use_agent_store(self) -> bool:
        """The processes use the agent's store: a second one would listen on every interface again."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        store = PrefixStore(self._run_id, self._store)
        return RendezvousInfo(store, 0, 1, RendezvousStoreInfo(ADDRESS, self._store.port))

    def is_closed(self) -> bool:
        return self._closed

    def set_closed(self) -> None:
        self._closed = True

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self._run_id

    def shutdown(self) -> bool:
        self._closed = True
        return True


def store_on_loopback() -> TCPStore:
    """At a free port, until nothing refers to it any more."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.bind((ADDRESS, 0))
    listening.listen()
    port = listening.getsockname()[1]
    # The store closes the descriptor with itself.
    return TCPStore(ADDRESS, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach())


rendezvous_handler_registry.register(NAME, lambda parameters: Loopback(parameters.run_id))
