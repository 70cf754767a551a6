"""Tool-call deltas of chat completions, which servers send in many shapes, into whole calls.

The index may be a number, a numeric string, missing, or the same for several calls; ids may be
missing, repeated or double; names may come whole, repeated or in pieces.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lemon_ai.partial import PartialMessage
from lemon_ai.text import dump_json, parse_arguments

UNNAMED = "unknown_tool"


@dataclass(slots=True)
class _Open:
    index: int  # in the message
    wire_id: str
    name: str


class ToolCallAssembler:
    """Writes the calls of one answer into its partial message."""

    __slots__ = ("_by_wire_index", "_calls", "_details", "_ids", "_partial")

    def __init__(self, partial: PartialMessage) -> None:
        self._partial = partial
        self._calls: list[_Open] = []
        self._by_wire_index: dict[int, _Open] = {}  # the newest call under each index
        self._ids: set[str] = set()
        self._details: dict[str, str] = {}  # by the wire id of a call that is still to come

    def take(self, deltas: object) -> None:
        """One chunk's `tool_calls`."""
        for delta in deltas if isinstance(deltas, list) else ():
            if isinstance(delta, dict):
                self._take_one(delta)

    def take_details(self, details: object) -> None:
        """Encrypted reasoning that belongs to a call is kept with it, to be sent back."""
        for detail in details if isinstance(details, list) else ():
            if not isinstance(detail, dict) or detail.get("type") != "reasoning.encrypted":
                continue
            wire_id, signature = str(detail.get("id") or ""), dump_json(detail).decode()
            found = [call for call in self._calls if wire_id and call.wire_id == wire_id]
            for call in found:
                self._partial.set_tool_call(call.index, thought_signature=signature)
            if wire_id and not found:
                self._details[wire_id] = signature

    def _take_one(self, delta: Mapping[str, Any]) -> None:
        function = delta.get("function") or {}
        wire_id = str(delta.get("id") or "")
        name = str(function.get("name") or "")
        wire_index = _number(delta.get("index"))
        call = self._find(wire_index, wire_id)
        if call is None or self._is_another(call, wire_index, wire_id, name):
            call = self._start(wire_index, wire_id, name)
        else:
            self._continue(call, wire_id, name)
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            self._partial.add_arguments(call.index, arguments)
        elif arguments:
            self._partial.add_arguments(call.index, dump_json(arguments).decode())

    def _find(self, wire_index: int | None, wire_id: str) -> _Open | None:
        if wire_index is not None:
            return self._by_wire_index.get(wire_index)
        if wire_id:
            return next((call for call in self._calls if call.wire_id == wire_id), None)
        return self._calls[-1] if self._calls else None

    def _is_another(self, call: _Open, wire_index: int | None, wire_id: str, name: str) -> bool:
        """Whether a delta that leads to a known call begins a new one all the same: it has a name
        of its own, another id (or neither id nor index), and the known call is whole."""
        if not name or not call.name:
            return False
        if wire_id and call.wire_id:
            differs = wire_id != call.wire_id
        else:
            differs = wire_index is None and not wire_id
        if not differs:
            return False
        text = self._partial.arguments_text(call.index)
        return bool(text.strip()) and parse_arguments(text)[1] is None

    def _start(self, wire_index: int | None, wire_id: str, name: str) -> _Open:
        number = len(self._calls) if wire_index is None else wire_index
        call_id = unique_id(wire_id or f"call_stream_{number}", self._ids)
        call = _Open(self._partial.start_tool_call(call_id, name or UNNAMED), wire_id, name)
        self._calls.append(call)
        if wire_id in self._details:
            signature = self._details.pop(wire_id)
            self._partial.set_tool_call(call.index, thought_signature=signature)
        if wire_index is not None:
            self._by_wire_index[wire_index] = call
        return call

    def _continue(self, call: _Open, wire_id: str, name: str) -> None:
        if name and name != call.name:
            call.name = name if name.startswith(call.name) else call.name + name
            self._partial.set_tool_call(call.index, name=call.name)
        if wire_id and wire_id != call.wire_id:
            call.wire_id = wire_id if wire_id.startswith(call.wire_id) else call.wire_id + wire_id
            self._partial.set_tool_call(call.index, call_id=unique_id(call.wire_id, self._ids))


def tool_name(call: Mapping[str, Any]) -> str:
    """The name in a call of the wire."""
    return str(call.get("name") or "").strip() or UNNAMED


def unique_id(call_id: str, taken: set[str]) -> str:
    """The id, with a number behind it when this answer has used it before."""
    candidate, number = call_id, 1
    while candidate in taken:
        number += 1
        candidate = f"{call_id}_{number}"
    taken.add(candidate)
    return candidate


def _number(index: object) -> int | None:
    if isinstance(index, int):
        return index
    return int(index) if isinstance(index, str) and index.strip().isdigit() else None
