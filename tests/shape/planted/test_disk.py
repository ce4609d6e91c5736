"""Writes to the disk, planted in every spelling, and reads."""

from __future__ import annotations

from shape.disk import ONLY_DOOR_FOR_READING, ONLY_DOOR_TO_DISK, check_reads, check_writes
from shape.planted import found


def test_a_write_outside_the_door_is_caught():
    for text in [
        "open(path, 'w')",
        "open(path, mode='ab')",
        "open(path, mode)",
        "path.open('w')",
        "import tarfile; tarfile.open(path, 'w|gz')",
        "Path(place).write_text('text')",
        "(folder / 'plan.toml').write_bytes(b'text')",
        "import os; os.open(path, flags)",
        "import os; os.open(path, os.O_RDONLY | getattr(os, 'O_CREAT', 0))",
        "import os; os.open(path, os.O_RDONLY, 0o600)",
        "import os as system; system.replace(a, b)",
        "import torch; torch.save(state, path)",
    ]:
        assert found(check_writes, text) == [1]
        assert found(check_writes, text, ONLY_DOOR_TO_DISK) == []


def test_reading_is_no_write():
    for text in [
        "open(path)",
        "open(path, 'rb')",
        "open(path, encoding='utf-8', mode='r')",
        "path.open('rb')",
        "import os; os.open(path, os.O_RDONLY | os.O_NONBLOCK)",
        "import os; os.open(os.devnull, os.O_WRONLY)",
        "import os; os.open(path, os.O_RDONLY | getattr(os, 'O_BINARY', 0))",
        "Image.open('photo.jpg')",
        "path.read_text()",
        "text.replace('a', 'b')",
    ]:
        assert found(check_writes, text) == []


def test_a_file_that_is_opened_outside_the_door_for_reading_is_caught():
    for text in [
        "open(path)",
        "import io; io.open(path, 'rb')",
        "path.open('rb')",
        "self._path.open()",
        "import os; os.open(path, os.O_RDONLY | os.O_NONBLOCK)",
        "path.read_text()",
        "(folder / 'plan.toml').read_bytes()",
    ]:
        assert found(check_reads, text) == [1], text
        assert found(check_reads, text, ONLY_DOOR_FOR_READING) == []


def test_what_opens_no_file_for_reading_is_free_to_all():
    for text in [
        "import os; os.open(os.devnull, os.O_RDONLY)",
        "from PIL import Image; Image.open(content)",
        "read_bytes(path, most)",
        "path.write_text('text')",
        "file.read()",
    ]:
        assert found(check_reads, text) == [], text
