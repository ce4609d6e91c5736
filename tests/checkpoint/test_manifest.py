"""The list that makes a folder a checkpoint, read as untrusted text."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hasten.checkpoint.digests import Digest
from hasten.checkpoint.manifest import LARGEST_BYTES, Manifest, from_json, to_json
from hasten.errors import StorageFailed
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
    fields = {name: value for name, value in fields.items() if value is not None}
    if "seal" in changes:
        return (json.dumps(fields, indent=1, sort_keys=True) + "\n").encode()
    return with_seal(fields)


numbers = st.integers(0, 1 << 62)
manifests = st.builds(
    Manifest,
    step=numbers,
    epoch=numbers,
    reason=st.text(st.characters(exclude_categories=())) | st.just("0" * 64) | st.just('", "seal": "' + "0" * 64),
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


def test_every_cut_and_every_byte_too_many_is_found():
    content = to_json(MANIFEST)
    for length in range(len(content)):
        with pytest.raises(StorageFailed):
            from_json(content[:length])
        for much in (b" ", b"\n", b"\0", content[length : length + 1]):
            with pytest.raises(StorageFailed):
                from_json(content[:length] + much + content[length:])
    for behind in (b" ", b"\n", b"\0", b"{}", content):
        with pytest.raises(StorageFailed):
            from_json(content + behind)


@pytest.mark.parametrize(
    "name",
    ["../x", "..", "", "/etc/passwd", "a/b", "a\\b", ".hidden", "A", "a\n", "a" * 101],
)
def test_a_forged_name_that_leads_out_of_the_folder_or_is_odd_is_refused(name):
    with pytest.raises(StorageFailed, match="lists a file with the name"):
        from_json(forged(files={name: {"bytes": 1, "sha256": "0" * 64}}))


@pytest.mark.parametrize(
    "digest",
    [
        None,
        [1, "ab" * 32],
        {"bytes": 1},
        {"bytes": -1, "sha256": "ab" * 32},
        {"bytes": 1.0, "sha256": "ab" * 32},
        {"bytes": True, "sha256": "ab" * 32},
        {"bytes": 1, "sha256": "AB" * 32},
        {"bytes": 1, "sha256": "ab" * 31},
        {"bytes": 1, "sha256": "ab" * 32, "path": "/etc/passwd"},
    ],
)
def test_a_forged_digest_is_refused(digest):
    with pytest.raises(StorageFailed, match=re.escape("manifest.json: ")):
        from_json(forged(files={"state.json": digest}))


@pytest.mark.parametrize("name", ["step", "epoch", "world_size", "best", "reason", "saved_at", "files", "schema"])
@pytest.mark.parametrize(
    "value",
    [-1, -0.5, True, "1", [], math.nan, "x" * 5000],
    ids=lambda value: f"{value!r:.9}",
)
def test_a_forged_field_of_another_kind_is_refused(name, value):
    if (name, type(value)) in (("best", bool), ("reason", str)):
        assert getattr(from_json(forged(**{name: value})), name) == value
    else:
        with pytest.raises(StorageFailed):
            from_json(forged(**{name: value}))


@pytest.mark.parametrize(
    "name", ["step", "epoch", "world_size", "best", "reason", "saved_at", "files", "schema", "seal"]
)
def test_a_field_that_is_missing_is_told(name):
    with pytest.raises(StorageFailed, match=name):
        from_json(forged(**{name: None}))


def test_a_field_that_nobody_knows_is_told():
    with pytest.raises(StorageFailed, match='"run_me" is no key of the file'):
        from_json(forged(run_me="import os"))


def test_a_later_schema_is_told_as_such():
    with pytest.raises(StorageFailed, match="its schema is 3, and 2 is known here"):
        from_json(forged(schema=3, what_is_new=1))


def test_a_key_that_stands_there_twice_is_refused():
    content = to_json(MANIFEST)
    twice = content.replace(b' "step": 120', b' "step": 120,\n "step": 120')
    assert json.loads(twice) == json.loads(content)
    with pytest.raises(StorageFailed, match="seal is broken"):
        from_json(twice)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"\xff\xfe",
        b"\x80\x05K\x01.",  # a pickle
        b"[" * 100_000,
        b'{"step": ' + b"9" * 10_000 + b"}",
        b" " * (LARGEST_BYTES + 1),
        b"\xef\xbb\xbf" + to_json(MANIFEST),
    ],
    ids=lambda content: f"{content[:12]!r}",
)
def test_what_is_no_manifest_is_refused(content):
    with pytest.raises(StorageFailed) as caught:
        from_json(content)
    assert len(str(caught.value)) < 400


@given(st.binary(max_size=200) | st.text('{}[]",:0123456789truefalsn', max_size=9).map(str.encode))
def test_any_bytes_are_refused_and_nothing_else_happens(content):
    with pytest.raises(StorageFailed):
        from_json(content)
