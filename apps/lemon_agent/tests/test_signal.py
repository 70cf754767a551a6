import anyio
import pytest

from lemon_agent import Aborted, AbortSignal

pytestmark = pytest.mark.anyio


async def test_abort_is_final_and_may_be_repeated() -> None:
    signal = AbortSignal()
    signal.check()
    signal.abort()
    signal.abort()
    assert signal.aborted
    with pytest.raises(Aborted):
        signal.check()


async def test_waiters_are_released_by_abort_and_do_not_wait_after_it() -> None:
    signal = AbortSignal()
    released: list[int] = []

    async def wait(number: int) -> None:
        await signal.wait_aborted()
        released.append(number)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait, 1)
            tasks.start_soon(wait, 2)
            await anyio.lowlevel.checkpoint()
            signal.abort()
        await signal.wait_aborted()
    assert sorted(released) == [1, 2]


async def test_a_redirect_is_independent_of_abort() -> None:
    """Specification lemon_agent 6."""
    signal = AbortSignal()
    signal.request_redirect()
    assert signal.redirect_requested
    assert not signal.aborted
    signal.check()
    signal.clear_redirect()
    assert not signal.redirect_requested


async def test_watchers_are_called_inside_the_request_and_only_while_they_watch() -> None:
    signal = AbortSignal()
    seen: list[str] = []
    with signal.watching(lambda: seen.append("abort"), lambda: seen.append("redirect")):
        signal.request_redirect()
        signal.request_redirect()
        assert seen == ["redirect"]
    signal.abort()
    assert seen == ["redirect"]


async def test_a_watcher_that_comes_late_is_called_at_once_and_abort_goes_first() -> None:
    signal = AbortSignal()
    signal.request_redirect()
    seen: list[str] = []
    with signal.watching(lambda: seen.append("abort"), lambda: seen.append("redirect")):
        pass
    signal.abort()
    with signal.watching(lambda: seen.append("abort"), lambda: seen.append("redirect")):
        pass
    assert seen == ["redirect", "abort"]
