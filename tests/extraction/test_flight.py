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
        flight.busy()
        caps.append(flight.cap)

    assert caps == [16, 8, 4, 2, 1, 1, 1]


def test_the_cap_grows_one_by_one_up_to_where_it_began() -> None:
    flight = FlightCap(4)
    flight.busy()

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
    flight.busy()
    for _ in range(GROW_AFTER - 1):
        flight.good()

    flight.busy()
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

    async with asyncio.timeout(1), flight.seat():
        assert flight.in_flight == 1
