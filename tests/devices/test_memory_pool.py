"""Stream-ordered memory pool: reuse, exhaustion, limits, and return from any thread."""

from __future__ import annotations

import ctypes
import gc
import threading
from typing import Any

import pytest

from gpuexec.devices.memory_pool import MemoryPool, PoolBlock, PooledMemory, PooledPinned, round_to_class
from gpuexec.errors import DeviceError, OutOfMemoryError
from tests.system.interrupts.points import Interrupter


class Event:
    """Done when its stream has come that far."""

    def __init__(self) -> None:
        self.stream: Stream | None = None
        self.tick = 0

    def is_done(self) -> bool:
        return self.stream is None or self.stream.done >= self.tick

    def synchronize(self, timeout_s: float | None = None) -> bool:
        assert self.stream is not None
        self.stream.done = max(self.stream.done, self.tick)
        return True


class Stream:
    """Counts what is put on it; ``done`` says how far it is, ``waited`` for whom it waits."""

    def __init__(self, handle: int) -> None:
        self.handle, self.issued, self.done = handle, 0, 0
        self.waited: list[Stream] = []
        self.is_captured = False

    def is_capturing(self) -> bool:
        return self.is_captured

    def record(self, event: Event) -> None:
        assert not self.is_captured
        event.stream, event.tick = self, self.issued

    def wait(self, event: Event) -> None:
        assert event.stream is not None
        self.waited.append(event.stream)


class Source:
    """Addresses of a device with room for ``limit`` bytes."""

    def __init__(self, limit: int = 1 << 20) -> None:
        self.limit, self.next = limit, 256
        self.held: dict[int, int] = {}
        self.allocations = 0
        self.is_refusing = False

    def round_up(self, nbytes: int) -> int:
        return nbytes

    def allocate(self, nbytes: int) -> int:
        self.allocations += 1
        if sum(self.held.values()) + nbytes > self.limit:
            raise OutOfMemoryError(f"no room for {nbytes}")
        self.held[self.next] = nbytes
        self.next += nbytes
        return self.next - nbytes

    def release(self, address: int) -> None:
        if self.is_refusing:
            raise DeviceError("a graph is captured")
        self.held.pop(address)


def make_pool(limit: int = 1 << 20, kept: int = 1 << 20) -> tuple[Any, Source]:
    source = Source(limit)
    return MemoryPool(source, Event, kept), source


def free_on(pool: MemoryPool, block: PoolBlock, *streams: Any) -> None:
    for stream in streams:
        block.note_stream(stream)
        stream.issued += 1
    pool.give_back(block)


def test_idle_block_is_used_again_by_whoever_asks_for_its_size() -> None:
    pool, source = make_pool()
    block = pool.allocate(100)
    pool.give_back(block)
    other = pool.allocate(200)
    assert other is not block and pool.cached_nbytes == 100
    assert pool.allocate(100) is block and pool.cached_nbytes == 0 and source.allocations == 2


def test_stream_gets_what_only_its_own_work_uses_at_once_and_without_an_event() -> None:
    pool, _ = make_pool()
    stream, block = Stream(7), pool.allocate(100)
    free_on(pool, block, stream)
    assert pool.allocate(100, Stream(7)) is block  # another object for the same stream
    assert not stream.waited and block.uses[0].event is None


def test_other_stream_gets_it_behind_an_event() -> None:
    pool, _ = make_pool()
    stream, other, block = Stream(7), Stream(8), pool.allocate(100)
    free_on(pool, block, stream)
    assert pool.allocate(100, other) is block
    assert other.waited == [stream]


def test_block_of_two_streams_is_no_ones_at_once() -> None:
    pool, _ = make_pool()
    one, other, block = Stream(7), Stream(8), pool.allocate(100)
    free_on(pool, block, one, other)
    assert pool.allocate(100, one) is block
    assert other in one.waited


def test_host_gets_it_once_its_events_are_done() -> None:
    pool, source = make_pool()
    stream, block = Stream(7), pool.allocate(100)
    free_on(pool, block, stream)
    assert pool.allocate(100) is not block and source.allocations == 2
    stream.done = stream.issued
    assert pool.allocate(100) is block and source.allocations == 2


