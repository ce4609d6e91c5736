"""The examples for clusters, which run on none here: a shell and a reader of YAML understand them, and they ask for
what the command has."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import yaml
from typer.main import get_command

from hasten.cli import app

TORCHRUN_WAITS = 30  # seconds after SIGTERM, until it kills its processes
CLUSTER = Path(__file__).parents[2] / "examples" / "cluster"


def options() -> set[str]:
    train = get_command(app).commands["train"]  # pyright: ignore[reportAttributeAccessIssue]
    return {name for parameter in train.params for name in parameter.opts}


def test_the_batch_script_is_one_that_a_shell_understands():
    script = CLUSTER / "slurm.sh"
    subprocess.run(["bash", "-n", str(script)], check=True)
    (started,) = re.findall(r"hasten train (.*)", script.read_text().partition("srun ")[2])
    asked = set(re.findall(r"--[a-z-]+", started))
    assert asked
    assert asked <= options()


def test_pods_start_as_many_processes_as_they_have_devices_and_meet_at_the_first():
    service, job = yaml.safe_load_all((CLUSTER / "kubernetes.yaml").read_text())
    spec = job["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    told = dict(each.split("=") for each in container["command"] if "=" in each)
    assert int(told["--nproc-per-node"]) == container["resources"]["limits"]["nvidia.com/gpu"]
    assert int(told["--nnodes"]) == job["spec"]["completions"] == job["spec"]["parallelism"]
    name = job["metadata"]["name"]
    assert told["--rdzv-endpoint"].partition(":")[0] == f"{name}-0.{service['metadata']['name']}"
    assert spec["subdomain"] == service["metadata"]["name"]
    assert float(told["--grace"]) < TORCHRUN_WAITS < spec["terminationGracePeriodSeconds"]
    asked = [each.partition("=")[0] for each in container["command"][container["command"].index("train") :]]
    assert {each for each in asked if each.startswith("--")} <= options()
    claims = {each["name"] for each in spec["volumes"]}
    assert {each["name"] for each in container["volumeMounts"]} == claims
