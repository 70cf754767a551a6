"""Signature version 4 computed from what a server receives, as AWS describes it: apart from our
code and from botocore's."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from urllib.parse import quote

_FORM = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(?P<key>[^/]+)/(?P<day>\d{8})/(?P<region>[^/]+)/"
    r"(?P<service>[^/]+)/aws4_request, SignedHeaders=(?P<names>[^,]+), "
    r"Signature=(?P<signature>[0-9a-f]{64})"
)


def parts_of(authorization: str) -> Mapping[str, str]:
    """The fields of a signed request's authorization."""
    match = _FORM.fullmatch(authorization)
    assert match is not None, authorization
    return match.groupdict()


def signature_of(
    secret: str, method: str, raw_path: str, headers: Mapping[str, str], body: bytes
) -> str:
    """The signature that a request has to carry; its path and headers as they were received."""
    parts = parts_of(headers["authorization"])
    names = parts["names"].split(";")
    assert names == sorted(names)
    canonical = "\n".join(
        [
            method,
            quote(raw_path, safe="/~"),  # once more than on the wire
            "",
            *(f"{name}:{' '.join(headers[name].split())}" for name in names),
            "",
            parts["names"],
            hashlib.sha256(body).hexdigest(),
        ]
    )
    scope = f"{parts['day']}/{parts['region']}/{parts['service']}/aws4_request"
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    text = f"AWS4-HMAC-SHA256\n{headers['x-amz-date']}\n{scope}\n{digest}"
    key = f"AWS4{secret}".encode()
    for part in (parts["day"], parts["region"], parts["service"], "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.digest(key, text.encode(), "sha256").hex()
