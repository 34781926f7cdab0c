"""Run independent tasks on Dask: on threads, on processes of this machine, or on any cluster.

Whoever has work for many cores cuts it into tasks and takes the results as they come. Results and tasks
in flight are few, whatever the number of tasks. On a cluster a task whose worker was lost is done again, so
a task's function must be one that can be done twice.

Workers of a cluster open files under the paths that they are given: paths must be absolute.
"""

from __future__ import annotations

import queue
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import xxhash
from dask.system import CPU_COUNT
from dask.threaded import get

from hsstore.errors import InputError, InterruptedRunError
from hsstore.location import locate

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from contextlib import AbstractContextManager

    from hsstore.location import Location

    Progress = Callable[[int, int], None]
    """Called with what is done, and with all of it."""
    Bars = Callable[[str], AbstractContextManager[Progress]]
    """Begins to show something that is counted, such as "blocks"."""
    Client = Any
    Future = Any
    """Of dask.distributed, which has types in part."""

T = TypeVar("T")
R = TypeVar("R")

CONNECT_SECONDS = 10
WORKERS_SECONDS = 60
"""So long a cluster may be without any worker."""
LOOK_SECONDS = 5
"""Without a result for so long, we look whether the cluster still has workers."""
TASKS_A_THREAD = 2
"""Tasks in flight for each thread: one running, one ready, or done and not yet taken."""


@dataclass(frozen=True, slots=True)
class Where:
    """Where tasks run; by default on one thread for each CPU."""

    workers: int | None = None
    """Threads; of each process, with `processes`, where one is the default."""
    processes: int | None = None
    """Worker processes on this machine."""
    scheduler: str | None = None
    """Address of an existing `dask.distributed` scheduler, such as tcp://host:8786."""


@contextmanager
def no_bars(_: str) -> Iterator[Progress]:
    """Show nothing."""
    yield lambda _done, _total: None


def run_tasks(
    function: Callable[[T], R],
    tasks: Sequence[T],
    where: Where,
    *,
    files: Sequence[Location] = (),
) -> Generator[tuple[int, R]]:
    """Call a function on every task, and yield each result with the index of its task.

    Parameters
    ----------
    function : callable
        On a cluster it is pickled, as are tasks and results: a function of a module.
    tasks : sequence
        Items are taken as they are needed, by any thread: a sequence may make them then.
    files : sequence of Path or RemotePath
        Small files that the tasks need, such as a store's zarr.json: workers of a cluster have to see them
        as this process does.

    Yields
    ------
    index, result
        In the order in which they are done.

    Raises
    ------
    InputError
        The cluster cannot be reached or used; the message says what to do.
    InterruptedRunError
        The cluster was lost.
    Exception
        What a task raised, as it is.
    """
    if where.scheduler is not None and (where.processes or where.workers):
        raise InputError(
            "--scheduler names a cluster, which has its workers: leave --processes and --workers away"
        )
    if where.scheduler is not None or where.processes:
        return _on_cluster(function, tasks, where, {str(path): _hash(path) for path in files})
    return _on_threads(function, tasks, where.workers or CPU_COUNT)


# --- threads ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Failure:
    error: BaseException


def _on_threads(
    function: Callable[[T], R], tasks: Sequence[T], workers: int
) -> Generator[tuple[int, R]]:
    """Let Dask's threaded scheduler run in a thread of its own, and take what its tasks put."""
    done: queue.Queue[tuple[int, R] | _Failure | None] = queue.Queue(maxsize=workers)
    stop = Event()

    def run_one(index: int) -> None:
        if not stop.is_set():
            done.put((index, function(tasks[index])))

    def run_all() -> None:
        graph = {f"task-{index}": (run_one, index) for index in range(len(tasks))}
        try:
            with ThreadPoolExecutor(workers) as pool:
                get(graph, list(graph), pool=pool)
        except BaseException as error:  # noqa: BLE001  # raised again where the results are taken
            done.put(_Failure(error))
        done.put(None)

    scheduler = Thread(target=run_all, name="dask-scheduler")
    scheduler.start()
    try:
        while (item := done.get()) is not None:
            if isinstance(item, _Failure):
                raise item.error
            yield item
    finally:
        stop.set()
        _drain(done, scheduler)


