"""Which addresses a page may be fetched from; core has the rule, a refusal is the tool's answer."""

from __future__ import annotations

from lemon_agent import ToolError
from lemon_core.address_guard import AddressGuard, Lookup


class UrlRefused(ToolError):
    """The address may not be fetched from, whatever is tried instead."""


def page_guard(
    lookup: Lookup, allow_private: bool = False, allowed_hosts: frozenset[str] = frozenset()
) -> AddressGuard:
    """The rule for pages, whose refusals are `UrlRefused`."""
    return AddressGuard(lookup, allow_private, allowed_hosts, UrlRefused)
