"""A folder of class folders: which files are read, as what, and what is refused."""

import errno
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.pictures import file_of, image, jpeg, write
from hasten.data.images import image_files as picture_files
from hasten.data.images.crops import Box, CenterCrop, RandomResizedCrop
from hasten.data.images.image_files import KeptPictures, Names, PictureFiles, asked_for, read_file, scan
from hasten.data.sources.known_steady import steady_reason
from hasten.errors import DataFailed

TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"])) | st.just("b\udcff/\udc80.jpg") | st.just(""))


# Names


@given(texts=TEXTS)
def test_names_are_given_back_as_they_were(texts):
    names = Names(texts)
    assert len(names) == len(texts)
    assert list(names) == texts
    assert [names[-1 - place] for place in range(len(texts))] == texts[::-1]


@pytest.mark.parametrize("count", [100_000, pytest.param(1_000_000, marks=pytest.mark.proof)])
def test_a_million_names_cost_less_than_fifty_bytes_each(count):
    tracemalloc.start()
    try:
        names = Names([f"n{number % 1000:08}/n{number % 1000:08}_{number}.JPEG" for number in range(count)])
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert names[count - 1] == f"n00000999/n00000999_{count - 1}.JPEG"
    assert kept < 50 * count


# Which files are read


def test_every_folder_is_a_class_and_pictures_lie_at_any_depth(tmp_path):
    root = write(
        tmp_path,
        {
            "dog/2.JPG": b"x",
            "dog/1.jpg": b"x",
            "cat/deep/er/b.png": b"x",
            "cat/a.webp": b"x",
            "cat/notes.txt": b"x",
            "cat/.hidden.jpg": b"x",
            "cat/.git/c.jpg": b"x",
            ".cache/d.jpg": b"x",
            "readme.jpg": b"x",
        },
    )
    classes, names, labels = scan(root)
    assert classes == ["cat", "dog"]
    assert list(names) == ["cat/a.webp", "cat/deep/er/b.png", "dog/1.jpg", "dog/2.JPG"]
    assert (labels.tolist(), labels.dtype) == ([0, 0, 1, 1], np.int32)


@given(order=st.permutations(["c/2.jpg", "a/1.jpg", "b/x/3.jpg", "a/0.jpg"]))
def test_the_order_does_not_depend_on_the_file_systems(order, tmp_path_factory):
    root = write(tmp_path_factory.mktemp("root"), dict.fromkeys(order, b"x"))
    assert list(scan(root)[1]) == ["a/0.jpg", "a/1.jpg", "b/x/3.jpg", "c/2.jpg"]


def test_a_name_that_is_no_text_is_read(tmp_path):
    root = write(tmp_path, {"b\udcff/\udc80.jpg": jpeg(9, 9)})
    files = PictureFiles(root, CenterCrop(4))
    assert files.classes == ["b\udcff"]
    assert files[0][:2] == (9, 9)
    assert len(files.cache_key()) == 64


@pytest.mark.parametrize(
    ("files", "place", "told"),
    [
        ({}, "", "holds no folder"),
        ({"a.jpg": b"x"}, "", "holds no folder"),
        ({"cat/a.jpg": b"x", "dog/notes.txt": b"x"}, "dog", "the class 'dog' has no picture"),
    ],
)
def test_a_folder_without_classes_or_pictures_is_refused(tmp_path, files, place, told):
    with pytest.raises(DataFailed, match=told) as refusal:
        scan(write(tmp_path, files))
    assert Path(refusal.value.where) == tmp_path / place
    assert "root/cat/1.jpg" in refusal.value.fix


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(DataFailed, match="is no folder"):
        scan(tmp_path / "gone")


