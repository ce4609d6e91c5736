"""The list that makes a folder a checkpoint, read as untrusted text."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hasten.checkpoint.digests import Digest
from hasten.checkpoint.manifest import LARGEST_BYTES, Manifest, from_json, to_json
from hasten.errors import Damaged, StorageFailed
from support.checkpoint.forger import with_seal

MANIFEST = Manifest(
    step=120,
    epoch=3,
    reason="every 60 s",
    best=True,
    saved_at=1790000000.25,
    world_size=1,
    files={"tensors.safetensors": Digest(123456, "ab" * 32), "state.json": Digest(0, "0" * 64)},
)


def forged(**changes: Any) -> bytes:
    """A manifest with other fields, or without those that are None, and the right seal for them."""
    fields = json.loads(to_json(MANIFEST)) | changes
    return with_seal({name: value for name, value in fields.items() if value is not None})


numbers = st.integers(0, 1 << 62)
manifests = st.builds(
    Manifest,
    step=numbers,
    epoch=numbers,
    reason=st.text(st.characters(exclude_categories=())) | st.just('", "seal": "' + "0" * 64),
    best=st.booleans(),
    saved_at=st.floats(0, allow_infinity=False),
    world_size=numbers,
    files=st.dictionaries(
        st.from_regex(r"[a-z0-9][a-z0-9._-]{0,99}", fullmatch=True),
        st.builds(Digest, numbers, st.from_regex(r"[0-9a-f]{64}", fullmatch=True)),
        max_size=4,
    ),
)


@settings(max_examples=25)
@given(manifests)
def test_a_manifest_is_read_as_it_was_written(manifest):
    content = to_json(manifest)
    assert from_json(content) == manifest
    assert to_json(from_json(content)) == content


@pytest.mark.parametrize("bits", [(3,), pytest.param(range(8), marks=pytest.mark.proof)])
def test_every_bit_that_is_flipped_is_found(bits):
    content = to_json(MANIFEST)
    for place, byte in enumerate(content):
        for bit in bits:
            with pytest.raises(StorageFailed):
                from_json(content[:place] + bytes([byte ^ 1 << bit]) + content[place + 1 :])


def test_every_cut_and_every_additional_byte_is_found():
    content = to_json(MANIFEST)
    for length in range(len(content)):
        for changed in (content[:length], content[:length] + b" " + content[length:], content + content[length:]):
            with pytest.raises(StorageFailed):
                from_json(changed)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"files": {"../x": {"bytes": 1, "sha256": "0" * 64}}}, "lists a file with the name"),
        ({"files": {"/etc/passwd": {"bytes": 1, "sha256": "0" * 64}}}, "lists a file with the name"),
        ({"files": {"a\n": {"bytes": 1, "sha256": "0" * 64}}}, "lists a file with the name"),
        ({"files": {"state.json": {"bytes": -1, "sha256": "ab" * 32}}}, "the digest of state.json"),
        ({"files": {"state.json": {"bytes": True, "sha256": "ab" * 32}}}, '"bytes" is True'),
        ({"files": {"state.json": {"bytes": 1, "sha256": "AB" * 32}}}, "the digest of state.json"),
        ({"files": [1]}, '"files" is'),
        ({"step": -1}, "step is below 0"),
        ({"epoch": "1"}, '"epoch" is'),
        ({"saved_at": math.nan}, '"saved_at" is nan'),
        ({"best": None}, 'lacks "best"'),
        ({"schema": None}, "unknown schema"),
        ({"schema": True}, "unknown schema"),
        ({"run_me": "import os"}, '"run_me" is not a key of the file'),
    ],
)
def test_a_forged_manifest_is_refused_with_the_field(changes, says):
    with pytest.raises(Damaged) as caught:
        from_json(forged(**changes))
    assert says in caught.value.what
    assert caught.value.what.startswith("manifest.json")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"\x80\x05K\x01.",  # a pickle
        b"[" * 100_000,
        b'{"step": ' + b"9" * 10_000 + b"}",
        b" " * (LARGEST_BYTES + 1),
        to_json(MANIFEST).replace(b' "step": 120', b' "step": 120,\n "step": 120'),
    ],
    ids=lambda content: f"{content[:12]!r}",
)
def test_what_is_no_manifest_is_refused(content):
    with pytest.raises(StorageFailed) as caught:
        from_json(content)
    assert len(str(caught.value)) < 400
