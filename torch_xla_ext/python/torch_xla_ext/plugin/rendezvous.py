"""Make the processes of one program meet before they create clients, and again at exit.

XLA's coordinator runs in the process of rank 0, and waits an hour for a process that does not
start. So the processes first meet in a torch.distributed.TCPStore, torchrun's own if there is one.

A process whose coordinator exits first considers it lost (csrc/runtime_fixes/lost_process.h). So
the processes also wait for each other at exit: each records that it is done, and rank 0 exits when
the others have ended.
"""

import atexit
import contextlib
import datetime
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from types import TracebackType

import torch_xla
from torch.distributed import PrefixStore, Store, TCPStore

from xla_kernels.plugin.errors import CudaRuntimeError
from xla_kernels.plugin.options import Processes

# The seconds that a process waits for the others at exit.
TIMEOUT_ENVIRONMENT = "TORCH_XLA_EXT_EXIT_TIMEOUT"
_DEFAULT_TIMEOUT = 60
# The seconds that a process waits for the others at start-up.
START_TIMEOUT_ENVIRONMENT = "TORCH_XLA_EXT_START_TIMEOUT"
_DEFAULT_START_TIMEOUT = 300
_DEFAULT_PORT = 8547  # of XLA's coordinator
# By process id, because a forked child inherits its parent's variables.
_prepared: set[int] = set()
_stores: dict[int, Store] = {}


def prepare(environ: Mapping[str, str]) -> None:
    """Wait until all processes have started, and make them wait for each other at exit.

    Args:
        environ: the variables of `connect`, and TORCH_XLA_EXT_EXIT_TIMEOUT (60), in seconds.

    Raises:
        CudaRuntimeError, ValueError: as `connect`, or XLA_COORDINATOR_PORT is taken.
    """
    processes = Processes.from_environ(environ)
    _check(processes)
    if processes.count == 1 or os.getpid() in _prepared:
        return
    _prepared.add(os.getpid())
    if processes.rank == 0:
        _check_free(_coordinator_port(environ), "XLA_COORDINATOR_PORT")
    timeout = float(environ.get(TIMEOUT_ENVIRONMENT, _DEFAULT_TIMEOUT))
    _Exit(processes, _host(environ), connect(environ), timeout).arrange()


def connect(environ: Mapping[str, str]) -> Store:
    """Wait until all processes have started, and return their store, the same on each call.

    Args:
        environ: the variables of `options.Processes`; MASTER_ADDR, the host of rank 0;
            XLA_COORDINATOR_PORT (8547), on that host; MASTER_PORT, the port of torchrun's store,
            which is otherwise the next one after XLA_COORDINATOR_PORT; TORCH_XLA_EXT_START_TIMEOUT
            (300), in seconds.

    Raises:
        CudaRuntimeError: ranks and counts do not fit together, a port is taken, or a process has
            not started in time.
        ValueError: a variable has no usable value.
    """
    if os.getpid() in _stores:
        return _stores[os.getpid()]
    processes = Processes.from_environ(environ)
    _check(processes)
    start_timeout = float(environ.get(START_TIMEOUT_ENVIRONMENT, _DEFAULT_START_TIMEOUT))
    serves = environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    port = _coordinator_port(environ) + 1 if serves else int(environ["MASTER_PORT"])
    if serves and processes.rank == 0:
        _check_free(port, "XLA_COORDINATOR_PORT + 1")
    run = f"torch_xla_ext/{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    try:
        tcp_store = TCPStore(
            _host(environ),
            port,
            is_master=serves and processes.rank == 0,
            wait_for_workers=False,
            timeout=datetime.timedelta(seconds=start_timeout),
        )
        store = PrefixStore(run, tcp_store)
        meet(store, processes, start_timeout)
    except CudaRuntimeError:
        raise
    except RuntimeError as error:
        text = str(error).partition("\n")[0]
        raise CudaRuntimeError(
            f"the processes' store on rank 0, {_host(environ)}:{port}, cannot be reached: {text}; "
            "check that rank 0 is running, that MASTER_ADDR is right, and that its firewall allows "
            "the port"
        ) from None
    _stores[os.getpid()] = store
    return store


def agreed(key: str, choose: Callable[[], str]) -> str:
    """Return the choice of the process that asks first.

    Args:
        key: identifies the choice; the same in all processes.
        choose: makes the choice, in the process that asks first.

    Raises:
        RuntimeError: `choose` failed in another process, or takes longer than the store's timeout.
    """
    store = _stores.get(os.getpid())
    if store is None or Processes.from_environ(os.environ).count == 1:
        return choose()
    if store.add(f"agreed/{key}/asked", 1) == 1:
        answer = "?"
        try:
            answer = "=" + choose()
        finally:
            store.set(f"agreed/{key}", answer)
        return answer[1:]
    answer = store.get(f"agreed/{key}").decode()
    if answer == "?":
        raise RuntimeError("the process that chooses for all has failed; see its error")
    return answer[1:]


def _host(environ: Mapping[str, str]) -> str:
    return environ.get("MASTER_ADDR", "localhost")


