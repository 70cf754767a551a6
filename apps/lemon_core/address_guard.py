"""Which addresses may be asked for a URL that somebody else chose: public ones.

The name is resolved once, every address it gives is judged, and the connection goes to one of those
very addresses: a name that changes between check and use gains nothing.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from lemon_core.errors import LemonError

if TYPE_CHECKING:
    import aiohttp
    from aiohttp.abc import AbstractResolver

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Lookup = Callable[[str, int], Awaitable[Sequence[str]]]
"""`await lookup(host, port)`: the addresses of a name; raises `OSError`."""

MAX_URL_CHARS: Final = 4_096

_NEVER: Final = frozenset(
    map(
        ipaddress.ip_address,
        (
            *("169.254.169.254", "169.254.170.2", "169.254.170.23", "fd00:ec2::254"),
            *("fd00:ec2::23", "fd20:ce::254", "100.100.100.200", "192.0.0.192"),
            # Public by its number; on every machine of one cloud it is the host below.
            "168.63.129.16",
        ),
    )
)
_NEVER_NAMES: Final = frozenset({"metadata.google.internal", "metadata"})
_LOCAL_ENDINGS: Final = (".localhost", ".local", ".internal", ".localdomain", ".home.arpa")
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
_TRANSLATED: Final = ipaddress.ip_network("::ffff:0:0:0/96")


class AddressRefused(LemonError):
    """The URL may not be asked, whatever is tried instead."""

    code = "address_refused"


@dataclass(frozen=True, slots=True)
class AddressGuard:
    """The rule; `allow_private` and `allowed_hosts` relax it, but for the addresses under which
    clouds tell machines their keys. `refusal` makes the error that a refusal is raised as."""

    lookup: Lookup
    allow_private: bool = False
    allowed_hosts: frozenset[str] = frozenset()
    refusal: Callable[[str], Exception] = AddressRefused

    def check_url(self, url: str) -> str:
        """The host of `url`; raises the refusal for what is refused by its spelling alone.

        The refusal does not repeat the URL, which may hold a password: it goes into logs.
        """
        if len(url) > MAX_URL_CHARS or any(char <= " " or char == "\x7f" for char in url):
            raise self.refusal("the URL holds white space or control characters, or is too long")
        from yarl import URL  # comes with aiohttp, which few processes need

        try:
            parts = urlsplit(url)
            # As the client will read it: digits of other scripts make addresses there.
            host = (URL(url).raw_host or "").rstrip(".").lower()
            port_is_odd = parts.port == 0
        except ValueError:  # whose text quotes what it could not read
            raise self.refusal("it is no URL") from None
        if parts.scheme not in ("http", "https") or not host or port_is_odd:
            raise self.refusal("it is no http or https URL")
        if parts.username is not None:
            raise self.refusal("a URL with a user name in it is not asked")
        self._require_name(host)
        literal = literal_address(host)
        if literal is not None:
            self._require_address(host, literal)
        return host

    async def addresses(self, host: str, port: int) -> list[str]:
        """The addresses of `host`, all of which may be connected to.

        Raises the refusal when one of them may not be, and `OSError`.
        """
        found = list(await self.lookup(host, port))
        for text in found:
            self._require_address(host, ipaddress.ip_address(text.partition("%")[0]))
        return found

    def _require_name(self, host: str) -> None:
        if host in _NEVER_NAMES:
            raise self._private(host)
        if self._is_relaxed(host):
            return
        if host == "localhost" or host.endswith(_LOCAL_ENDINGS):
            raise self._private(host)

    def _require_address(self, host: str, address: Address) -> None:
        forms = _forms(address)
        if not forms.isdisjoint(_NEVER):
            raise self._private(host)
        if not self._is_relaxed(host) and not all(map(_is_public, forms)):
            raise self._private(host)

    def _is_relaxed(self, host: str) -> bool:
        return self.allow_private or host in self.allowed_hosts

    def _private(self, host: str) -> Exception:
        return self.refusal(f"{host} is, or leads to, an address that is not public: not asked")


def literal_address(host: str) -> Address | None:
    """The address that `host` spells, in the odd notations too that the system understands
    (`2130706433`, `0x7f.1`, `127.1`); None for a name."""
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        pass
    # `inet_aton` would also take a number with words after it.
    if host and host[0].isdigit() and " " not in host:
        try:
            return ipaddress.IPv4Address(socket.inet_aton(host))
        except OSError:
            return None
    return None


async def system_lookup(host: str, port: int) -> Sequence[str]:
    """The system's own answer."""
    import anyio

    found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[4][0]) for address in found))


def guarded_resolver(guard: AddressGuard) -> AbstractResolver:
    """A resolver for aiohttp that gives only addresses that may be connected to."""
    from aiohttp.abc import AbstractResolver, ResolveResult

    class Resolver(AbstractResolver):
        """Refuses by raising what the caller of the request gets to see."""

        async def resolve(
            self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
        ) -> list[ResolveResult]:
            return [
                ResolveResult(
                    hostname=host,
                    host=address,
                    port=port,
                    family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                    proto=0,
                    flags=socket.AI_NUMERICHOST,
                )
                for address in await guard.addresses(host.rstrip(".").lower(), port)
            ]

        async def close(self) -> None:
            """Nothing is held."""

    return Resolver()


def _forms(address: Address) -> frozenset[Address]:
    """The address, and the one of the older kind that it carries."""
    carried: list[Address | None] = [address]
    if isinstance(address, ipaddress.IPv6Address):
        carried += [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
        if address in _NAT64 or address in _TRANSLATED or int(address) >> 32 == 0:
            carried.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    return frozenset(one for one in carried if one is not None)


def _is_public(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address) and (
        address.ipv4_mapped or address.sixtofour or address in _NAT64
    ):
        return True  # judged by the address that it carries
    if isinstance(address, ipaddress.IPv6Address) and address.is_site_local:
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def guarded_connector(guard: AddressGuard) -> aiohttp.TCPConnector:
    """A connector of one request, to addresses that `guard` has judged at that moment.

    aiohttp asks no resolver about an address that is written as one: `check_url` comes first.
    """
    import aiohttp

    return aiohttp.TCPConnector(
        resolver=guarded_resolver(guard), use_dns_cache=False, force_close=True
    )
