"""Claims of a store under a URL: objects beside it, put on conditions.

::

    STORE.runs/claims/
    ├── <run>.beat        put anew every few seconds while the run lives: what it says of itself
    ├── 17                who owns span 17
    └── worker-1-of-4     who is worker 1 of 4

An object without bytes is free: nothing is ever deleted, so that no permission for it is needed. Each put names
what it replaces, so of several who want a claim one gets it.
"""

from __future__ import annotations

import math
import time
from contextlib import contextmanager, suppress
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING

from pydantic import ValidationError
from typing_extensions import override

from hsstore.activity import unnoticed
from hsstore.claim import Claim, ClaimPlace, Found
from hsstore.errors import HsstoreError, InputError, RefusedError
from hsstore.liveness import Beat, began_ticks, process_lives
from hsstore.location import runs_beside
from hsstore.objects import Answer, Request, read_many
from hsstore.objects.files import put_parts
from hsstore.objects.puts import ABSENT, ConflictError, Put
from hsstore.objects.write import abort, find_uploads, head, put, put_many
from hsstore.spec import COMPLETION

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Mapping, Sequence

    from hsstore.location import RemotePath

FREE = b""
BEAT_SUFFIX = ".beat"
_CONDITIONS = {
    "gs": ("ifGenerationMatch=0", "ifGenerationMatch"),
    "memory": ("none is there", "of a version"),
    "s3": ("If-None-Match", "If-Match"),
}
"""How each kind of store calls the condition that there is no such object, and that it is of a version."""
_NO_SUCH_VERSION = '"00000000000000000000000000000000"'


_ended: set[str] = set()
"""Runs of this process that have ended: it may have others after them, in a notebook."""


def claims_at(store: RemotePath) -> RemotePath:
    """Return where spans of a store are claimed: beside it.

    Raises
    ------
    InputError
    """
    return runs_beside(store) / "claims"


def read_claims_at(store: RemotePath) -> dict[str, tuple[Claim, int]]:
    """Return, by run, its claim, and how many spans it has; what is no claim is left out.

    Raises
    ------
    UnreachableError, InputError
    """
    directory = claims_at(store)
    names = sorted(name for name, size_bytes in directory.find().items() if size_bytes)
    answers = read_many([Request(str(directory / name)) for name in names if name.isdigit()])
    found: dict[str, tuple[Claim, int]] = {}
    for answer in answers:
        with suppress(ValidationError):
            claim = Claim.model_validate_json(answer.data if answer else FREE)
            found[claim.run] = (claim, found.get(claim.run, (claim, 0))[1] + 1)
    return found


def read_signs(store: RemotePath) -> list[Answer]:
    """Read the signs of life of runs that have not ended, with their times.

    Raises
    ------
    UnreachableError, InputError
    """
    directory = claims_at(store)
    found = sorted(name for name, size_bytes in directory.find().items() if size_bytes)
    signs = [Request(str(directory / name)) for name in found if name.endswith(BEAT_SUFFIX)]
    return [answer for answer in read_many(signs) if answer is not None]


def is_alive(owner: Claim) -> bool:
    """Say whether a run of this host, boot and pid namespace lives."""
    return owner.run not in _ended and process_lives(owner.pid, owner.began)


