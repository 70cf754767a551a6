"""Twilio's signatures and the addresses they are made for (specification lemon_gateway 7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request
from twilio.request_validator import RequestValidator

from lemon_gateway.twilio_signature import (
    MAX_FIELDS,
    SETTINGS_HEADER,
    SIGNATURE_HEADER,
    Arrival,
    Origin,
    form_fields,
    is_loopback,
    origin_of,
    rebuilt_url,
    refusal,
    signature,
    url_under,
)

TOKEN = "12345"
# The example of Twilio's own documentation and of its packages' tests.
URL = "https://mycompany.com/myapp.php?foo=1&bar=2"
FIELDS = (
    ("CallSid", "CA1234567890ABCDE"),
    ("Digits", "1234"),
    ("From", "+14158675309"),
    ("To", "+18005551212"),
    ("Caller", "+14158675309"),
)
SIGNATURE = "RSOYDt4T1cUTdK1PDd93/VVr8B8="


class Params(dict[str, list[str]]):
    """Fields as the frameworks that the vendor's validator knows give them."""

    @classmethod
    def of(cls, fields: Sequence[tuple[str, str]]) -> Params:
        params = cls()
        for name, value in fields:
            params.setdefault(name, []).append(value)
        return params

    def getall(self, name: str) -> list[str]:
        return self[name]


def vendor_signature(url: str, fields: Sequence[tuple[str, str]]) -> str:
    computed: str = RequestValidator(TOKEN).compute_signature(url, Params.of(fields))
    return computed


def vendor_takes(url: str, fields: Sequence[tuple[str, str]], given: str) -> bool:
    return bool(RequestValidator(TOKEN).validate(url, Params.of(fields), given))


def takes(url: str, fields: Sequence[tuple[str, str]], given: str) -> bool:
    return refusal(TOKEN, url, fields, {SIGNATURE_HEADER: given}) is None


def arrival(
    headers: Mapping[str, str] | None = None,
    *,
    peer: str | None = "127.0.0.1",
    path: str = "/webhooks/twilio/sms",
    query: str = "",
    scheme: str = "http",
) -> Arrival:
    return Arrival(path, query, peer, {"host": "localhost:4045", **(headers or {})}, scheme)


# --- the signature ---


@pytest.mark.behaviour("lemon_gateway.31")
def test_known_vectors() -> None:
    """The documented example counts, in whatever order its fields come, and changed it does not."""
    assert signature(TOKEN, URL, FIELDS) == SIGNATURE
    assert takes(URL, FIELDS, SIGNATURE)
    assert takes(URL, tuple(reversed(FIELDS)), SIGNATURE)
    assert not takes(URL, (*FIELDS, ("Extra", "1")), SIGNATURE)
    assert not takes(URL, FIELDS[1:], SIGNATURE)
    assert not takes(URL.replace("foo=1", "foo=2"), FIELDS, SIGNATURE)
    assert not takes(URL.replace("https", "http"), FIELDS, SIGNATURE)
    assert not takes(URL, FIELDS, SIGNATURE[:-1])
    assert not takes(URL, FIELDS, "ünsigned")
    assert refusal("54321", URL, FIELDS, {SIGNATURE_HEADER: SIGNATURE}) == "mismatch"


@pytest.mark.behaviour("lemon_gateway.31")
def test_what_is_missing_refuses() -> None:
    """Nothing stands in for a token, an address or a header; another scheme is not this one."""
    signed = {SIGNATURE_HEADER: SIGNATURE}
    assert refusal(None, URL, FIELDS, signed) == "missing_token"
    assert refusal("", URL, FIELDS, {SIGNATURE_HEADER: signature("", URL, FIELDS)}) == (
        "missing_token"
    )
    assert refusal(TOKEN, None, FIELDS, signed) == "missing_url"
    assert refusal(TOKEN, URL, FIELDS, {}) == "missing_signature"
    assert refusal(TOKEN, URL, FIELDS, {SIGNATURE_HEADER: " "}) == "missing_signature"
    shared = {SETTINGS_HEADER: "key=webhooks_sharedkey_1,algorithm=HMAC_SHA256"}
    assert refusal(TOKEN, URL, FIELDS, {**signed, **shared}) == "shared_key"