def test_a_link_to_a_folder_is_followed_and_one_that_leads_back_is_refused(tmp_path):
    root = write(tmp_path / "root", {"cat/a.jpg": b"x"})
    write(tmp_path / "other", {"b.jpg": b"x"})
    (root / "cat" / "linked").symlink_to(tmp_path / "other")
    (root / "dog").symlink_to(root / "cat")
    assert list(scan(root)[1]) == ["cat/a.jpg", "cat/linked/b.jpg", "dog/a.jpg", "dog/linked/b.jpg"]
    for name in ("back", "forth"):
        (root / "cat" / "linked" / name).symlink_to(root / "cat")
    with pytest.raises(DataFailed, match="links back to a folder that it lies in"):
        scan(root)


# One file


def test_a_file_is_read_whole(tmp_path):
    data = os.urandom(100_003)
    write(tmp_path, {"it": data})
    assert read_file(str(tmp_path / "it")) == data


def test_what_is_no_regular_file_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "zero.jpg").symlink_to("/dev/zero")
    for name in ("pipe.jpg", "zero.jpg"):
        with pytest.raises(DataFailed, match="is no regular file") as refusal:
            read_file(str(tmp_path / name))
        assert refusal.value.where == str(tmp_path / name)


def test_a_file_of_more_bytes_than_are_allowed_is_not_read(tmp_path, monkeypatch):
    write(tmp_path, {"it.jpg": b"12345"})
    monkeypatch.setattr(picture_files, "MOST_BYTES", 4)
    with pytest.raises(DataFailed, match="has 5 bytes; 4 are allowed"):
        read_file(str(tmp_path / "it.jpg"))


def test_a_file_that_grows_smaller_while_it_is_read_does_not_hang(tmp_path, monkeypatch):
    write(tmp_path, {"it.jpg": b"12345"})
    true_size = os.stat

    def larger(path):
        values = list(true_size(path))
        values[6] += 10
        return os.stat_result(values)

    monkeypatch.setattr(os, "stat", larger)
    assert read_file(str(tmp_path / "it.jpg")) == b"12345"


# The steady part


def files_of(tmp_path, view, **files):
    root = write(tmp_path, {f"c/{name}.jpg": data for name, data in files.items()})
    return PictureFiles(root, view)


def test_reading_a_file_is_known_to_draw_nothing(tmp_path):
    assert "same pixels" in steady_reason(files_of(tmp_path, CenterCrop(4), a=jpeg(9, 9)))


def test_a_picture_is_kept_in_the_sizes_that_a_view_can_ask_for(tmp_path):
    files = files_of(tmp_path, RandomResizedCrop(20), a=jpeg(100, 90), b=jpeg(15, 30), c=file_of(image(99, 99), "PNG"))
    height, width, levels, label = files[0]
    assert (height, width, label) == (100, 90, 0)
    # The whole is 90 pixels wide: decoded at a quarter, 22 of them are left for 20.
    assert [level.shape for level in levels] == [(100, 90, 3), (50, 45, 3), (25, 23, 3), (0, 0, 3)]
    assert [level.size > 0 for level in files[1][2]] == [True, False, False, False]
    assert [level.size > 0 for level in files[2][2]] == [True, False, False, False]
    middle = files_of(tmp_path, CenterCrop(20), a=jpeg(100, 90))
    assert [level.size > 0 for level in middle[0][2]] == [False, True, True, False]


@given(
    height=st.integers(1, 200),
    width=st.integers(1, 200),
    size=st.integers(1, 64),
    draws=st.lists(st.floats(0, 1, exclude_max=True), min_size=41, max_size=41),
    view=st.sampled_from([RandomResizedCrop, CenterCrop]),
)
def test_no_view_asks_for_a_size_that_was_not_kept(height, width, size, draws, view):
    class Shape:
        denominators = (1, 2, 4, 8)

    picture, made = Shape(), view(size)
    picture.height, picture.width = height, width
    box = made.box(height, width, draws)
    wanted = picture_files.sufficient(box.height, box.width, size, picture.denominators)
    kept = asked_for(made, picture)
    assert wanted in kept
    assert picture_files.sufficient(box.height, box.width, size, sorted(kept)) == wanted