def _coordinator_port(environ: Mapping[str, str]) -> int:
    return int(environ.get("XLA_COORDINATOR_PORT", _DEFAULT_PORT))


def meet(store: Store, processes: Processes, timeout: float) -> None:
    """Wait until all processes have connected to the store.

    Raises:
        CudaRuntimeError: a process did not connect in time, or expects another number of processes.
    """
    end = time.monotonic() + timeout
    store.set(f"start/{processes.rank}", str(processes.count))
    for rank in range(processes.count):
        while not store.check([f"start/{rank}"]):
            if time.monotonic() > end:
                raise CudaRuntimeError(
                    f"rank {rank} did not start within {timeout:g} s "
                    f"({START_TIMEOUT_ENVIRONMENT}); "
                    f"WORLD_SIZE is {processes.count}: start this many processes, "
                    "with the same MASTER_ADDR"
                )
            time.sleep(0.05)
        count = int(store.get(f"start/{rank}"))
        if count != processes.count:
            raise CudaRuntimeError(
                f"WORLD_SIZE is {processes.count} for rank {processes.rank}, but {count} for rank "
                f"{rank}; start all processes with the same number, as torchrun does"
            )


def _check(processes: Processes) -> None:
    for name, rank, count_name, count in (
        ("RANK", processes.rank, "WORLD_SIZE", processes.count),
        ("LOCAL_RANK", processes.local_rank, "LOCAL_WORLD_SIZE", processes.local_count),
    ):
        if not 0 <= rank < count:
            raise CudaRuntimeError(
                f"{name} must be at least 0 and less than {count_name}, {count}, but is {rank}; "
                "start all processes with the same number of them, as torchrun does"
            )
    if processes.local_count > processes.count:
        raise CudaRuntimeError(
            f"LOCAL_WORLD_SIZE, {processes.local_count}, is more than WORLD_SIZE, "
            f"{processes.count}; WORLD_SIZE counts the processes of all hosts"
        )


def _check_free(port: int, name: str) -> None:
    try:
        with socket.socket() as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(("", port))
    except OSError as error:
        raise CudaRuntimeError(
            f"{name}: port {port} cannot be used ({error.strerror}), perhaps because another job "
            "uses it; set XLA_COORDINATOR_PORT to another port, the same in all processes"
        ) from None


class _Exit:
    """The shutdown of this process."""

    def __init__(self, processes: Processes, host: str, store: Store, timeout: float) -> None:
        self._rank, self._count = processes.rank, processes.count
        self._timeout = timeout
        self._failed = False
        self._host = host
        self._store = store

    def arrange(self) -> None:
        before = sys.excepthook

        def note(
            kind: type[BaseException], error: BaseException, traceback: TracebackType | None
        ) -> None:
            self._failed = True
            before(kind, error, traceback)

        sys.excepthook = note
        # Runs before torch_xla destroys its client: exit handlers run in reverse order.
        atexit.register(self._leave)

    def _leave(self) -> None:
        if torch_xla._XLAC._xla_lost_process():
            return  # XLA's coordinator has informed the others
        state = "failed" if self._failed else "done"
        listener = None
        try:
            if self._rank == 0 and not self._failed:
                listener = socket.create_server(("", 0))
                self._store.set("exit/port", str(listener.getsockname()[1]))
            self._store.set(f"exit/{self._rank}", state)
            if self._failed:
                return
            problem = self._wait()
            if problem:
                print(f"torch_xla_ext: rank {self._rank}: {problem}", file=sys.stderr)
            elif listener is not None:
                self._see_others_end(listener)
            else:
                port = int(self._store.get("exit/port"))
                # Detached, because the interpreter closes its sockets while XLA still polls the
                # coordinator. The operating system closes this one when the process has ended.
                socket.create_connection((self._host, port), self._timeout).detach()
        except (OSError, RuntimeError) as error:  # rank 0 has ended, and its store with it
            text = str(error).partition("\n")[0]
            print(
                f"torch_xla_ext: rank {self._rank}: lost the connection to rank 0: {text}",
                file=sys.stderr,
            )

    def _wait(self) -> str:
        """Wait until all processes have recorded that they are done; return the problem, if any."""
        end = time.monotonic() + self._timeout
        missing = set(range(self._count))
        while missing:
            for rank in sorted(missing):
                if not self._store.check([f"exit/{rank}"]):
                    continue
                noted = self._store.get(f"exit/{rank}").decode()
                if noted != "done":
                    return f"did not wait for the other processes: rank {rank} has {noted}"
                missing.discard(rank)
            if missing and time.monotonic() > end:
                return (
                    f"waited {self._timeout:g} s for rank {', '.join(map(str, sorted(missing)))} "
                    f"to end ({TIMEOUT_ENVIRONMENT})"
                )
            time.sleep(0.05)
        return ""

    def _see_others_end(self, listener: socket.socket) -> None:
        """Wait until the other processes have ended, because XLA's coordinator runs in this one."""
        listener.settimeout(self._timeout)
        connections = []
        with contextlib.suppress(OSError):
            for _ in range(self._count - 1):
                connections.append(listener.accept()[0])
            for connection in connections:
                connection.settimeout(self._timeout)
                connection.recv(1)
