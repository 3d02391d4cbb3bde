"""The queue of keys: lanes, de-duplication, back-off, deadlines."""

import asyncio
import itertools

import pytest

from tuning_operator.cluster.queue import LONGEST_DELAY, Lane, WorkQueue


async def taken(queue: WorkQueue) -> tuple[str, Lane]:
    return await asyncio.wait_for(queue.get(), 2)


async def test_keys_come_first_come_first_served_in_a_lane() -> None:
    queue = WorkQueue()
    for key in ("a", "b", "c"):
        queue.add(key)
    assert [(await taken(queue))[0] for _ in range(3)] == ["a", "b", "c"]


async def test_a_faster_lane_goes_first() -> None:
    queue = WorkQueue()
    queue.add("status", Lane.STATUS)
    queue.add("cleanup", Lane.CLEANUP)
    queue.add("cluster", Lane.CLUSTER)
    queue.add("job", Lane.JOB)
    assert [(await taken(queue))[0] for _ in range(4)] == ["cluster", "job", "status", "cleanup"]


async def test_a_key_that_waits_already_is_not_added_twice() -> None:
    queue = WorkQueue()
    queue.add("a")
    queue.add("a")
    assert len(queue) == 1
    queue.done((await taken(queue))[0])
    assert len(queue) == 0


async def test_a_key_moves_to_a_faster_lane_but_never_to_a_slower_one() -> None:
    queue = WorkQueue()
    queue.add("slow", Lane.STATUS)
    queue.add("other", Lane.JOB)
    queue.add("slow", Lane.CLUSTER)
    queue.add("slow", Lane.CLEANUP)
    assert await taken(queue) == ("slow", Lane.CLUSTER)
    assert await taken(queue) == ("other", Lane.JOB)
    assert len(queue) == 0


async def test_a_key_is_never_worked_on_twice_at_the_same_time() -> None:
    queue = WorkQueue()
    queue.add("a")
    await taken(queue)
    queue.add("a", Lane.STATUS)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(queue.get(), 0.02)
    queue.done("a")
    assert await taken(queue) == ("a", Lane.STATUS)


async def test_work_of_a_slow_lane_waits_only_for_others_in_faster_lanes() -> None:
    queue = WorkQueue()
    assert queue.is_first(Lane.STATUS)
    queue.add("a", Lane.STATUS)
    assert queue.is_first(Lane.STATUS)
    queue.add("b", Lane.SUPPORT)
    assert not queue.is_first(Lane.STATUS)
    assert queue.is_first(Lane.SUPPORT)


async def test_whoever_waits_is_woken() -> None:
    queue = WorkQueue()
    waiting = [asyncio.create_task(queue.get()) for _ in range(3)]
    await asyncio.sleep(0)
    for key in ("a", "b", "c"):
        queue.add(key)
    assert {key for key, _ in await asyncio.gather(*waiting)} == {"a", "b", "c"}


async def test_a_cancelled_worker_loses_no_key() -> None:
    queue = WorkQueue()
    first, second = (asyncio.create_task(queue.get()) for _ in range(2))
    await asyncio.sleep(0)
    queue.add("a")
    first.cancel()
    assert await asyncio.wait_for(second, 2) == ("a", Lane.CLUSTER)


async def test_a_failed_key_comes_again_later_and_later() -> None:
    queue = WorkQueue(clock=lambda: 0.0)
    delays = [queue.failed("a") for _ in range(14)]
    assert 0.1 <= delays[0] <= 0.125
    assert all(later > sooner for sooner, later in itertools.pairwise(delays[:9]))
    assert LONGEST_DELAY <= delays[-1] <= LONGEST_DELAY * 1.25
    queue.succeeded("a")
    assert queue.failed("a") <= 0.125
    assert queue.failed("a", at_least=7) >= 7


async def test_a_deadline_lets_the_key_come_again() -> None:
    queue = WorkQueue()
    queue.set_deadline("late", 0.06)
    queue.set_deadline("soon", 0.02)
    assert len(queue) == 0
    assert queue.deadlines == 2
    assert [(await taken(queue))[0] for _ in range(2)] == ["soon", "late"]


async def test_a_new_deadline_replaces_the_old_one() -> None:
    queue = WorkQueue()
    queue.set_deadline("a", 0.01)
    queue.set_deadline("a", None)
    queue.set_deadline("b", 0.01)
    queue.set_deadline("b", 0.03)
    began = asyncio.get_running_loop().time()
    assert (await taken(queue))[0] == "b"
    assert asyncio.get_running_loop().time() - began >= 0.029
    assert queue.deadlines == 0


async def test_an_event_wakes_a_key_that_backs_off() -> None:
    queue = WorkQueue()
    queue.failed("a", at_least=30)
    queue.add("a")
    assert (await taken(queue))[0] == "a"


async def test_a_forgotten_key_does_not_come_again() -> None:
    queue = WorkQueue()
    queue.set_deadline("a", 0.01)
    queue.forget("a")
    await asyncio.sleep(0.03)
    assert len(queue) == 0
