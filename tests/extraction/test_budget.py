"""Admission by bytes."""

from __future__ import annotations

import asyncio

import pytest

from extraction.budget import ByteBudget


async def _waits(task: asyncio.Task[None]) -> bool:
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return not task.done()


async def test_what_does_not_fit_waits_until_enough_is_released() -> None:
    budget = ByteBudget(100)
    await budget.acquire(60)
    task = asyncio.create_task(budget.acquire(50))

    assert await _waits(task)
    budget.release(5)
    assert await _waits(task)
    budget.release(5)
    await task

    assert budget.used_bytes == 100


async def test_what_can_never_fit_is_an_error_not_a_wait() -> None:
    with pytest.raises(ValueError, match="101 bytes can never fit into a budget of 100"):
        await ByteBudget(100).acquire(101)


async def test_the_budget_asks_for_what_is_missing_before_it_waits() -> None:
    missing: list[int] = []

    def relieve(nbytes: int) -> None:
        missing.append(nbytes)
        budget.release(70)

    budget = ByteBudget(100, relieve)
    await budget.acquire(80)

    await budget.acquire(90)

    assert missing == [70]
    assert budget.used_bytes == 100


async def test_it_asks_again_when_told_that_there_may_be_something_now() -> None:
    asked: list[int] = []
    budget = ByteBudget(100, asked.append)
    await budget.acquire(100)
    task = asyncio.create_task(budget.acquire(10))
    assert await _waits(task)

    budget.recheck()
    assert await _waits(task)

    assert asked == [10, 10]
    task.cancel()


async def test_bytes_in_use_already_may_exceed_the_limit_and_are_paid_back_first() -> None:
    budget = ByteBudget(100)
    budget.take(150)
    task = asyncio.create_task(budget.acquire(10))

    budget.release(50)
    assert await _waits(task)
    budget.release(10)
    await task

    assert budget.used_bytes == 100


async def test_of_many_that_wait_all_come_in_as_bytes_are_released() -> None:
    budget = ByteBudget(10)

    async def use(nbytes: int) -> int:
        await budget.acquire(nbytes)
        assert budget.used_bytes <= 10
        await asyncio.sleep(0)
        budget.release(nbytes)
        return nbytes

    sizes = [1 + n % 10 for n in range(50)]
    assert await asyncio.gather(*map(use, sizes)) == sizes
    assert budget.used_bytes == 0