@pytest.mark.behaviour("lemon_gateway.107")
@pytest.mark.parametrize(
    ("signed_for", "configured"),
    [
        ("https://sms.example.com/in", "https://sms.example.com:443/in"),
        ("https://sms.example.com:443/in", "https://sms.example.com/in"),
        ("http://sms.example.com:80/in?a=1", "http://sms.example.com/in?a=1"),
        ("https://sms.example.com:8443/in", "https://sms.example.com:8443/in"),
        ("https://sms.example.com/in", "https://sms.example.com:8443/in"),
        ("https://[2001:db8::1]/in", "https://[2001:db8::1]:443/in"),
        ("https://me:pw@sms.example.com:443/in", "https://me:pw@sms.example.com/in"),
    ],
)
def test_a_port_in_the_address_makes_no_difference(signed_for: str, configured: str) -> None:
    """Repeated and empty fields are signed too, the values of a repeated one each once."""
    fields = form_fields(b"Media=b&Media=a&Media=b&Empty=&Body=caf%C3%A9+%2B1")
    assert fields == (
        ("Media", "b"),
        ("Media", "a"),
        ("Media", "b"),
        ("Empty", ""),
        ("Body", "café +1"),
    )
    given = signature(TOKEN, signed_for, fields)
    assert given == vendor_signature(signed_for, fields)
    assert takes(configured, fields, given)
    assert not takes(configured.replace("/in", "/out"), fields, given)


@pytest.mark.parametrize("url", ["sms.example.com/in", "ftp://a/b", "https:///in", "https://a:x/"])
def test_what_is_no_address_is_signed_by_nobody(url: str) -> None:
    """Not even by whoever has the token."""
    assert not takes(url, FIELDS, signature(TOKEN, url, FIELDS))


TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
FORMS = st.lists(st.tuples(TEXTS, TEXTS), max_size=8)
HOSTS = st.from_regex(r"[a-z]{1,8}(\.[a-z]{2,5}){0,2}", fullmatch=True)
PORTS = st.sampled_from(["", ":80", ":443", ":8080", ":65535"])
PATHS = st.from_regex(r"(/[a-zA-Z0-9%._~-]{0,6}){0,3}", fullmatch=True)
QUERIES = st.lists(st.tuples(TEXTS, TEXTS), max_size=3)


@st.composite
def urls(draw: st.DrawFn) -> str:
    """Addresses as they are given to Twilio."""
    scheme = draw(st.sampled_from(["http", "https"]))
    query = draw(QUERIES)
    tail = f"?{urlencode(query)}" if query else ""
    return f"{scheme}://{draw(HOSTS)}{draw(PORTS)}{draw(PATHS)}{tail}"


@pytest.mark.behaviour("lemon_gateway.31")
@given(url=urls(), signed_for=urls(), fields=FORMS, port=PORTS)
def test_agrees_with_the_vendors_validator(
    url: str, signed_for: str, fields: list[tuple[str, str]], port: str
) -> None:
    """The same signature for the same request, and the same verdict on every address."""
    assert signature(TOKEN, url, fields) == vendor_signature(url, fields)
    head, slashes, rest = url.partition("//")
    place, slash, tail = rest.partition("/")
    with_port = f"{head}{slashes}{place.partition(':')[0]}{port}{slash}{tail}"
    for candidate in (url, with_port, signed_for):
        given = signature(TOKEN, candidate, fields)
        assert takes(url, fields, given) == vendor_takes(url, fields, given)


@given(fields=FORMS)
def test_a_form_is_read_as_it_was_written(fields: list[tuple[str, str]]) -> None:
    """Blank names and values included, in their order."""
    assert form_fields(urlencode(fields).encode()) == tuple(fields)