def test_what_is_done_is_taken_before_what_has_to_be_waited_for() -> None:
    pool, _ = make_pool()
    busy, idle, other = Stream(7), Stream(8), Stream(9)
    blocks = [pool.allocate(100), pool.allocate(100)]
    free_on(pool, blocks[0], busy)
    free_on(pool, blocks[1], idle)
    idle.done = idle.issued
    assert pool.allocate(100, other) is blocks[1] and not other.waited


def test_event_stands_for_work_put_on_the_stream_after_the_block_came_back_too() -> None:
    pool, _ = make_pool()
    stream, block = Stream(7), pool.allocate(100)
    free_on(pool, block, stream)
    stream.done, stream.issued = 1, 2
    assert pool.allocate(100) is not block
    stream.done = 2
    assert pool.allocate(100) is block


def test_capturing_stream_is_never_recorded_on_nor_made_to_wait() -> None:
    pool, _ = make_pool()
    stream, other, block = Stream(7), Stream(8), pool.allocate(100)
    free_on(pool, block, stream)
    stream.is_captured = True
    assert pool.allocate(100) is not block and pool.allocate(100, other) is not block
    assert pool.trim(is_waiting=True) == 0
    stream.is_captured, other.is_captured = False, True
    assert pool.allocate(100, other) is not block and not other.waited
    other.is_captured = False
    assert pool.allocate(100, other) is block


def test_memory_that_ran_out_comes_from_idle_blocks_first() -> None:
    pool, source = make_pool(limit=300)
    stream, blocks = Stream(7), [pool.allocate(100), pool.allocate(101)]
    free_on(pool, blocks[0], stream)
    pool.give_back(blocks[1])
    pool.allocate(200)
    assert pool.cached_nbytes == 100 and stream.done == 0 and sum(source.held.values()) == 300


def test_memory_that_ran_out_waits_for_the_work_of_blocks_at_last() -> None:
    pool, _ = make_pool(limit=300)
    stream, block = Stream(7), pool.allocate(200)
    free_on(pool, block, stream)
    pool.allocate(150)
    assert stream.done == stream.issued and pool.cached_nbytes == 0


def test_memory_that_ran_out_for_good_is_reported() -> None:
    pool, _ = make_pool(limit=300)
    held = pool.allocate(200)
    pool.give_back(pool.allocate(100))
    with pytest.raises(OutOfMemoryError, match="no room for 150"):
        pool.allocate(150)
    assert pool.cached_nbytes == 0
    pool.give_back(held)
    assert pool.allocate(300)


def test_trim_gives_back_what_no_work_uses() -> None:
    pool, source = make_pool()
    stream, blocks = Stream(7), [pool.allocate(nbytes) for nbytes in (100, 200, 400)]
    free_on(pool, blocks[0], stream)
    pool.give_back(blocks[1])
    assert pool.trim() == 200 and list(source.held.values()) == [100, 400]
    stream.done = stream.issued
    assert pool.trim() == 100 and pool.cached_nbytes == 0


def test_interrupted_trim_releases_no_block_twice() -> None:
    counter = Interrupter()
    for point in range(-1, 1000):
        pool, _ = make_pool()
        for block in [pool.allocate(100), pool.allocate(200)]:
            pool.give_back(block)
        interrupter = counter if point < 0 else Interrupter(point)
        assert interrupter.call(pool.trim) == (point >= 0)
        # The source raises for an address that it does not hold.
        pool.trim()
        pool.allocate(100)
        pool.trim()
        if point + 1 == counter.count:
            break
    assert counter.count > 10


def test_driver_that_takes_nothing_back_now_gets_it_later() -> None:
    pool, source = make_pool()
    pool.give_back(pool.allocate(100))
    source.is_refusing = True
    assert pool.trim() == 0 and pool.cached_nbytes == 100
    source.is_refusing = False
    assert pool.trim() == 100 and not source.held


def test_idle_memory_beyond_the_limit_goes_back() -> None:
    pool, source = make_pool(kept=250)
    blocks = [pool.allocate(100) for _ in range(4)]
    for block in blocks:
        pool.give_back(block)
    pool.settle()
    assert pool.cached_nbytes == 200 == sum(source.held.values())