def _drain(done: queue.Queue[Any], scheduler: Thread) -> None:
    """Let those who wait with a result go on, until the last one is gone."""
    while scheduler.is_alive():
        try:
            done.get(timeout=0.1)
        except queue.Empty:
            continue
    scheduler.join()


# --- clusters ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Checked(Generic[T, R]):
    """A function that is called only where hsstore and the files are the same as here."""

    function: Callable[[T], R]
    version: str
    files: tuple[tuple[str, str], ...]
    """Paths and the hashes of their contents."""

    def __call__(self, task: T) -> R:
        if problem := _problem_here(self.version, self.files):
            raise InputError(f"a Dask worker {problem}")
        return self.function(task)


@cache
def _problem_here(expected: str, files: tuple[tuple[str, str], ...]) -> str:
    """Say what is other in this process than in that of the client."""
    if (found := version("hsstore")) != expected:
        return (
            f"has hsstore {found}, and this is hsstore {expected}: install the same version there"
        )
    for path, content in files:
        if (here := _hash(locate(path))) != content:
            what = "does not see" if not here else "sees another file as"
            remedy = (
                "give all workers the way and the credentials to the object store"
                if "://" in path
                else "put it on a file system that all workers mount under this path"
            )
            return f"{what} {path}: {remedy}"
    return ""


def _hash(path: Location) -> str:
    """Hash a file; empty where it cannot be read."""
    try:
        return xxhash.xxh3_128_hexdigest(path.read_bytes())
    except OSError:
        return ""


def _on_cluster(
    function: Callable[[T], R], tasks: Sequence[T], where: Where, files: dict[str, str]
) -> Generator[tuple[int, R]]:
    distributed = _import_distributed()
    with _connected(distributed, where) as client:
        _wait_for_workers(client, where)
        _check_versions(client)
        checked = _Checked(function, _version_here(), tuple(files.items()))
        flight: _Flight[T, R] = _Flight(distributed, client, where)
        try:
            for index in range(len(tasks)):
                while flight.is_full():
                    yield flight.take()
                flight.submit(index, checked, tasks[index])
            while flight.futures:
                yield flight.take()
        finally:
            flight.cancel()


def _import_distributed() -> Any:  # noqa: ANN401  # a module that may be missing
    try:
        import distributed  # noqa: PLC0415  # an extra, and slow to import
    except ImportError:
        raise InputError(
            "--processes and --scheduler need dask.distributed: pip install 'hsstore[distributed]'"
        ) from None
    return distributed


@contextmanager
def _connected(distributed: Any, where: Where) -> Iterator[Client]:  # noqa: ANN401
    """Yield a client of the cluster that was named, or of one that is started and ended here."""
    with ExitStack() as stack:
        if where.scheduler is not None:
            client = stack.enter_context(_connect(distributed, where.scheduler))
        else:
            scratch = stack.enter_context(TemporaryDirectory(prefix="hsstore-dask-"))
            cluster = distributed.LocalCluster(
                n_workers=where.processes,
                threads_per_worker=where.workers or 1,
                processes=True,
                dashboard_address="127.0.0.1:0",  # any free port, or a second cluster would be warned of
                scheduler_kwargs={"dashboard": False},
                memory_limit=0,  # tasks bound their memory themselves
                local_directory=scratch,
                silence_logs="ERROR",
            )
            stack.enter_context(cluster)
            client = stack.enter_context(distributed.Client(cluster, set_as_default=False))
        yield client


def _connect(distributed: Any, address: str) -> Client:  # noqa: ANN401
    """Connect, with a deadline of our own: where something else listens, the client waits for ever."""
    outcome: queue.SimpleQueue[Client | Exception] = queue.SimpleQueue()

    def connect() -> None:
        try:
            # A client that cannot read its address waits for itself for 20 s when it is dropped.
            distributed.comm.resolve_address(address)
            outcome.put(distributed.Client(address, timeout=CONNECT_SECONDS, set_as_default=False))
        except Exception as error:  # noqa: BLE001  # judged by who waits
            outcome.put(error)

    Thread(target=connect, name="dask-connect", daemon=True).start()
    try:
        found = outcome.get(timeout=2 * CONNECT_SECONDS)
    except queue.Empty:
        found = TimeoutError(f"no answer in {2 * CONNECT_SECONDS} s")
    if isinstance(found, OSError | ValueError):
        raise InputError(
            f"no Dask scheduler answers at {address} ({found}): give the address that `dask scheduler` "
            "shows, such as tcp://host:8786"
        )
    if isinstance(found, Exception):
        raise found
    return found


