"""Forwards become dumps, bit for bit, however requests were chopped, mixed and sent again."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from extraction.spool import ClientInfo, ErrorReason, SpoolClient, SpoolServer
from tests.plugin.conftest import (
    Engine,
    Mode,
    assert_dump_is,
    make_forward,
    make_sample,
)
from tests.spool.given import RUN

if TYPE_CHECKING:
    from tests.plugin.conftest import Sample

shared = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)


@dataclass(frozen=True)
class _Plan:
    """Requests and the forwards they come in: (request, start, stop) of each."""

    rows: list[int]
    forwards: list[list[tuple[int, int, int]]]
    padding: int


@st.composite
def plans(draw: st.DrawFn) -> _Plan:
    """Chop requests into chunks, replay some from the start, and mix them into forwards."""
    rows = draw(st.lists(st.integers(1, 40), min_size=1, max_size=5))
    chunks: list[list[tuple[int, int, int]]] = []
    for request, total in enumerate(rows):
        cuts = sorted(draw(st.sets(st.integers(1, max(1, total - 1)), max_size=4)) - {total})
        edges = [0, *cuts, total]
        pieces = [(request, low, high) for low, high in pairwise(edges)]
        replayed = draw(st.integers(0, len(pieces) - 1))  # retracted, and begun again
        chunks.append(pieces[:replayed] + pieces)
    forwards = []
    while any(chunks):
        open_ones = [one for one in chunks if one]
        chosen = [one for one in open_ones if not draw(st.booleans())] or open_ones[:1]
        forwards.append([one.pop(0) for one in chosen])
    return _Plan(rows, forwards, draw(st.integers(0, 3)))


@given(plan=plans())
@shared
def test_any_chopping_of_any_requests_with_replays_gives_exactly_their_states(
    server: SpoolServer, client: SpoolClient, engine: Engine, plan: _Plan
) -> None:
    first = len(server._ended)
    requests = [make_sample(first + sample, rows) for sample, rows in enumerate(plan.rows)]

    for forward in plan.forwards:
        engine.forward(
            *((requests[r], low, high) for r, low, high in forward), padding=plan.padding
        )
    engine.drain()

    for request in requests:
        assert_dump_is(client, request)
        client.give_back(request.rid)
    assert not client.scan().errors
    assert engine.staging.ring.used_bytes() == 0


def test_rows_of_others_in_the_same_forward_are_not_captured(
    client: SpoolClient, engine: Engine
) -> None:
    ours, alien = make_sample(0, 20), make_sample(1, 30, run="someoneelse")
    output, batch = make_forward([(alien, 0, 30), (ours, 0, 20), (alien, 0, 10)])
    assert batch.rids is not None
    batch.rids[2] = "HEALTH_CHECK_1234"

    engine.hook.after(output, batch)
    engine.drain()

    assert_dump_is(client, ours)
    assert list(client.scan().finished) == [ours.rid]


def test_a_server_without_a_client_captures_nothing_and_still_beats(
    server: SpoolServer, engine: Engine
) -> None:
    engine.forward((make_sample(0, 20), 0, 20))
    engine.drain()

    with SpoolClient(server.directory.path, ClientInfo(RUN, "store")) as client:
        assert not client.scan().finished
        heartbeat = client.heartbeat()
        assert heartbeat is not None
        assert (heartbeat.forwards, heartbeat.rows, heartbeat.queue_depth) == (1, 0, 0)


@pytest.mark.parametrize("mode", [Mode(extend=False), Mode(verify=True)])
def test_a_decode_step_is_counted_and_not_captured(
    client: SpoolClient, engine: Engine, mode: Mode
) -> None:
    output, batch = make_forward([(make_sample(0, 20), 0, 20)])
    batch.forward_mode = mode

    engine.hook.after(output, batch)
    engine.drain()

    assert client.scan().allocated_bytes == 0
    assert (beat := client.heartbeat()) is not None
    assert beat.forwards == 1


@pytest.mark.parametrize("rids", [None, []])
def test_a_warm_up_without_requests_is_ignored(
    client: SpoolClient, engine: Engine, rids: list[str] | None
) -> None:
    output, batch = make_forward([(make_sample(0, 20), 0, 20)])
    batch.rids = rids
    batch.extend_seq_lens_cpu = None  # type: ignore[assignment]

    engine.hook.after(output, batch)
    engine.drain()

    assert client.scan().allocated_bytes == 0


def test_rows_that_a_prefix_cache_had_end_as_incomplete_at_once(
    client: SpoolClient, engine: Engine
) -> None:
    cached = make_sample(0, 20)

    engine.forward((cached, 8, 15))
    engine.forward((cached, 15, 20))
    engine.drain()

    failure = client.take_error(cached.rid)
    assert failure.reason == ErrorReason.INCOMPLETE
    assert failure.detail == "have [8, 20) of [0, 20)"
    assert not client.scan().partial


def test_a_request_sent_again_after_its_end_is_not_captured_twice(
    client: SpoolClient, engine: Engine
) -> None:
    request = make_sample(0, 20)
    engine.forward((request, 0, 20))
    engine.drain()
    with client.open_dump(request.rid):
        pass
    client.give_back(request.rid)

    engine.forward((request, 0, 20))
    engine.drain()

    scan = client.scan()
    assert not scan.finished
    assert not scan.partial
    assert not scan.errors


def test_a_request_twice_in_one_forward_still_gives_its_states(
    client: SpoolClient, engine: Engine
) -> None:
    request = make_sample(0, 20)

    engine.forward((request, 0, 12), (request, 0, 12), (request, 12, 20))
    engine.drain()

    assert_dump_is(client, request)


def test_decode_steps_mixed_into_a_prompt_forward_change_nothing(
    client: SpoolClient, engine: Engine
) -> None:
    done, new = make_sample(0, 20), make_sample(1, 9)
    engine.forward((done, 0, 20))
    engine.drain()
    output, batch = make_forward([(done, 0, 1), (new, 0, 9)])
    batch.extend_prefix_lens_cpu[0] = 20  # its first generated token

    engine.hook.after(output, batch)
    engine.drain()

    assert_dump_is(client, done)
    assert_dump_is(client, new)
    assert not client.scan().errors


def test_the_heartbeat_shows_captures_that_wait(server: SpoolServer, client: SpoolClient) -> None:
    engine = Engine(server)
    parts: list[tuple[Sample, int, int]] = [(make_sample(k, 10), 0, 10) for k in range(3)]
    with server._guard:
        engine.forward(*parts)
        waiting = client.heartbeat()
    engine.drain()
    done = client.heartbeat()

    assert waiting is not None
    assert done is not None
    assert (waiting.forwards, waiting.queue_depth) == (1, 3)
    assert (done.rows, done.queue_depth) == (30, 0)
    engine.recorder.close()


def test_many_forwards_stay_within_the_buffer(client: SpoolClient, engine: Engine) -> None:
    """More bytes than the buffer holds, in pieces of all sizes: it wraps many times."""
    for sample in range(200):
        request = make_sample(sample, 1 + sample)
        engine.forward((request, 0, request.rid.rows))
        if sample % 3 == 0:
            engine.drain()
    engine.drain()

    scan = client.scan()
    assert len(scan.finished) + len(scan.errors) == 200
    for rid in scan.finished:
        assert_dump_is(client, make_sample(rid.sample, rid.rows))
