"""Whether a lock was made from the `.in` file beside it.

A lock begins with the digest of its `.in`, so the question needs neither network nor resolver.
"""

import hashlib
import re

UPDATE_COMMAND = "bazel run //third_party:requirements.update"

_RECORD = re.compile(r"^# source-sha256: ([0-9a-f]{64})$", re.MULTILINE)


def source_digest(source: bytes) -> str:
    """Return the digest a lock must record for this `.in` file."""
    return hashlib.sha256(source).hexdigest()


def header(source_name: str, source: bytes) -> str:
    """Return the first lines of a lock."""
    return (
        f"# Made from {source_name} by `{UPDATE_COMMAND}`; do not edit.\n"
        f"# source-sha256: {source_digest(source)}\n"
    )


def stale_reason(source_name: str, source: bytes, lock: str) -> str | None:
    """Return why a lock must be made anew, or None when it is fresh."""
    recorded = _RECORD.search(lock)
    if recorded is None:
        return f"the lock of {source_name} records no digest: run `{UPDATE_COMMAND}`"
    if recorded.group(1) != source_digest(source):
        return f"{source_name} changed after its lock was made: run `{UPDATE_COMMAND}`"
    return None
