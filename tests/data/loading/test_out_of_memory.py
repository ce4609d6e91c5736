"""A lack of memory is known by whatever name it comes, and nothing else is taken for one."""

import errno

import pytest

from hasten.data.loading.data_errors import is_out_of_memory


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        RuntimeError("std::bad_alloc"),
        RuntimeError("unable to mmap 8 bytes from file <rows>: Cannot allocate memory (12)"),
    ],
)
def test_what_the_system_and_cpp_say_of_it_is_known(error):
    assert is_out_of_memory(error)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EIO, "Input/output error"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        RuntimeError(),
        ValueError("not enough memory is asked for"),
    ],
)
def test_other_errors_are_not_mistaken_for_it(error):
    assert not is_out_of_memory(error)
