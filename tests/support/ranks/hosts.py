"""Hosts for tests: each with processes of its own, which the others reach by a network that can be cut.

They are namespaces of this machine's kernel, one for each host's network, processes and name, which a user can make
without being root where the machine allows it. They end with the processes in them, and leave nothing behind. Where
they cannot be made, a host is a group of processes, and all hosts meet on the loopback interface.

Source: namespaces(7), user_namespaces(7), unshare(1), ip-netns(8).
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path
from typing import Protocol

import psutil

from support.ranks import launching

FIRST, SECOND = "first", "second"
JOBS = Path(__file__).with_name("host_jobs.py")
LONG_SECONDS = 120.0  # in which what is waited for comes, or never

_NETWORK = """
set -e
mount -t tmpfs none /run
ip netns add first
ip netns add second
ip link add eth0 netns first type veth peer name eth0 netns second
for each in first:10.77.0.1 second:10.77.0.2; do
    ip -n ${each%:*} addr add ${each#*:}/24 dev eth0
    ip -n ${each%:*} link set lo up
    ip -n ${each%:*} link set eth0 up
done
ip netns exec first unshare --pid --uts --mount --fork --mount-proc hostname first
touch "$1/ready"
exec cat  # until whoever tests is gone, and all of these with it
"""
_NAMES = "127.0.0.1 localhost\n10.77.0.1 first\n10.77.0.2 second\n"
# Its processes do not begin with the numbers of the host that it replaces: torchrun tells its launchers apart by them.
_HOST = """
mount --bind "$1/hosts" /etc/hosts && hostname "$2" && echo "$3" >/proc/sys/kernel/ns_last_pid && cd "$1" || exit 99
shift 3
"$@"
exit $?
"""


@dataclass(kw_only=True, eq=False)
class Began:
    """A command on a host, with all that it starts there."""

    process: subprocess.Popen[bytes]
    output: Path

    def ended(self) -> int:
        """Its exit code, once it has ended by itself."""
        return self.process.wait(LONG_SECONDS)

    def told(self) -> str:
        return self.output.read_text(errors="replace")

    def kill(self) -> None:
        """As if the host were switched off: with all that runs there, and without a last word."""
        with suppress(psutil.Error):
            command = psutil.Process(self.process.pid)
            command.suspend()  # so that it does not see them go
            family = [command, *command.children(recursive=True)]
            for each in family:
                with suppress(psutil.Error):
                    each.kill()
            until = time.monotonic() + LONG_SECONDS
            while any(_lives(each) for each in family) and time.monotonic() < until:
                psutil.wait_procs(family, timeout=0.05)
        self.process.wait(LONG_SECONDS)


def _lives(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE  # which nobody may fetch
    return False


class Network(Protocol):
    """name: of what it is made of. port: that is free on each host."""

    name: str
    port: int

    def on(self, host: str, command: list[str]) -> list[str]:
        """The command, to be run on the host, in the folder that all share."""
        ...

    def address(self, host: str) -> str:
        """As all of them name it."""
        ...

    def environment(self) -> Mapping[str, str]: ...


@dataclass
class Hosts:
    """folder: which all hosts share, and work in."""

    network: Network
    folder: Path
    _begun: list[Began] = field(default_factory=list[Began])

    def begin(self, host: str, command: list[str], **environment: str) -> Began:
        output = self.folder / f"{host}-{len(self._begun)}.txt"
        with output.open("wb") as file:
            process = subprocess.Popen(
                self.network.on(host, command),
                cwd=self.folder,
                env=launching.environment()
                | {"HASTEN_WAIT_SECONDS": "60"}
                | {**self.network.environment(), **environment},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        began = Began(process=process, output=output)
        self._begun.append(began)
        return began

    def until(self, there: Callable[[], bool], *ended: Began) -> None:
        """Wait, as long as all but these go on."""
        until = time.monotonic() + LONG_SECONDS
        while not there():
            for each in self._begun:
                assert each in ended or each.process.poll() is None, each.told()
            assert time.monotonic() < until, [each.told() for each in self._begun]
            psutil.wait_procs([psutil.Process()], timeout=0.05)

    def end(self) -> None:
        for each in self._begun:
            each.kill()


def torchrun(
    hosts: Hosts, host: str, job: str, *options: str, processes: int = 1, restarts: int = 0, meets: str = FIRST
) -> list[str]:
    """The command by which the processes of this host become a part of the run that two hosts train. meets: where its
    launchers do."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", str(processes)]
    address, local = hosts.network.address(meets), hosts.network.address(host)
    settings = f"keep_alive_interval=1,keep_alive_max_attempt=3,read_timeout=15,is_host={int(host == meets)}"
    command += [
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        f"{address}:{hosts.network.port}",
        "--max-restarts",
        str(restarts),
    ]
    return [*command, "--local-addr", local, "--rdzv-conf", settings, "-m", "hasten", *trained(job, *options)]


