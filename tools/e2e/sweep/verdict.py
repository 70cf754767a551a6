"""What must hold after a crash, read from the store and from the log of executions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lemon_core.bridges import SubmitResult
from lemon_core.clock import SystemClock
from lemon_core.store import RunRecord, RunStore, open_store
from lemon_router.admission import Admission, AdmissionStore
from tools.e2e.sweep.conversation import EMPTY, MESSAGES, Fate, Message
from tools.e2e.sweep.executor import Entry, Log
from tools.e2e.sweep.node import Home, Role

Answers = Mapping[str, SubmitResult | None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is left of a conversation.

    `begun` are the runs with a begin mark, each with whether its summary says that it went well;
    None when it has no summary.
    """

    answers: Answers
    records: Mapping[str, Admission]
    log: Sequence[Entry]
    begun: Mapping[str, bool | None]

    @classmethod
    async def of(cls, home: Home, answers: Answers, gateway: Role = "server") -> Outcome:
        """Read what the processes of `home`, all gone, have left behind."""
        clock = SystemClock()
        async with open_store(home.store("server"), clock) as store:
            records = {row.run_id: row for row in await AdmissionStore(store).all()}
        async with open_store(home.store(gateway), clock) as store:
            runs = RunStore(store, clock)
            found = {run_id: await runs.get(run_id) for run_id in records}
        begun = {key: _went_well(run) for key, run in found.items() if run is not None}
        return cls(answers, records, Log(home.log_file).read(), begun)

    def fates(self) -> dict[str, Fate]:
        """What became of each message, by label; raises `AssertionError` where the sums fail."""
        return {message.label: self._fate(message) for message in MESSAGES}

    def _fate(self, message: Message) -> Fate:
        record = self.records.get(message.run_id)
        if record is None:
            answer = self.answers.get(message.label)
            assert answer is not None, f"{message.label} is gone"
            assert answer.status == "rejected", f"{message.label} is gone"
            return "refused"
        match record.state:
            case "absorbed":
                taker = self.records[record.absorbed_by or ""]
                assert taker.terminal, f"{message.label} became part of what has no end"
                return "merged"
            case "completed":
                assert self.begun.get(record.run_id), f"{message.label} has no answer in the store"
                return "queued, then answered" if self._waited(message) else "answered"
            case "aborted":
                assert message.fate == "aborted", f"nobody aborted {message.label}"
                return "aborted"
            case "failed":
                assert record.error == "run_lost", f"{message.label}: {record.error}"
                assert record.run_id in self.begun, f"{message.label} had not begun"
                assert self.begun[record.run_id] is None, f"{message.label} has an end"
                return "run_lost"
        raise AssertionError(f"{message.label} has no end: {record.state}")

    def _waited(self, message: Message) -> bool:
        answer = self.answers.get(message.label)
        detail = (None if answer is None else answer.detail) or {}
        return detail.get("disposition") in ("queued", "merged", "steering")

    def check(self, crashes: int) -> dict[str, Fate]:
        """Everything that must hold after so many crashes of a gateway; the fates.

        Raises `AssertionError`.
        """
        fates = self.fates()
        assert len(self.records) == len(MESSAGES) - 1, "a record too many"
        assert fates[EMPTY.label] == "refused"
        # One session: each crash finds one run that is going on, or none.
        lost = [label for label, fate in fates.items() if fate == "run_lost"]
        assert len(lost) <= crashes, f"lost, and not all of them were going on: {lost}"
        self._check_executions(fates)
        self._check_one_at_a_time()
        return fates

    def _check_executions(self, fates: Mapping[str, Fate]) -> None:
        begun = [entry.run_id for entry in self.log if entry.what == "begin"]
        twice = [run_id for run_id, count in Counter(begun).items() if count > 1]
        assert not twice, f"executed twice: {twice}"
        expected = [message.run_id for message in MESSAGES if message.run_id in begun]
        assert begun == expected, f"out of order: {begun}"
        read = Counter(label for entry in self.log for label in entry.labels)
        for label, fate in fates.items():
            assert read[label] <= 1, f"the text of {label} was given to runs {read[label]} times"
            if fate in ("answered", "queued, then answered"):
                assert read[label] == 1, f"{label} was answered and never read"
            elif fate == "refused":
                assert read[label] == 0, f"{label} was refused and read"

    def _check_one_at_a_time(self) -> None:
        live: dict[tuple[int, str], str] = {}
        for entry in self.log:
            place = (entry.pid, entry.session_key)
            if entry.what == "begin":
                other = live.setdefault(place, entry.run_id)
                assert other == entry.run_id, f"{entry.run_id} began while {other} was going on"
            elif entry.what == "end":
                live.pop(place, None)


def _went_well(run: RunRecord) -> bool | None:
    completed = None if run.summary is None else run.summary.get("completed")
    return completed.get("ok") is True if isinstance(completed, Mapping) else None
