"""The machine's apt sources, in both formats, become a source for another suite."""

from pathlib import Path

from tools.bazelw_lib.apt_sources import (
    AptSource,
    archive_candidates,
    parse_deb822,
    parse_one_line,
    read_machine_sources,
)

DEB822 = """\
# a comment
Types: deb deb-src
URIs: http://mirror.example/debian
Suites: trixie trixie-updates
Components: main
Signed-By: /usr/share/keyrings/archive.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites: trixie-security
Components: main

Enabled: no
Types: deb
URIs: http://off.example/debian
Suites: trixie
Components: main

Types: deb-src
URIs: http://sources.example/debian
Suites: trixie
Components: main
"""


def test_a_deb822_file_yields_its_enabled_binary_sources() -> None:
    assert parse_deb822(DEB822) == [
        AptSource(
            "http://mirror.example/debian",
            ("trixie", "trixie-updates"),
            ("main",),
            {"Signed-By": "/usr/share/keyrings/archive.gpg"},
        ),
        AptSource("http://mirror.example/debian-security", ("trixie-security",), ("main",)),
    ]


def test_a_key_inside_a_stanza_is_carried_over_with_its_indentation() -> None:
    text = (
        "Types: deb\nURIs: http://mirror.example/debian\nSuites: trixie\nComponents: main\n"
        "Signed-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mQINBF\n"
    )
    (source,) = parse_deb822(text)
    stanza = source.for_suite("sid")
    assert stanza.endswith("Signed-By: \n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mQINBF\n")
    assert parse_deb822(stanza)[0].suites == ("sid",)


def test_one_line_entries_keep_key_and_trust() -> None:
    text = """\
# deb http://off.example/debian bookworm main
deb http://mirror.example/debian bookworm main contrib # the archive
deb [arch=amd64 signed-by=/etc/apt/keyrings/k.gpg trusted=yes] http://other.example/debian sid main
deb-src http://mirror.example/debian bookworm main
"""
    assert parse_one_line(text) == [
        AptSource("http://mirror.example/debian", ("bookworm",), ("main", "contrib")),
        AptSource(
            "http://other.example/debian",
            ("sid",),
            ("main",),
            {"Signed-By": "/etc/apt/keyrings/k.gpg", "Trusted": "yes"},
        ),
    ]


def test_the_archive_of_the_release_comes_first_and_look_alikes_after_it() -> None:
    vendor = AptSource("http://vendor.example/apt", ("stable",), ("main",))
    other = AptSource("http://docker.example/debian", ("trixie",), ("stable",))
    archive = AptSource("http://mirror.example/debian", ("trixie", "trixie-updates"), ("main",))
    security = AptSource("http://mirror.example/security", ("trixie-security",), ("main",))
    again = AptSource("http://mirror.example/debian", ("sid",), ("main",))
    sources = [vendor, other, archive, security, again]
    assert archive_candidates(sources, "trixie") == [archive, vendor]


def test_all_files_of_the_machine_are_read(tmp_path: Path) -> None:
    (tmp_path / "sources.list").write_text("deb http://one.example/debian sid main\n")
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list.d" / "debian.sources").write_text(DEB822)
    (tmp_path / "sources.list.d" / "old.list.disabled").write_text("deb http://x.example y main\n")
    assert [source.uris for source in read_machine_sources(tmp_path)] == [
        "http://one.example/debian",
        "http://mirror.example/debian",
        "http://mirror.example/debian-security",
    ]


def test_a_machine_without_sources_yields_none(tmp_path: Path) -> None:
    assert read_machine_sources(tmp_path) == []
