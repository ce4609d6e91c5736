"""Named tensors as a safetensors file, written from where they lie, without a copy of them.

The format: eight bytes with the length of a header, little end first; the header, which is JSON and tells each tensor's
type, shape and place; and then the tensors one after another. The package `safetensors` writes it from copies of all
tensors, and knows neither digest nor disk; it is what reads the file again here.

Source: https://github.com/huggingface/safetensors, "Format".
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from hasten.checkpoint.digests import Digest, at_once, write_digested
from hasten.checkpoint.saved_checkpoint import TENSORS
from hasten.errors import Damaged, Misconfigured

TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
RESERVED = "__metadata__"  # the one name that no tensor can have
_ALIGNMENT = 8  # bytes, of the first tensor; the format asks for no more


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> Digest:
    """Make a new file, forced to the disk. The tensors are on the CPU and contiguous, and stay as they are meanwhile.

    Raises Misconfigured for a type or a name that the format lacks, StorageFailed when the file cannot be written.
    """
    # The widest first: so each begins at a multiple of its own width.
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, object] = {RESERVED: dict(metadata)} if metadata else {}
    end = 0
    for name in names:
        tensor = tensors[name]
        if tensor.dtype not in TYPES:
            what = f"is a tensor of {tensor.dtype}, for which the format has no word"
            raise Misconfigured(what, where=name, fix="keep it in another type")
        if name == RESERVED:
            raise Misconfigured("is a name that the format has taken", where=name, fix="give the tensor another one")
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": TYPES[tensor.dtype], "shape": [*tensor.shape], "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)

    def parts() -> Iterator[bytes | memoryview]:
        yield len(text).to_bytes(8, "little") + text
        for name in names:
            if tensors[name].numel():
                yield _memory(tensors[name])

    return write_digested(path, parts())


def tensors_in(content: bytes) -> dict[str, Tensor]:
    """The tensors of a file's whole content, on the CPU. Raises Damaged when it is no such file."""
    try:
        return safetensors.torch.load(content)
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise Damaged(f"it is no safetensors file: {error}") from error


def _memory(tensor: Tensor) -> memoryview:
    """The tensor's own bytes; NumPy has no word for some types, but for bytes it has."""
    row = tensor.contiguous().as_strided((tensor.numel(),), (1,))  # one element may lie in strides of any length
    return row.view(torch.uint8).numpy().data


MOST_BYTES = 1 << 27  # of a file that holds more than one tensor


def write_tensor_files(folder: Path, tensors: Mapping[str, Tensor], threads: int) -> dict[str, Digest]:
    """Write them into the folder; each file's digest by its name. Raises as write_tensors does."""
    shares = {_name(number): share for number, share in enumerate(shared_out(tensors, MOST_BYTES), start=1)}
    digests = at_once(lambda name: write_tensors(folder / name, shares[name]), shares, threads)
    return dict(zip(shares, digests, strict=True))


def shared_out(tensors: Mapping[str, Tensor], most_bytes: int) -> Iterator[dict[str, Tensor]]:
    """Shares of at most so many bytes, in the order given; a tensor that is larger has one to itself."""
    share, filled = dict[str, Tensor](), 0
    for name, tensor in tensors.items():
        if share and filled + tensor.nbytes > most_bytes:
            yield share
            share, filled = {}, 0
        share[name], filled = tensor, filled + tensor.nbytes
    if share:
        yield share


def _name(number: int) -> str:
    return TENSORS if number == 1 else f"tensors-{number}.safetensors"
