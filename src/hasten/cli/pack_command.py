"""`hasten pack`."""

from __future__ import annotations

import shlex
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hasten.cli.application import AsJson, Quiet, SetOption, app, ends_with_exit_code, job_options, say_on_loading
from hasten.errors import Misconfigured
from hasten.facts.formatting import byte_size
from hasten.report.display import count, many
from hasten.report.sentence import Sentence
from hasten.report.terminal.command_output import CommandOutput

if TYPE_CHECKING:
    from hasten.data.shards.shard_writer import Packable
    from hasten.training.setup.job_options import JobOptions


@app.command()
@ends_with_exit_code
def pack(
    context: typer.Context,
    source: Annotated[
        str, typer.Argument(metavar="SRC", help="A folder with a folder of images per class, or path/file.py:function.")
    ],
    folder: Annotated[Path | None, typer.Argument(metavar="DST", help="The new folder for the shards.")] = None,
    shard_size: Annotated[int, typer.Option(metavar="MB", min=1, help="Approximate size of a shard.")] = 256,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the order of the samples.")] = 0,
    keep_order: Annotated[bool, typer.Option("--keep-order", help="Keep the samples in their order.")] = False,
    settings: SetOption = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare the shards in SRC with their checksums instead.")
    ] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Pack a data set into tar shards. A function may return any map-style data set.

    \b
    Examples:
      hasten pack photos/train photos-shards
      hasten pack data.py:train_data shards --shard-size 100
      hasten pack photos-shards --verify
      hasten pack photos-shards --verify --json
    """
    if verify and folder is not None:
        raise Misconfigured("--verify takes one folder", fix=shlex.join(["hasten", "pack", str(folder), "--verify"]))
    with CommandOutput(quiet=quiet, as_json=as_json) as output:
        if verify:
            output.header(f"Verifying {source}")
            _verify(Path(source), output)
        elif folder is None:
            raise Misconfigured("DST is missing", fix=shlex.join(["hasten", "pack", source, "a-new-folder"]))
        else:
            output.header(f"Packing {source}")
            data = _to_pack(source, job_options(context, settings))
            _pack(data, folder, shard_size * 1_000_000, None if keep_order else seed, output)


def _pack(data: Packable, folder: Path, shard_bytes: int, seed: int | None, output: CommandOutput) -> None:
    from hasten.data.shards.shard_writer import pack

    with closing(output.progress("packing")) as waiting:
        done = pack(data, folder, shard_bytes=shard_bytes, seed=seed, progress=waiting)
    if data.classes is not None:
        use = f'hasten.ImageFolder("{folder}", hasten.RandomResizedCrop(224))'
    else:
        form = "" if done.form is None else f", form={done.form}".replace("'", '"')
        use = f'hasten.Shards("{folder}"{form})'
    order = "in their order" if seed is None else f"shuffled with seed {seed}"
    sentence = Sentence(
        headline=f"Packed {count(done.samples)} samples into {many(done.shards, 'shard')} in {folder}",
        small_print=f"{order}, {byte_size(done.bytes)} in all, with an index and checksums",
    )
    following = shlex.join(["hasten", "pack", str(folder), "--verify"])
    output.result(sentence, [("use", f"train={use}")], following, {"folder": folder, "seed": seed, **asdict(done)})


def _verify(folder: Path, output: CommandOutput) -> None:
    """Read all shards again and compare them with what was packed."""
    from hasten.data.shards.shard_index import verify

    with closing(output.progress("verifying")) as waiting:
        found = verify(folder, waiting)
    shards = many(len(found.shards), "shard")
    sentence = Sentence(
        headline=f"All {count(found.samples)} samples are as they were packed",
        small_print=f"every byte of {shards}, {byte_size(found.bytes)}, matches its checksum",
    )
    answer = {"folder": folder, "samples": found.samples, "shards": len(found.shards), "bytes": found.bytes}
    output.result(sentence, [], "hasten train JOB", answer)


def _to_pack(source: str, options: JobOptions) -> Packable:
    from hasten.data.shards.shard_writer import ImagesInFolders, Samples
    from hasten.training.setup.load_job import load_returned

    if Path(source).is_dir():
        return ImagesInFolders(Path(source))
    if ":" not in source:
        fix = "name a folder with one folder for each class, or a function that returns a data set: data.py:train_data"
        raise Misconfigured("there is no such folder", where=source, fix=fix)
    return Samples(load_returned(source, options=options, notify=say_on_loading))
