"""Taking secrets out of what is handed to others.

Three nets, one behind the other. Values of keys that sound sensitive are replaced whole. Text is
searched for assignments, well-known token shapes and what follows `Bearer`. And values that are
known to be secret here (from variables and configuration) are replaced wherever they turn up, also
inside a message that quotes one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote

from lemon_core.config.redact import is_private

REDACTED: Final = "[REDACTED]"
# Stands for a known secret until the end: it may be a part of a URL or of a value.
_MARK: Final = "\ue000"
# Longer text is cut: nobody reads it, and searching it takes time.
MAX_TEXT: Final = 4_096

# Lower case, without the signs that people part words with.
SENSITIVE_TERMS: Final = (
    "accesskey",
    "apikey",
    "auth",
    "bearer",
    "bottoken",
    "cookie",
    "credential",
    "masterkey",
    "mnemonic",
    "oauth",
    "passphrase",
    "passwd",
    "password",
    "private",
    "pwd",
    "secret",
    "seedphrase",
    "serviceaccount",
    "session",
    "signingkey",
    "token",
    "walletkey",
    "webhookurl",
)
# These sound sensitive and tell which way was chosen, not what with.
_HARMLESS: Final = frozenset({"auth", "authsource", "authmode", "authmethod", "sessionsearch"})
# What names a place to look for a secret, and is none: words, where a token would have digits.
_REFERENCE: Final = re.compile(r"^(?:secret:|env:)?[A-Z]+(?:_[A-Z]+)+$")
# Shorter values are words that stand everywhere; replacing them would tell where they were.
MIN_KNOWN_LENGTH: Final = 6
MIN_QUERY_LENGTH: Final = 8

# `key: value`, `key = "value"`, `"key": "value"`; whole words, so that the time stays linear.
_ASSIGNED: Final = re.compile(
    r"""(?x) (?<![\w.-]) (?P<key> [\w.-]++ ) ["']? \s*+ (?: => | := | [=:] ) \s*+ """
)
# The value ends with its quotes, or where the word does.
_VALUE: Final = re.compile(
    r"""(?xi)
      (?: bearer | basic | token ) \s++ [^\s"',;]++
    | "(?: [^"\\] | \\. )*+" | '(?: [^'\\] | \\. )*+' | [^\s"',;&}\])]++
    """
)
_OPTION: Final = re.compile(r"(?<!\S)--(?P<key>[\w-]++)(?P<space>\s++)(?P<value>[^-\s]\S*+)")
_SCHEMED: Final = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{6,}")
_URL: Final = re.compile(r"""[A-Za-z][A-Za-z0-9+.-]*://[^\s"'<>`\])}]+""")
_SHAPES: Final = re.compile(
    r"""(?x)
      \bsk-[A-Za-z0-9_-]{8,}                       # vendors of models
    | \b(?:pk|rk|whsec)_[A-Za-z0-9_-]{8,}
    | \bgh[pousr]_[A-Za-z0-9]{16,} | \bgithub_pat_\w{20,} | \bglpat-[\w-]{16,}
    | \bxox[abeoprs]-[A-Za-z0-9-]{8,} | \bxapp-[A-Za-z0-9-]{8,}
    | \bAIza[A-Za-z0-9_-]{30,} | \bya29\.[\w-]+
    | \b(?:AKIA|ASIA)[A-Z0-9]{16}\b
    | \bhf_[A-Za-z0-9]{16,} | \bgsk_[A-Za-z0-9]{16,} | \bxai-[A-Za-z0-9]{16,}
    | \b\d{8,10}:[A-Za-z0-9_-]{30,}                # bots of a chat service
    | \b0x[0-9a-fA-F]{64}\b                        # private keys of wallets
    | \beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*            # JSON Web Tokens
    | -----BEGIN[^-]*PRIVATE\ KEY-----[\s\S]*?(?:-----END[^-]*PRIVATE\ KEY-----|\Z)
    """
)


def is_sensitive(key: str) -> bool:
    """Whether the value of a key, variable or option called `key` is to be kept back."""
    plain = re.sub(r"[^a-z0-9]", "", key.lower())
    if plain in _HARMLESS:
        return False
    return is_private((key,)) or any(term in plain for term in SENSITIVE_TERMS)


def redact_prose(text: str) -> str:
    """A sentence without tokens of well-known shapes and without what URLs carry along."""
    text = _SHAPES.sub(REDACTED, text)
    return _URL.sub(lambda match: redact_url(match[0]), text)


def redact_text(text: str) -> str:
    """`text` without what looks like a secret."""
    text = _without_assigned(redact_prose(text))
    text = _OPTION.sub(_without_option, text)
    return _SCHEMED.sub(rf"\1 {REDACTED}", text)


def redact_url(url: str) -> str:
    """`url` without user, password, query and fragment, nor parts of its path that look made up."""
    scheme, _, rest = url.partition("://")
    rest, _, fragment = rest.partition("#")
    rest, _, query = rest.partition("?")
    host, slash, path = rest.partition("/")
    user, at, host = host.rpartition("@")
    shown = f"{scheme}://{REDACTED + at if user else ''}{host}{slash}"
    shown += "/".join(REDACTED if _is_made_up(part) else part for part in path.split("/"))
    return shown + (f"?{REDACTED}" if query else "") + (f"#{REDACTED}" if fragment else "")


