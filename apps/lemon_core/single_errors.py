"""Errors as themselves: what task groups wrap on the way out is taken out of its wrapping."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


def innermost(error: BaseException) -> BaseException:
    """The one error inside groups of one; groups of several stay."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


@contextmanager
def single_errors() -> Iterator[None]:
    """Let an error out of the block as itself: each task group on its way has wrapped it once."""
    try:
        yield
    except BaseExceptionGroup as group:
        error = innermost(group)
        if error is group:
            raise
        raise error from error.__cause__