class ClaimObjects(ClaimPlace):
    """The claims of one run beside a store under a URL.

    Parameters
    ----------
    say : callable, optional
        Returns what to tell with each sign of life; our claim if it is left out.

    Raises
    ------
    RefusedError
        The run is going on already.
    InputError
        The object store ignores what a put is to replace; or it refuses.
    UnreachableError
    """

    clock = "the object store's clock"
    still_held = "It is taken over when it has been silent for a while"

    def __init__(
        self, store: RemotePath, me: Claim, say: Callable[[], bytes] | None = None
    ) -> None:
        self._store = store
        self._directory = claims_at(store)
        self.me = me.model_copy(update={"began": began_ticks(me.pid)})
        self._say = say or self.me.text
        self._versions: dict[str, str] = {}
        """Of the claims that are ours."""
        self._sign = str(self._directory / f"{me.run}{BEAT_SUFFIX}")
        self._beating = Lock()
        self._time = (0.0, 0.0)
        """When our last beat came, by the store's clock and by our own."""
        try:
            self._beat_version = put(self._sign, self.me.text(), replaces=ABSENT)
        except ConflictError:
            raise RefusedError(f"run {me.run} is already going on") from None
        _ended.discard(me.run)
        self._refuse_what_ignores_conditions()
        self._renew()
        self._beat = Beat(self._renew_quietly)

    @override
    def take(self, names: Sequence[str]) -> list[str]:
        for name in names:
            self._versions.pop(name, None)
        answers = read_many([Request(self._url(name)) for name in names])
        free: dict[str, str] = {}
        for name, answer in zip(names, answers, strict=True):
            if answer is None or answer.data == FREE:
                free[name] = ABSENT if answer is None else answer.version
            elif answer.data == self.me.text():
                self._versions[name] = answer.version
        self._put(self.me.text(), free)
        return [name for name in names if name not in self._versions]

    @override
    def read(self, name: str) -> Found | None:
        (answer,) = read_many([Request(self._url(name))])
        if answer is None or answer.data == FREE:
            return None
        try:
            return Found(Claim.model_validate_json(answer.data), answer.version)
        except ValidationError as error:
            url = self._url(name)
            raise RefusedError(f"{url} is not a claim: {error}; remove it") from error

    @override
    def read_anew(self, name: str) -> Found | None:
        return self.read(name)

    @override
    def names(self) -> list[str]:
        return [name for name, size_bytes in self._directory.find().items() if size_bytes]

    @override
    def inherit(self, name: str, found: Found) -> None:
        self._put(self.me.text(), {name: found.version})

    @override
    def give(self, names: Sequence[str]) -> None:
        ours = {name: self._versions[name] for name in names if name in self._versions}
        # Where that is not what is there, an heir has it.
        put_many([Put(self._url(name), FREE, version) for name, version in ours.items()])
        for name in ours:  # not before: what fails is tried again when the run ends
            del self._versions[name]

    @override
    def remove(self, name: str, found: Found) -> None:
        with suppress(ConflictError):
            put(self._url(name), FREE, replaces=found.version)

    @override
    def is_alive(self, owner: Claim) -> bool:
        return is_alive(owner)

    @override
    def last_signs(self, owner: Claim) -> tuple[float, float]:
        theirs = head(self._url(f"{owner.run}{BEAT_SUFFIX}"))
        at_store, here = self._time
        now = at_store + time.monotonic() - here
        return theirs.modified if theirs else -math.inf, now

    @override
    @contextmanager
    def held_dead(self, owner: Claim, *, insist: bool) -> Iterator[bool]:
        yield not (owner.shares_locks_with(self.me) and self.is_alive(owner))

    @override
    def sweep(self, spans: Container[int], span_of: Callable[[int], int | None]) -> None:
        with suppress(InputError):  # to list them may not be allowed: a lifecycle rule ends them
            for upload in find_uploads(f"{self._store}/"):
                array, _, name = upload.url.removeprefix(f"{self._store}/").partition("/c.")
                number = name.partition(".")[0]
                if array not in {"hidden_states", *COMPLETION} or not number.isdigit():
                    continue  # not ours
                span = span_of(int(number)) if array == "hidden_states" else int(number)
                if span in spans:
                    abort(upload)

    @override
    def end(self) -> None:
        self._beat.end()

    @override
    def close(self, *, clean: bool) -> None:
        _ended.add(self.me.run)
        if clean:
            with self._beating, suppress(HsstoreError):
                put(self._sign, FREE, replaces=self._beat_version)

    def _put(self, text: bytes, replaces: Mapping[str, str]) -> None:
        """Put what we claim; what is another object by now is not ours."""
        puts = [Put(self._url(name), text, version) for name, version in replaces.items()]
        for name, version in zip(replaces, put_many(puts), strict=True):
            if version is not None:
                self._versions[name] = version

    def _refuse_what_ignores_conditions(self) -> None:
        absent, other = _CONDITIONS[self._store.url.partition("://")[0]]
        for condition, replaces in ((absent, ABSENT), (other, _NO_SUCH_VERSION)):
            whole = partial(put, self._sign, self.me.text(), replaces=replaces)
            self._refuse_unless_conflict(whole, f"of a put ({condition})")
            in_parts = partial(put_parts, self._sign, [self.me.text], replaces=replaces)
            self._refuse_unless_conflict(in_parts, f"of the end of an upload ({condition})")

    def _refuse_unless_conflict(self, attempt: Callable[[], str], what: str) -> None:
        try:
            self._beat_version = attempt()
        except ConflictError:
            return
        self.close(clean=True)  # or the run would seem to be alive
        raise InputError(
            f"{self._store}: this object store ignores conditions {what}, so two runs could "
            "write over each other: write to a disk, and copy the store"
        )

    def _renew(self) -> None:
        with self._beating:
            with suppress(ConflictError):  # one that was given up has arrived after all
                self._beat_version = put(self._sign, self._say(), replaces=self._beat_version)
            found = head(self._sign)
            if found is not None:
                self._beat_version = found.version
                self._time = (found.modified, time.monotonic())

    def _renew_quietly(self) -> None:
        # What does not work is told by whoever writes data there.
        with unnoticed(), suppress(HsstoreError):
            self._renew()

    def _url(self, name: str) -> str:
        return str(self._directory / name)