def test_a_form_of_too_many_fields_is_refused() -> None:
    """No message has a thousand fields."""
    with pytest.raises(ValueError, match="fields"):
        form_fields(b"&".join([b"a=1"] * (MAX_FIELDS + 1)))


# --- the address ---


@pytest.mark.behaviour("lemon_gateway.31")
@pytest.mark.parametrize(
    ("headers", "url"),
    [
        ({}, "http://localhost:4045/webhooks/twilio/sms"),
        ({"host": "sms.example.com"}, "http://sms.example.com/webhooks/twilio/sms"),
        (
            {"x-forwarded-proto": "https", "x-forwarded-host": "sms.example.com"},
            "https://sms.example.com/webhooks/twilio/sms",
        ),
        (
            {"x-forwarded-proto": "HTTPS, http", "x-forwarded-host": "a.example, b.example"},
            "https://a.example/webhooks/twilio/sms",
        ),
        (
            {
                "x-forwarded-proto": "https",
                "x-forwarded-host": "sms.example.com",
                "x-forwarded-port": "443",
            },
            "https://sms.example.com/webhooks/twilio/sms",
        ),
        (
            {
                "x-forwarded-proto": "https",
                "x-forwarded-host": "sms.example.com:4045",
                "x-forwarded-port": "8443",
            },
            "https://sms.example.com:8443/webhooks/twilio/sms",
        ),
        (
            {"x-forwarded-proto": "https", "x-forwarded-host": "[2001:db8::1]:443"},
            "https://[2001:db8::1]/webhooks/twilio/sms",
        ),
        (
            {"x-forwarded-host": "sms.example.com:80", "x-forwarded-port": "nonsense"},
            "http://sms.example.com/webhooks/twilio/sms",
        ),
    ],
)
def test_the_public_address_is_rebuilt(headers: dict[str, str], url: str) -> None:
    """From what the proxy says, else from the request; a default port is left out."""
    assert rebuilt_url(arrival(headers)) == url
    assert rebuilt_url(arrival(headers, query="a=1&b=%20")) == f"{url}?a=1&b=%20"


@pytest.mark.behaviour("lemon_gateway.31")
@pytest.mark.parametrize("peer", ["203.0.113.9", "10.0.0.1", "::ffff:10.0.0.1", "testclient", None])
def test_forwarded_headers_of_strangers_do_not_count(peer: str | None) -> None:
    """They could name an address for which they hold an old signature."""
    claimed = {
        "x-forwarded-proto": "https",
        "x-forwarded-host": "sms.example.com",
        "x-forwarded-port": "443",
    }
    assert not is_loopback(peer)
    assert origin_of(arrival(claimed, peer=peer)) == Origin("http", "localhost:4045")
    for local in ("127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"):
        assert origin_of(arrival(claimed, peer=local)) == Origin("https", "sms.example.com")


def test_without_a_host_there_is_no_address() -> None:
    """Neither is there with a scheme that Twilio does not speak."""
    assert rebuilt_url(arrival({"host": ""})) is None
    assert rebuilt_url(arrival({"x-forwarded-proto": "ws"})) is None


def test_below_a_configured_address() -> None:
    """Its path stands before the request's."""
    there = arrival(path="/webhooks/twilio/voice", query="x=1")
    expected = "https://example.com:8443/lemon/webhooks/twilio/voice?x=1"
    assert url_under("https://example.com:8443/lemon/", there) == expected
    assert url_under("https://example.com:8443/lemon", there) == expected


def test_a_request_arrives_as_it_was_sent() -> None:
    """The path keeps its percent signs: it was signed with them."""
    scope = {
        "type": "http",
        "method": "POST",
        "scheme": "http",
        "path": "/a b",
        "raw_path": b"/a%20b",
        "query_string": b"x=%2F",
        "headers": [(b"host", b"example.com"), (b"x-twilio-signature", b"abc")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 4045),
    }
    there = Arrival.of(Request(scope))
    assert rebuilt_url(there) == "http://example.com/a%20b?x=%2F"
    assert (there.peer, there.headers[SIGNATURE_HEADER]) == ("127.0.0.1", "abc")
