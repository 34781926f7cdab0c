"""How many requests fly at once."""

from __future__ import annotations

import asyncio

import pytest

from extraction.flight import GROW_AFTER, FlightCap


async def test_no_more_fly_than_there_are_seats() -> None:
    flight, most = FlightCap(3), 0

    async def fly() -> None:
        nonlocal most
        async with flight.seat():
            most = max(most, flight.in_flight)
            await asyncio.sleep(0)

    await asyncio.gather(*(fly() for _ in range(20)))

    assert (most, flight.in_flight) == (3, 0)


def test_a_busy_server_gets_half_as_many_and_never_none() -> None:
    flight = FlightCap(32)

    caps = []
    for _ in range(7):
        flight.busy("full")
        caps.append(flight.cap)

    assert caps == [16, 8, 4, 2, 1, 1, 1]


def test_the_cap_grows_one_by_one_up_to_where_it_began() -> None:
    flight = FlightCap(4)
    flight.busy("full")

    for _ in range(GROW_AFTER - 1):
        flight.good()
    before = flight.cap
    flight.good()
    after = flight.cap
    for _ in range(10 * GROW_AFTER):
        flight.good()

    assert (before, after, flight.cap) == (2, 3, 4)


def test_trouble_begins_the_count_anew() -> None:
    flight = FlightCap(4)
    flight.busy("full")
    for _ in range(GROW_AFTER - 1):
        flight.good()

    flight.busy("full")
    flight.good()

    assert flight.cap == 1


async def test_a_seat_is_given_back_after_an_error_and_when_its_holder_is_cancelled() -> None:
    flight = FlightCap(1)
    with pytest.raises(ZeroDivisionError):
        async with flight.seat():
            raise ZeroDivisionError

    async def sit() -> None:
        async with flight.seat():
            await asyncio.Event().wait()

    holder, waiter = asyncio.create_task(sit()), asyncio.create_task(sit())
    await asyncio.sleep(0)
    waiter.cancel()
    holder.cancel()
    await asyncio.gather(holder, waiter, return_exceptions=True)

    async with asyncio.timeout(60), flight.seat():
        assert flight.in_flight == 1


async def test_who_flies_alone_waits_for_the_others_and_keeps_them_out() -> None:
    flight, seen = FlightCap(3), []

    async def fly(*, alone: bool) -> None:
        async with flight.seat(alone=alone):
            seen.append((alone, flight.in_flight))
            await asyncio.sleep(0.01)
            seen.append((alone, flight.in_flight))

    await asyncio.gather(*(fly(alone=number in {2, 7}) for number in range(12)))

    assert [most for alone, most in seen if alone] == [1, 1, 1, 1]
    assert flight.in_flight == 0


async def test_who_gives_up_to_fly_alone_holds_nobody_back() -> None:
    flight = FlightCap(2)
    async with flight.seat():
        lonely = asyncio.create_task(enter(flight, alone=True))
        await asyncio.sleep(0)
        other = asyncio.create_task(enter(flight, alone=False))
        await asyncio.sleep(0)
        lonely.cancel()
        async with asyncio.timeout(60):
            await other


async def enter(flight: FlightCap, *, alone: bool) -> None:
    async with flight.seat(alone=alone):
        pass


def test_a_server_that_is_only_busy_is_known_by_its_reason() -> None:
    flight = FlightCap(2)
    for _ in range(7):
        flight.busy("full: no room")
    before = flight.only_busy
    flight.busy("full: no room")

    assert (before, flight.only_busy) == ("", "full: no room")
    flight.good()
    assert not flight.only_busy