def trained(job: str, *options: str) -> list[str]:
    return ["train", f"{JOBS}:{job}", "--run-dir", "run", "--save-every", "1", *options]


@contextmanager
def hosts_of(kind: type[Namespaces | Groups], folder: Path) -> Iterator[Hosts]:
    with kind.made(folder) as network:
        hosts = Hosts(network, folder)
        try:
            yield hosts
        finally:
            hosts.end()


class Namespaces:
    name = "namespaces"
    port = 29_500

    def __init__(self, holder: int, folder: Path) -> None:
        self._inside = ["nsenter", "-t", str(holder), "-U", "-m", "-n", "-p", "--preserve-credentials"]
        self._folder, self._starts = folder, count(1)

    @classmethod
    @contextmanager
    def made(cls, folder: Path) -> Iterator[Namespaces]:
        """Raises OSError where this machine does not allow it, or does not have the commands."""
        (folder / "hosts").write_text(_NAMES)
        alone = ["unshare", "--user", "--map-root-user", "--net", "--mount", "--pid", "--fork", "--kill-child"]
        with subprocess.Popen(
            [*alone, "sh", "-c", _NETWORK, "sh", str(folder)], stdin=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            try:
                while not (folder / "ready").exists():
                    if process.poll() is not None:
                        assert process.stderr is not None
                        raise OSError(process.stderr.read().decode())
                    psutil.wait_procs([psutil.Process()], timeout=0.01)
                yield cls(psutil.Process(process.pid).children()[0].pid, folder)
            finally:
                process.kill()

    def on(self, host: str, command: list[str]) -> list[str]:
        apart = ["unshare", "--pid", "--uts", "--mount", "--fork", "--kill-child", "--mount-proc"]
        told = ["sh", "-c", _HOST, "sh", str(self._folder), host, str(1000 * next(self._starts))]
        return [*self._inside, "ip", "netns", "exec", host, *apart, *told, *command]

    def address(self, host: str) -> str:
        return host

    def environment(self) -> Mapping[str, str]:
        return {}

    def cut(self, host: str) -> None:
        self._link(host, "down")

    def mend(self, host: str) -> None:
        self._link(host, "up")

    def _link(self, host: str, state: str) -> None:
        subprocess.run([*self._inside, "ip", "-n", host, "link", "set", "eth0", state], check=True)


class Groups:
    name = "processes"

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    @classmethod
    @contextmanager
    def made(cls, folder: Path) -> Iterator[Groups]:
        yield cls()

    def on(self, host: str, command: list[str]) -> list[str]:
        return command

    def address(self, host: str) -> str:
        return {FIRST: "127.0.0.1", SECOND: "127.0.0.2"}[host]  # the first has the first process, by its address

    def environment(self) -> Mapping[str, str]:
        return {"GLOO_SOCKET_IFNAME": "lo"}


@cache
def why_no_namespaces(folder: Path) -> str:
    """ "" where this machine lets its user make them."""
    if any(shutil.which(each) is None for each in ("unshare", "nsenter", "ip", "hostname")):
        return "unshare, nsenter, ip or hostname is missing"
    try:
        with Namespaces.made(folder):
            return ""
    except OSError as error:
        return f"no namespaces: {error}"