def _wait_for_workers(client: Client, where: Where) -> None:
    try:
        client.wait_for_workers(1, timeout=WORKERS_SECONDS)
    except TimeoutError:
        raise InputError(
            f"the Dask cluster {where.scheduler} has had no worker for {WORKERS_SECONDS} s: start some with "
            f"`dask worker {where.scheduler}`"
        ) from None


def _version_here() -> str:
    return version("hsstore")


def _check_versions(client: Client) -> None:
    """Ask with a function that is there also where hsstore is not."""
    expected = _version_here()
    found = client.run(version, "hsstore", on_error="return")
    try:
        found["the scheduler"] = client.run_on_scheduler(version, "hsstore")
    except PackageNotFoundError as error:
        found["the scheduler"] = error
    for name, answer in found.items():
        if answer != expected:
            has = "no hsstore" if isinstance(answer, Exception) else f"hsstore {answer}"
            raise InputError(
                f"Dask cluster: {name} has {has}, and this is hsstore {expected}: install the same version "
                "on the scheduler and all workers"
            )


class _Flight(Generic[T, R]):
    """The tasks that a cluster has in its hands."""

    def __init__(self, distributed: Any, client: Client, where: Where) -> None:  # noqa: ANN401
        self._distributed = distributed
        self._client = client
        self._name = where.scheduler or "of this machine"
        self._done: queue.SimpleQueue[tuple[int, Future]] = queue.SimpleQueue()
        self.futures: dict[int, Future] = {}

    def is_full(self) -> bool:
        """Say whether no further task should be submitted; a cluster may grow and shrink."""
        return len(self.futures) >= max(self._threads(), 1) * TASKS_A_THREAD

    def _threads(self) -> int:
        with self._while_it_lives():
            return sum(self._client.nthreads().values())

    @contextmanager
    def _while_it_lives(self) -> Iterator[None]:
        """Name the cluster in what goes wrong when its scheduler is gone."""
        try:
            yield
        except (OSError, self._distributed.client.ClosedClientError) as error:
            raise self._lost(str(error)) from None

    def submit(self, index: int, function: Callable[[T], R], task: T) -> None:
        """Start a task; it has a key of its own even where it equals another one."""
        with self._while_it_lives():
            future = self._client.submit(function, task, pure=False)
        self.futures[index] = future
        future.add_done_callback(partial(self._put, index))

    def _put(self, index: int, future: Future) -> None:
        self._done.put((index, future))

    def take(self) -> tuple[int, R]:
        """Wait for the next result."""
        index, future = self._next_done()
        try:
            result: R = future.result()
        except self._distributed.KilledWorker as error:
            raise InterruptedRunError(
                f"task {index} was lost with every Dask worker that tried it: {error}; look into the logs of "
                "the workers (was one out of memory?), then run again"
            ) from None
        except self._distributed.client.FutureCancelledError as error:
            raise self._lost(str(error)) from None
        del self.futures[index]
        future.release()
        return index, result

    def _next_done(self) -> tuple[int, Future]:
        alone_seconds = 0
        while alone_seconds < WORKERS_SECONDS:
            try:
                return self._done.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                alone_seconds = 0 if self._threads() else alone_seconds + LOOK_SECONDS
        raise self._lost(f"no worker is left since {alone_seconds} s")

    def _lost(self, why: str) -> InterruptedRunError:
        return InterruptedRunError(
            f"the Dask cluster {self._name} is lost ({why}): look after its scheduler and workers, then run "
            "again"
        )

    def cancel(self) -> None:
        """Give up what is still in flight."""
        if self.futures and self._client.status == "running":
            self._client.cancel(list(self.futures.values()), force=True)
        self.futures.clear()
