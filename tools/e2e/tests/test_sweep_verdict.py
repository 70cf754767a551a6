"""The verdict of the crash sweep finds what it is there for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from lemon_core.bridges import SubmitResult
from lemon_router.admission import Admission, AdmissionState
from tools.e2e.sweep.conversation import (
    CUT,
    DROPPED,
    EMPTY,
    HELD,
    MESSAGES,
    NEWER,
    OLDER,
    PLAIN,
    REDIRECT,
    SESSION,
    STEER,
    STOPPED,
    TOOL,
    Message,
)
from tools.e2e.sweep.executor import Entry
from tools.e2e.sweep.verdict import Outcome

TAKEN = {OLDER: NEWER, STEER: HELD, REDIRECT: HELD}
STATES: Mapping[str, AdmissionState] = {
    "answered": "completed",
    "queued, then answered": "completed",
    "merged": "absorbed",
    "aborted": "aborted",
}


def record(message: Message) -> Admission:
    taker = TAKEN.get(message)
    return Admission(
        run_id=message.run_id,
        digest="",
        state=STATES[message.fate],
        session_key=SESSION,
        conversation_key="",
        queue_mode=message.mode,
        origin="unknown",
        agent_id="default",
        owner="operator",
        order=1,
        created_at_ms=1,
        updated_at_ms=1,
        absorbed_by=None if taker is None else taker.run_id,
    )


def executed(message: Message, *labels: str) -> list[Entry]:
    read = labels or (message.label,)
    return [
        Entry(1, "begin", message.run_id, SESSION, read),
        Entry(1, "end", message.run_id, SESSION),
    ]


def whole() -> Outcome:
    """A conversation without a crash."""
    kept = [message for message in MESSAGES if message is not EMPTY]
    log: list[Entry] = []
    for message in kept:
        if message is NEWER:
            log += executed(message, OLDER.label, NEWER.label)
        elif message is not DROPPED and message not in TAKEN:
            log += executed(message)
        if message is HELD:
            log.insert(-1, Entry(1, "took", HELD.run_id, SESSION, (STEER.label, REDIRECT.label)))
    answers = {
        message.label: SubmitResult(
            "rejected" if message is EMPTY else "accepted",
            message.run_id,
            detail={"disposition": "queued" if "queued" in message.fate else "started"},
        )
        for message in MESSAGES
    }
    begun = {entry.run_id: True for entry in log if entry.what == "begin"}
    records = {message.run_id: record(message) for message in kept}
    return Outcome(answers, records, log, begun)


def changed(message: Message, state: AdmissionState, error: object = None) -> Outcome:
    found = whole()
    new = replace(found.records[message.run_id], state=state, error=error)
    return replace(found, records={**found.records, message.run_id: new})


def with_log(log: Sequence[Entry]) -> Outcome:
    return replace(whole(), log=log)


def test_a_whole_conversation_passes() -> None:
    assert whole().check(crashes=0) == {message.label: message.fate for message in MESSAGES}


def test_a_lost_run_is_an_end_for_each_crash() -> None:
    found = changed(PLAIN, "failed", "run_lost")
    lost = replace(found, begun={**found.begun, PLAIN.run_id: None})
    assert lost.check(crashes=1)["plain"] == "run_lost"
    with pytest.raises(AssertionError, match="not all of them were going on"):
        lost.check(crashes=0)


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (with_log([*whole().log, *executed(PLAIN)]), "executed twice"),
        (with_log([*executed(TOOL), *executed(PLAIN), *whole().log[4:]]), "out of order"),
        (
            with_log([*whole().log, Entry(2, "took", CUT.run_id, SESSION, (STEER.label,))]),
            "the text of steer was given to runs 2 times",
        ),
        (with_log([entry for entry in whole().log if entry.what != "end"]), "was going on"),
        (with_log([]), "never read"),
        (changed(PLAIN, "accepted"), "no end"),
        (changed(PLAIN, "failed", "run_lost"), "has an end"),
        (changed(DROPPED, "failed", "run_lost"), "had not begun"),
        (changed(PLAIN, "failed", "gateway_run_down"), "gateway_run_down"),
        (changed(PLAIN, "aborted"), "nobody aborted"),
        (changed(HELD, "accepted"), "no end"),
        (replace(changed(STOPPED, "completed"), begun={}), "no answer in the store"),
    ],
)
def test_what_must_not_be_is_found(outcome: Outcome, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        outcome.check(crashes=1)


def test_a_message_without_a_record_and_without_a_refusal_is_found() -> None:
    found = whole()
    records = {key: row for key, row in found.records.items() if key != PLAIN.run_id}
    with pytest.raises(AssertionError, match="plain"):
        replace(found, records=records).check(crashes=1)