def test_kept_pictures_answer_as_files_do(tmp_path):
    files = files_of(tmp_path, RandomResizedCrop(20), a=jpeg(100, 90))

    class Kept:
        def __len__(self):
            return 1

        def view(self, index):
            return files[index]

    kept = KeptPictures(Kept())
    assert len(kept) == 1
    (picture, label), (wanted, wanted_label) = kept.labelled(0), files.labelled(0)
    assert label == wanted_label
    assert (picture.height, picture.width, picture.denominators) == (100, 90, (1, 2, 4))
    for each in picture.denominators:
        assert np.array_equal(picture.at(each), wanted.at(each))


# The key of a cache


@pytest.mark.trap(41)
def test_a_cache_is_invalid_when_names_sizes_times_view_or_limit_change(tmp_path):
    files = files_of(tmp_path, CenterCrop(20), a=jpeg(30, 30), b=jpeg(40, 40))
    first = tmp_path / "c" / "a.jpg"
    os.utime(first, ns=(10**18, 10**18))
    key = files.cache_key()
    assert files.cache_key() == key

    def changed():
        return PictureFiles(tmp_path, CenterCrop(20)).cache_key()

    assert changed() == key
    keys = [
        PictureFiles(tmp_path, CenterCrop(21)).cache_key(),
        PictureFiles(tmp_path, CenterCrop(20), most_pixels=9999).cache_key(),
    ]
    os.utime(first, ns=(10**18, 10**18 + 1))
    keys.append(changed())
    data = first.read_bytes()
    first.write_bytes(data + b"x")
    os.utime(first, ns=(10**18, 10**18))
    keys.append(changed())
    first.write_bytes(data)
    os.utime(first, ns=(10**18, 10**18))
    assert changed() == key
    first.rename(tmp_path / "c" / "aa.jpg")
    keys.append(changed())
    assert len({key, *keys}) == 6


@pytest.mark.trap(41)
@pytest.mark.parametrize("nothing", ["late.jpg", "file/late.jpg", "p/c/b.jpg"])
def test_a_link_to_nothing_ends_no_key_which_is_another_once_there_is_something(tmp_path, nothing):
    write(tmp_path / "p", {"c/a.jpg": jpeg(30, 30)})
    (tmp_path / "file").touch()
    link = tmp_path / "p" / "c" / "b.jpg"
    link.symlink_to(tmp_path / nothing)
    files = PictureFiles(tmp_path / "p", CenterCrop(20))
    key = files.cache_key()
    assert files.cache_key() == key
    link.unlink()
    link.write_bytes(jpeg(30, 30))
    there = files.cache_key()
    assert there != key
    link.unlink()  # after the folder was listed
    assert files.cache_key() != there


def test_a_disk_that_does_not_answer_is_told_and_makes_no_other_key(tmp_path, monkeypatch):
    write(tmp_path / "p", {"c/a.jpg": jpeg(30, 30)})
    files = PictureFiles(tmp_path / "p", CenterCrop(20))

    def stale(path):
        raise OSError(errno.ESTALE, "Stale file handle", path)

    monkeypatch.setattr(picture_files.os, "stat", stale)
    with pytest.raises(DataFailed, match="cannot be looked at: Stale file handle") as caught:
        files.cache_key()
    assert caught.value.where == str(tmp_path / "p" / "c" / "a.jpg")


@pytest.mark.trap(41)
def test_a_cache_is_invalid_when_a_view_of_the_users_own_is_edited(tmp_path):
    write(tmp_path, {"c/a.jpg": jpeg(30, 30)})

    def key_with(smallest_side):
        class Corner:
            size, draws = 8, 0

            def box(self, height, width, draws):
                return Box(0, 0, 8, 8)

            def smallest(self, height, width):
                return smallest_side, smallest_side

        return PictureFiles(tmp_path, Corner()).cache_key()

    assert key_with(8) == key_with(8) != key_with(16)
