"""The bill of materials of an archive, in SPDX 2.3: what is inside, in which version, whose."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from tools.release.archive import Packed
from tools.release.distributions import UNKNOWN, Distribution

# When the archive was made is not told: it would be another file at every build.
CREATED: Final = "1980-01-01T00:00:00Z"
_LEMON: Final = "SPDXRef-Package-lemon"


@dataclass(frozen=True, slots=True)
class Release:
    """Which archive this is."""

    version: str
    channel: str
    platform: str
    profile: str
    python: str
    commit: str | None = None

    @property
    def name(self) -> str:
        """The archive's name without its ending."""
        return f"lemon-{self.version}-{self.channel}-{self.platform}-{self.profile}"


def document(
    release: Release, distributions: Sequence[Distribution], packed: Sequence[Packed]
) -> bytes:
    """The bill; `packed` are the other files of the archive, which give it its identity."""
    names = {one.name: _identifier(one.name) for one in distributions}
    identity = sha256("".join(f"{one.sha256} {one.path}\n" for one in packed).encode()).hexdigest()
    bill = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": release.name,
        "documentNamespace": f"urn:lemon:sbom:{release.name}:{identity}",
        "creationInfo": {"created": CREATED, "creators": ["Tool: lemon-release"]},
        "packages": [_lemon(release), *(_package(one) for one in distributions)],
        "relationships": [
            _related("SPDXRef-DOCUMENT", "DESCRIBES", _LEMON),
            *(_related(_LEMON, "CONTAINS", names[one.name]) for one in distributions),
            *(
                _related(names[one.name], "DEPENDS_ON", names[needed])
                for one in distributions
                for needed in one.requires
                if needed in names
            ),
        ],
    }
    return json.dumps(bill, indent=1).encode() + b"\n"


def _lemon(release: Release) -> Mapping[str, object]:
    return {
        "SPDXID": _LEMON,
        "name": "lemon",
        "versionInfo": release.version,
        "downloadLocation": UNKNOWN,
        "filesAnalyzed": False,
        "licenseConcluded": UNKNOWN,
        "licenseDeclared": UNKNOWN,
        "copyrightText": UNKNOWN,
        "primaryPackagePurpose": "APPLICATION",
    }


def _package(one: Distribution) -> Mapping[str, object]:
    row: dict[str, object] = {
        "SPDXID": _identifier(one.name),
        "name": one.name,
        "downloadLocation": UNKNOWN,
        "filesAnalyzed": False,
        "licenseConcluded": UNKNOWN,
        "licenseDeclared": one.licence,
        "copyrightText": UNKNOWN,
        "primaryPackagePurpose": "LIBRARY",
        "comment": "licence texts: " + ", ".join(one.licence_files),
    }
    if one.version:
        row["versionInfo"] = one.version
        row["externalRefs"] = [
            {
                "referenceCategory": "PACKAGE-MANAGER",
                "referenceType": "purl",
                "referenceLocator": f"pkg:pypi/{one.name}@{one.version}",
            }
        ]
    if one.licence == UNKNOWN and one.declared:
        row["licenseComments"] = f"The package says: {one.declared}"
    return row


def _identifier(name: str) -> str:
    return "SPDXRef-Package-pypi-" + re.sub(r"[^A-Za-z0-9.-]", "-", name)


def _related(of: str, kind: str, to: str) -> Mapping[str, str]:
    return {"spdxElementId": of, "relationshipType": kind, "relatedSpdxElement": to}