def test_limit_holds_for_blocks_of_streams_once_their_work_is_done() -> None:
    pool, source = make_pool(kept=0)
    stream, block = Stream(7), pool.allocate(100)
    free_on(pool, block, stream)
    pool.settle()
    assert pool.cached_nbytes == 100
    stream.done = stream.issued
    pool.allocate(200)
    assert pool.cached_nbytes == 0 and list(source.held.values()) == [200]


def test_limit_that_the_driver_will_not_hold_now_ends_no_loop() -> None:
    pool, source = make_pool(kept=0)
    source.is_refusing = True
    pool.give_back(pool.allocate(100))
    pool.settle()
    assert pool.cached_nbytes == 100


class Leaving:
    """Garbage that allocates, frees and gives back when it is collected, be it in the middle of a call of the pool."""

    def __init__(self, pool: MemoryPool, seen: list[int]) -> None:
        self.pool, self.seen, self.own = pool, seen, self
        self.block = pool.allocate(100)

    def __del__(self) -> None:
        self.pool.give_back(self.block)
        self.pool.give_back(self.pool.allocate(100))
        self.pool.settle()
        self.pool.trim()
        self.seen.append(self.block.address)


def test_finalizers_may_use_the_pool_in_the_middle_of_its_own_calls() -> None:
    pool, _ = make_pool()
    seen: list[int] = []
    stream = Stream(7)
    create, made = Event, list[Event]()

    def collect() -> Event:
        made.append(create())
        gc.collect()
        return made[-1]

    pool._create_event = collect  # a driver's call is where a collection comes
    for _ in range(5):
        Leaving(pool, seen)
        block = pool.allocate(100)
        free_on(pool, block, stream)
        pool.allocate(100, Stream(8))
        pool.trim(is_waiting=True)
    assert len(seen) == 5 and made
    pool.trim(is_waiting=True)
    assert pool.cached_nbytes == 0


def test_block_lent_by_the_pool_is_nobody_elses_whatever_threads_do() -> None:
    pool, source = make_pool(limit=1 << 30)
    owners: dict[int, int] = {}
    failures: list[str] = []

    def work(number: int) -> None:
        for turn in range(400):
            block = pool.allocate(100 + turn % 3)
            if owners.setdefault(id(block), number) != number:
                failures.append(f"{number} got a block of {owners[id(block)]}")
            del owners[id(block)]
            pool.give_back(block)
            if turn % 50 == 0:
                pool.trim()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    pool.trim()
    assert not source.held and pool.cached_nbytes == 0


def test_memory_comes_back_when_freed_or_let_go_of_and_only_once() -> None:
    pool, _ = make_pool()
    memory = PooledMemory(pool, 100)
    memory.free()
    memory.free()
    assert pool.cached_nbytes == 100
    dropped = PooledMemory(pool, 100)
    assert dropped.address == memory.address
    del dropped, memory
    assert pool.cached_nbytes == 100


def test_pinned_memory_comes_back_with_its_last_view() -> None:
    pool, source = make_pool()
    held = bytearray(4096)
    address = ctypes.addressof(ctypes.c_char.from_buffer(held))
    source.next = address
    memory = PooledPinned(pool, 100)
    assert memory.array is not None and memory.array.nbytes == 100
    view = memory.array[10:20]
    view[...] = 7
    memory.free()
    memory.free()
    assert memory.array is None and pool.cached_nbytes == 0 and held[10:20] == b"\7" * 10
    del view
    assert pool.cached_nbytes == 100 and PooledPinned(pool, 100).address == address


@pytest.mark.parametrize("nbytes", [0, 1, 511, 512, 513, 4097, 5000, 1 << 20, (1 << 20) + 1, 20 << 20, (1 << 30) + 1])
def test_sizes_fall_into_few_classes_and_waste_little(nbytes: int) -> None:
    size = round_to_class(nbytes)
    assert size >= max(nbytes, 1) and size % 512 == 0 and round_to_class(size) == size
    assert size - nbytes <= max(512, min(nbytes // 8 + 1, 2 << 20))
    power = 1 << max(nbytes, 1).bit_length()
    assert len({round_to_class(each) for each in range(power, 2 * power, max(power >> 8, 1))}) <= max(
        9, (power >> 21) + 1
    )
