"""What is read of the machine, from what the system says."""

from __future__ import annotations

import pytest

from hasten.facts import machine


@pytest.mark.parametrize(
    ("place", "files"),
    [
        ("0::/job", {"job/memory.max": "8000", "job/memory.current": "7000", "job/memory.stat": "inactive_file 500"}),
        (
            "4:memory:/job",
            {
                "memory/job/memory.limit_in_bytes": "8000",
                "memory/job/memory.usage_in_bytes": "7000",
                "memory/job/memory.stat": "inactive_file 1\ntotal_inactive_file 500",
            },
        ),
    ],
    ids=["second version", "first version"],
)
def test_free_in_a_container_is_what_it_has_not_used_but_for_pages_of_files(monkeypatch, place, files):
    there = {f"/sys/fs/cgroup/{name}": text for name, text in files.items()} | {"/proc/self/cgroup": place}
    monkeypatch.setattr(machine, "_text", lambda path: there.get(str(path), ""))
    assert machine.free_memory() == 1500
