"""What a user asked `hsstore extract` to do; handed to the worker as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import PlainSerializer, PlainValidator

from extraction.addresses import ServerAddress
from extraction.dataset import DatasetOptions
from hsstore.codec import DEFAULT_CODEC, CodecName
from hsstore.location import RemotePath, locate
from hsstore.spec import Record

Place = Annotated[Path | RemotePath, PlainValidator(locate), PlainSerializer(str)]
"""A path or a URL; in JSON its text."""


class DataOptions(DatasetOptions):
    """Where samples come from, and which are taken."""

    files: tuple[Place, ...] = ()


class ExtractOptions(Record):
    """One extraction run."""

    store: Place
    stage: Path | None = None
    """Where what goes to an object store lies meanwhile; None: with other temporary files."""
    server: str = ""
    """Base URL, such as http://127.0.0.1:30000. No secret is in it, nor in any other option. Empty
    where all servers are named in `servers_file`."""
    spool: Path = Path()
    """The spool of `server`."""
    relay: str = ""
    """URL of the relay that this spool is behind; empty: it is on this machine."""
    more_servers: tuple[ServerAddress, ...] = ()
    """Others that share the work."""
    servers_file: Path | None = None
    """More servers, a line each; read again while the run goes on."""
    api_key_file: Path | None = None
    """Where the server's API key is read from; None: `HSSTORE_API_KEY`."""
    ca_cert: Path | None = None
    """PEM file with the authority of an https server's certificate; None: the system's."""
    relay_token_file: Path | None = None
    """Where the token for relays is read from; None: `HSSTORE_RELAY_TOKEN`."""
    canary: bool = True
    """Compare states from within batches with those from alone."""
    canary_pause_seconds: float = 120.0
    """At least so long between two such checks during the run."""
    model: Path | None = None
    """The model's directory, for its tokenizer."""
    data: DataOptions = DataOptions()
    chunk_rows: int | None = None
    shard_rows: int | None = None
    span_samples: int | None = None
    codec: CodecName = DEFAULT_CODEC
    """How a new store compresses its states."""
    spool_budget_bytes: int | None = None
    """Of each server's spool. None: half of what the file system can give, for all spools in it."""
    memory_bytes: int = 2 << 30
    max_in_flight: int = 32
    """Requests at once, at each server."""
    max_attempts: int = 3
    max_failures: float = 0.01
    """Share of the samples that may fail before the run stops."""
    max_failures_in_row: int = 32
    request_timeout_seconds: float = 120.0
    """A request expires when its server's heartbeat stood still for so long."""
    server_wait_seconds: float = 600.0
    """How long to wait for a server that is starting, or that went away."""
    retry_failed: bool = False
    skip_too_large: bool = False
    take_over: bool = False
    """Take the claims of runs whose death cannot be proven from here."""
    worker: tuple[int, int] | None = None
    """(i, n): worker i of n on the store; None: the run has the store alone."""
    dry_run: bool = False
    grace_seconds: float = 20.0
    stall_after_seconds: float = 60.0
    """Without any progress for so long, a run is reported as stalled."""
    stall_abort_seconds: float = 900.0
    """And after so long it is ended; 0: never."""
    restarts: int = 0
    """How often a run that stalled, was killed or was interrupted is started again."""
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None
    """Where Prometheus metrics are served; None: nowhere."""

    @property
    def named_servers(self) -> tuple[ServerAddress, ...]:
        """The servers of the command line, in order."""
        first = ServerAddress(url=self.server, spool=self.spool, relay=self.relay)
        return (first, *self.more_servers) if self.server else self.more_servers

    @property
    def worker_text(self) -> str:
        """The worker as people write it, such as 1/4; empty where there is one run only."""
        return "" if self.worker is None else "{}/{}".format(*self.worker)

    @property
    def first_server(self) -> ServerAddress | None:
        """The first of them; None where all are named in the file."""
        return next(iter(self.named_servers), None)
