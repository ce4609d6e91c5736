"""`hasten pack`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from hasten.cli.application import app, ending_in_one_block, offer


@app.command()
@ending_in_one_block
def pack(
    source: Annotated[
        str, typer.Argument(metavar="SRC", help="A folder of class folders of pictures, or path/file.py:function.")
    ],
    folder: Annotated[Path | None, typer.Argument(metavar="DST", help="The new folder for the shards.")] = None,
    shard_size: Annotated[int, typer.Option(metavar="MB", min=1, help="Of one shard, about.")] = 256,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the order that the samples are written in.")] = 0,
    keep_order: Annotated[bool, typer.Option("--keep-order", help="Write the samples in their own order.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Instead, compare the shards in SRC with their checksums.")
    ] = False,
) -> None:
    """Pack a data set into tar shards. A function gives any map-style data set.

    \b
    Examples:
      hasten pack photos/train photos-shards
      hasten pack data.py:train_data shards --shard-size 100
      hasten pack photos-shards --verify
    """
    from hasten.cli.answers import show_packing, show_verified
    from hasten.errors import Misconfigured

    if verify and folder is not None:
        raise Misconfigured("--verify takes one folder", fix=shlex.join(["hasten", "pack", str(folder), "--verify"]))
    if verify:
        show_verified(Path(source))
        offer("hasten train digits.py:job")
    elif folder is None:
        raise Misconfigured("DST is missing", fix=shlex.join(["hasten", "pack", source, "a-new-folder"]))
    else:
        show_packing(source, folder, shard_size * 1_000_000, None if keep_order else seed)
        offer(shlex.join(["hasten", "pack", str(folder), "--verify"]))
