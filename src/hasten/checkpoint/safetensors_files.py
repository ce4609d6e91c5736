"""Named tensors as safetensors files, written from where they lie in memory, without a copy of them.

The format: eight bytes with the length of a header, little-endian; the header, JSON with each tensor's dtype, shape and
place; then the tensors' bytes. The package `safetensors` writes from a copy of all tensors, without digest and without
fsync, so it only reads here.

Many bytes go to several files, because hashing by one processor is slower than a fast disk. Each tensor is found by its
own name, whichever file it is in.

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

from hasten.checkpoint.digests import Digest, in_threads, write_digested
from hasten.checkpoint.manifest import TENSORS
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
RESERVED = "__metadata__"  # the one name that the format forbids
MOST_BYTES = 1 << 27  # of a file with more than one tensor
_ALIGNMENT = 8  # bytes, of the first tensor; the format asks for no more


def write_tensor_files(folder: Path, tensors: Mapping[str, Tensor], threads: int) -> dict[str, Digest]:
    """Write the tensors into new files of the folder; the digests by file name. Raises as write_tensors does."""
    shares = {_name(number): share for number, share in enumerate(shared_out(tensors, MOST_BYTES), start=1)}
    digests = in_threads(lambda name: write_tensors(folder / name, shares[name]), shares, threads)
    return dict(zip(shares, digests, strict=True))


def shared_out(tensors: Mapping[str, Tensor], most_bytes: int) -> Iterator[dict[str, Tensor]]:
    """The tensors in order, in shares of at most `most_bytes`; a larger tensor has a share to itself."""
    share, filled = dict[str, Tensor](), 0
    for name, tensor in tensors.items():
        if share and filled + tensor.nbytes > most_bytes:
            yield share
            share, filled = {}, 0
        share[name], filled = tensor, filled + tensor.nbytes
    if share:
        yield share


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> Digest:
    """Write a new file and force it to the disk.

    tensors: on the CPU and contiguous; they must not change meanwhile.
    Raises Misconfigured for a dtype or a name that the format lacks, StorageFailed when the file cannot be written.
    """
    # The widest dtype first, so that each tensor begins at a multiple of its own width.
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, object] = {}
    end = 0
    for name in names:
        tensor = tensors[name]
        if tensor.dtype not in TYPES:
            what = f"is a tensor of {tensor.dtype}, which safetensors does not support"
            raise Misconfigured(what, where=name, fix="convert it to another dtype")
        if name == RESERVED:
            raise Misconfigured("is a reserved name in safetensors", where=name, fix="rename the tensor")
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
        raise Damaged(f"it is not a valid safetensors file: {error}") from error


def _name(number: int) -> str:
    return TENSORS if number == 1 else f"tensors-{number}.safetensors"


def _memory(tensor: Tensor) -> memoryview:
    """The tensor's own bytes. They are viewed as uint8, because NumPy lacks some dtypes."""
    row = tensor.contiguous().as_strided((tensor.numel(),), (1,))  # a single element may have any stride
    return row.view(torch.uint8).numpy().data
