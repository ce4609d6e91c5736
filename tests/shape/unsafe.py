"""What the code of the package never does: run what a file says, go out to the network, time by the calendar.

Every check is a function from a source to Faults, and reads the syntax tree. Names are looked at
wherever they stand, called or handed on, so `map(pickle.loads, texts)` and a class that derives from an Unpickler are
found as well.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping

from shape.source import Fault, Source, called, dotted, origin

REFUSED = {
    **dict.fromkeys(("pickle.load", "pickle.loads", "pickle.Unpickler"), "runs whatever the file says"),
    **dict.fromkeys(("_pickle.load", "_pickle.loads", "_pickle.Unpickler"), "runs whatever the file says"),
    **dict.fromkeys(("dill", "joblib.load", "cloudpickle.load", "cloudpickle.loads"), "is a pickle in other clothes"),
    **dict.fromkeys(("shelve", "pandas.read_pickle", "torch.jit.load", "torch.package"), "runs what the file says"),
    **dict.fromkeys(("marshal.load", "marshal.loads", "runpy"), "loads code"),
    **dict.fromkeys(("eval", "exec"), "runs a text as code"),
    **dict.fromkeys(("yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.unsafe_load_all"), "can build any object"),
    **dict.fromkeys(("yaml.full_load", "yaml.full_load_all"), "can build more than yaml.safe_load"),
    **dict.fromkeys(
        ("multiprocessing.connection.Client", "multiprocessing.connection.Listener", "multiprocessing.managers"),
        "unpickles what a socket sends",
    ),
    **dict.fromkeys(
        ("torch.serialization.add_safe_globals", "torch.serialization.safe_globals"),
        "lets every file of weights call more than torch allows",
    ),
    **dict.fromkeys(
        (
            "torch.distributed.checkpoint.FileSystemReader",
            "torch.distributed.checkpoint.filesystem",
            "torch.distributed.checkpoint.load_state_dict",
            "torch.distributed.checkpoint.format_utils",
        ),
        "reads metadata that is a pickle",
    ),
    **dict.fromkeys(
        ("os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"),
        "goes through a shell; give subprocess.run a list",
    ),
}
NETWORK = (
    *(
        "urllib.request",
        "http.client",
        "http.server",
        "xmlrpc",
        "requests",
        "httpx",
        "aiohttp",
        "urllib3",
        "websockets",
    ),
    *("ftplib", "smtplib", "poplib", "imaplib", "telnetlib", "nntplib", "webbrowser", "paramiko", "boto3"),
    *("huggingface_hub", "torch.hub", "torch.utils.model_zoo", "socket.create_connection", "asyncio.open_connection"),
)
CALENDAR = (
    *("time.time", "time.time_ns", "datetime.date.today"),
    *("datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today"),
)
MAY_READ_THE_CALENDAR = {
    "src/hasten/checkpoint/store.py": "saved_at of a manifest, which nothing depends on",
    "src/hasten/cli/checkpoints_command.py": "the age of a checkpoint, which another process or machine may have saved",
}


def check_refused(source: Source) -> Iterator[Fault]:
    """Nothing loads code from a file, passes through a shell or swallows an error."""
    for line, name in _references(source, REFUSED):
        yield Fault(source, line, f"{name} {REFUSED[name]}")
    yield from _conditional(source)
    for node in source.nodes:
        if isinstance(node, ast.Call):
            if called(source, node) == "contextlib.suppress" and any(_is_broad(source, item) for item in node.args):
                yield Fault(source, node.lineno, "suppresses every error; name the one that is expected")
            for keyword in node.keywords:
                if keyword.arg == "weights_only" and not _is_constant(keyword.value, True):
                    yield Fault(source, node.lineno, "weights_only must be True: anything else runs what the file says")
                if keyword.arg == "allow_pickle" and not _is_constant(keyword.value, False):
                    yield Fault(source, node.lineno, "allow_pickle must be False: a pickle runs what the file says")
                if keyword.arg == "shell" and not _is_constant(keyword.value, False):
                    yield Fault(source, node.lineno, "goes through a shell; give a list of arguments")
        elif isinstance(node, ast.ExceptHandler):
            if node.type is None:
                yield Fault(source, node.lineno, "a bare except also catches KeyboardInterrupt; name the error")
            elif _is_broad(source, node.type) and all(_does_nothing(statement) for statement in node.body):
                yield Fault(source, node.lineno, "swallows every error; name the one that is expected")


def check_network(source: Source) -> Iterator[Fault]:
    """The product opens no outbound connection, so nothing that could is even imported."""
    inside = tuple(name for name in NETWORK if "." in name)  # of what may be imported; a variable may have the others
    found = [*_references(source, inside), *_imports(source, NETWORK)]
    for line, name in sorted(set(found)):
        yield Fault(source, line, f"{name} goes out to the network, and the product never does")


def check_calendar(source: Source, allowed: Mapping[str, str] = MAY_READ_THE_CALENDAR) -> Iterator[Fault]:
    """A clock that can be set measures no duration."""
    if source.path not in allowed:
        for line, name in _references(source, CALENDAR):
            yield Fault(source, line, f"{name} jumps when the clock is set; time.monotonic and perf_counter do not")


def reads_the_calendar(source: Source) -> bool:
    return any(check_calendar(source, {}))


def _references(source: Source, names: Mapping[str, str] | tuple[str, ...]) -> list[tuple[int, str]]:
    """(line, which of the names) wherever one of them, or what lies in it, is read."""
    found = {(node.lineno, _listed(name, names)) for node, name in source.references}
    return sorted((line, name) for line, name in found if name)


def _imports(source: Source, names: tuple[str, ...]) -> list[tuple[int, str]]:
    found = list[tuple[int, str]]()
    for node in source.nodes:
        if isinstance(node, ast.Import):
            given = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            given = [f"{origin(source, node)}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and called(source, node) in ("importlib.import_module", "__import__"):
            given = [item.value for item in node.args if isinstance(item, ast.Constant) and isinstance(item.value, str)]
        else:
            continue
        found += [(node.lineno, name) for name in (_listed(each, names) for each in given) if name]
    return found


def _listed(name: str, names: Mapping[str, str] | tuple[str, ...]) -> str:
    parts = name.split(".")
    return next((each for count in range(len(parts), 0, -1) if (each := ".".join(parts[:count])) in names), "")


def _conditional(source: Source) -> Iterator[Fault]:
    """Functions that are safe in one way of calling them alone, which must be written out."""
    safe = dict[ast.expr, ast.Call]()
    for node in source.nodes:
        if isinstance(node, ast.Call) and (check := _SAFE_CALLS.get(called(source, node))) and check(source, node):
            safe[node.func] = node
    for node, name in source.references:
        if name in _SAFE_CALLS and node not in safe:
            yield Fault(source, node.lineno, f"{name} runs what the file says, unless it is called {_HOW[name]}")


def _says_weights_only(source: Source, call: ast.Call) -> bool:
    return any(keyword.arg == "weights_only" for keyword in call.keywords)  # with which value is looked at elsewhere


def _reads_safetensors(source: Source, call: ast.Call) -> bool:
    given = [keyword.value for keyword in call.keywords if keyword.arg == "storage_reader"]
    return any(
        isinstance(each, ast.Call) and called(source, each).endswith("HuggingFaceStorageReader") for each in given
    )


def _names_no_pickle(source: Source, call: ast.Call) -> bool:
    return len(call.args) < 3  # the third is allow_pickle


_SAFE_CALLS: dict[str, Callable[[Source, ast.Call], bool]] = {
    "torch.load": _says_weights_only,
    "torch.serialization.load": _says_weights_only,
    "torch.distributed.checkpoint.load": _reads_safetensors,
    "numpy.load": _names_no_pickle,
}
_HOW = {
    "torch.load": "with weights_only=True",
    "torch.serialization.load": "with weights_only=True",
    "torch.distributed.checkpoint.load": "with storage_reader=HuggingFaceStorageReader(…)",
    "numpy.load": "without allow_pickle",
}


def _is_constant(node: ast.expr, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def _is_broad(source: Source, node: ast.expr) -> bool:
    members = node.elts if isinstance(node, ast.Tuple) else [node]
    return any(dotted(source, member) in ("Exception", "BaseException") for member in members)


def _does_nothing(statement: ast.stmt) -> bool:
    constant = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return constant or isinstance(statement, ast.Pass | ast.Continue | ast.Break)