@dataclass(frozen=True, slots=True)
class Redactor:
    """Redaction that also knows secrets of this installation; `known` is the longest first."""

    known: tuple[str, ...] = ()
    home: str = ""

    @classmethod
    def knowing(cls, values: Iterable[str], *, home: str = "") -> Redactor:
        """A redactor that replaces `values`, also as they are written in URLs and in JSON.

        `home` is a folder whose name may be a person's; it is shown as `~`.
        """
        found: set[str] = set()
        for value in values:
            for line in {value.strip(), *map(str.strip, value.splitlines())}:
                if len(line) >= MIN_KNOWN_LENGTH:
                    found |= {line, quote(line, safe=""), quote(line), unquote(line)}
                    found.add(line.encode("unicode_escape").decode())
                    found.add(line.replace("\\", "\\\\").replace('"', '\\"'))
        longest_first = sorted(found, key=lambda text: (-len(text), text))
        return cls(tuple(longest_first), home.rstrip("/"))

    def text(self, text: str) -> str:
        """`text` without known secrets and without what looks like one."""
        text = self._marked(text)
        if len(text) > MAX_TEXT:
            text = f"{text[:MAX_TEXT]}…"
        return self._shown(redact_text(text))

    def prose(self, text: str) -> str:
        """As `text`, for a sentence whose colons assign nothing."""
        return self._shown(redact_prose(self._marked(text)))

    def _marked(self, text: str) -> str:
        for value in self.known:
            text = text.replace(value, _MARK)
        return text

    def _shown(self, text: str) -> str:
        text = text.replace(_MARK, REDACTED)
        return text.replace(self.home, "~") if self.home else text

    def data(self, value: object, key: str = "") -> object:
        """A copy of `value`, JSON types at any depth, without secrets; `key` is what holds it."""
        if isinstance(value, Mapping):
            return {self.text(str(name)): self.field(str(name), v) for name, v in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [self.data(item, key) for item in value]
        if value is None or isinstance(value, bool | int | float):
            return value
        return self.text(str(value))

    def field(self, name: str, value: object) -> object:
        """`value` without secrets, knowing that it stands under `name`."""
        if not is_sensitive(name) or value is None or isinstance(value, bool):
            return self.data(value, name)
        if isinstance(value, int | float) and name.lower().endswith("tokens"):
            return value  # how many of them a model may read
        # A reference may be shown: it says where to look, which is what a reader needs to know.
        if isinstance(value, str) and name.endswith("_secret") and _REFERENCE.match(value):
            return self.text(value)
        return _kept_back(value)


def secrets_in(data: object) -> Iterator[str]:
    """Every text in `data` that stands under a sensitive key, and passwords inside URLs."""
    yield from _secrets_in(data, sensitive=False)


def url_secrets(text: str) -> Iterator[str]:
    """The user parts and the query values of the URLs in `text`, but for values that are words."""
    for match in _URL.finditer(text):
        rest = match[0].partition("://")[2]
        before, _, query = rest.partition("?")
        user, at, _ = before.partition("/")[0].rpartition("@")
        if at:
            password = user.partition(":")[2]
            yield from (part for part in (user, password) if part)
        for pair in query.split("&"):
            name, _, value = pair.partition("=")
            if is_sensitive(name) or len(value) >= MIN_QUERY_LENGTH:
                yield value


def _secrets_in(data: object, *, sensitive: bool) -> Iterator[str]:
    if isinstance(data, Mapping):
        for name, value in data.items():
            yield from _secrets_in(value, sensitive=sensitive or is_sensitive(str(name)))
    elif isinstance(data, list | tuple):
        for item in data:
            yield from _secrets_in(item, sensitive=sensitive)
    elif isinstance(data, str):
        yield from url_secrets(data)
        if sensitive and not _REFERENCE.match(data):
            yield data


def _kept_back(value: object) -> object:
    if isinstance(value, Mapping):
        return {REDACTED: len(value)}
    if isinstance(value, list | tuple):
        return [REDACTED] * len(value)
    return REDACTED if value != "" else ""


def _without_assigned(text: str) -> str:
    """`text` without what is assigned to sensitive keys."""
    kept, start, at = [], 0, 0
    while (match := _ASSIGNED.search(text, at)) is not None:
        at = match.end()
        value = _VALUE.match(text, at) if is_sensitive(match["key"]) else None
        if value is not None:
            quotes = value[0][0] if value[0][0] in "\"'" else ""
            kept += [text[start:at], quotes, REDACTED, quotes]
            start = at = value.end()
    return "".join((*kept, text[start:]))


def _without_option(match: re.Match[str]) -> str:
    if not is_sensitive(match["key"]):
        return match[0]
    return f"--{match['key']}{match['space']}{REDACTED}"


def _is_made_up(part: str) -> bool:
    """Whether a part of a path looks like a token: long, with letters and digits mixed."""
    return len(part) >= 16 and bool(re.search(r"\d", part) and re.search(r"[A-Za-z]", part))
