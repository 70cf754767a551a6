"""A change of a text as a person reads it: the lines that went, those that came, some around."""

from __future__ import annotations

from typing import Final

DIFF_CONTEXT: Final = 4


def span_diff(before: str, after: str, start: int, end: int, length: int) -> tuple[str, int]:
    """A unified diff of one change, and the number of its first line.

    `before[start:end]` became `length` characters of `after`. Only the lines around the change are
    looked at: a general diff of a large file takes seconds.
    """
    top = before.count("\n", 0, start)
    old = before.split("\n")
    new = after.split("\n")
    old_end = before.count("\n", 0, end) + 1
    new_end = after.count("\n", 0, start + length) + 1
    while top < min(old_end, new_end) and old[top] == new[top]:
        top += 1
    while top < min(old_end, new_end) and old[old_end - 1] == new[new_end - 1]:
        old_end, new_end = old_end - 1, new_end - 1
    head = old[max(0, top - DIFF_CONTEXT) : top]
    # What follows the last line feed is no line.
    line_count = len(old) - (old[-1] == "")
    tail = old[old_end : min(old_end + DIFF_CONTEXT, line_count)]
    first = top - len(head) + 1
    kept = len(head) + len(tail)
    lines = [
        f"@@ -{first},{kept + old_end - top} +{first},{kept + new_end - top} @@",
        *(f" {line}" for line in head),
        *(f"-{line}" for line in old[top:old_end]),
        *(f"+{line}" for line in new[top:new_end]),
        *(f" {line}" for line in tail),
    ]
    return "\n".join(lines), top + 1


def text_diff(before: str, after: str) -> tuple[str, int]:
    """The diff between two texts as one change, from the first difference to the last."""
    limit = min(len(before), len(after))
    start = next((i for i in range(limit) if before[i] != after[i]), limit)
    rest = limit - start
    same = next((i for i in range(rest) if before[-1 - i] != after[-1 - i]), rest)
    return span_diff(before, after, start, len(before) - same, len(after) - same - start)
