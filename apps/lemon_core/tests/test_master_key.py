"""Where the master key comes from and how it is made (specification lemon_core 11)."""

from __future__ import annotations

import logging
import os
import stat
from base64 import b64decode, b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import anyio
import pytest

from lemon_core.key_providers import EnvKey, FileKey, KeychainKey
from lemon_core.master_key import (
    KeyLocations,
    MasterKey,
    MasterKeyChain,
    default_providers,
    parse_master_key,
)
from lemon_core.paths import PathSettings
from lemon_core.secret_errors import SecretsError

pytestmark = pytest.mark.anyio

VARIABLE = "LEMON_SECRETS_MASTER_KEY"
PHRASE = "a phrase that is long enough, but no key"


def key_text(seed: int) -> str:
    """A good key, another one for each `seed`."""
    return b64encode(bytes([seed]) * 32).decode()


@pytest.fixture
def paths(tmp_path: Path) -> PathSettings:
    return PathSettings(tmp_path)


@pytest.fixture
def key_file(paths: PathSettings) -> Path:
    return paths.state_dir / "secrets_master_key"


@pytest.fixture
def open_umask() -> Iterator[None]:
    """A umask that takes nothing away: modes are what the code asked for."""
    before = os.umask(0)
    yield
    os.umask(before)


@dataclass
class FakePlace:
    """A keychain in memory that holds `entry`, or fails."""

    entry: str | None = None
    name: str = "keychain"
    fails: bool = False
    on_invalid: Literal["skip", "stop"] = "skip"
    written: list[str] = field(default_factory=list)

    def available(self) -> bool:
        return True

    async def fetch(self) -> str | None:
        if self.fails:
            raise SecretsError("master_key_unreadable", "it does not answer")
        return self.entry

    async def put(self, text: str, *, force: bool) -> bool:
        if self.fails:
            raise SecretsError("master_key_not_written", "it does not answer")
        self.written.append(text)
        return True


def write_key(path: Path, text: str, mode: int = 0o600) -> None:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def chain(
    paths: PathSettings,
    *,
    keychain: FakePlace | None = None,
    environ: dict[str, str] | None = None,
    allow_legacy_raw_keys: bool = False,
) -> MasterKeyChain:
    """The default chain, with `keychain` in the place of the real one."""
    _, env, file = default_providers(paths, {} if environ is None else environ)
    front = FakePlace() if keychain is None else keychain
    return MasterKeyChain((front, env, file), allow_legacy_raw_keys=allow_legacy_raw_keys)


async def code_of(keys: MasterKeyChain) -> str:
    with pytest.raises(SecretsError) as caught:
        await keys.load()
    return caught.value.code


@pytest.mark.behaviour("lemon_core.35")
async def test_the_first_place_with_a_key_wins(paths: PathSettings, key_file: Path) -> None:
    environ: dict[str, str] = {}
    place = FakePlace()
    keys = chain(paths, keychain=place, environ=environ)
    assert await code_of(keys) == "missing_master_key"
    write_key(key_file, key_text(3) + "\n")
    assert await keys.load() == MasterKey(b"\3" * 32, "file")
    environ[VARIABLE] = key_text(2)
    assert await keys.load() == MasterKey(b"\2" * 32, "env")
    place.entry = key_text(1)
    assert await keys.load() == MasterKey(b"\1" * 32, "keychain")
    environ[VARIABLE], place.entry = " ", None
    assert (await keys.load()).source == "file"


@pytest.mark.behaviour("lemon_core.35")
def test_what_is_a_key() -> None:
    assert parse_master_key(f" {key_text(7)}\n") == b"\7" * 32
    assert parse_master_key(b64encode(b"x" * 48).decode()) == b"x" * 48
    short = b64encode(b"x" * 16).decode()
    for text, code in [
        ("", "invalid_master_key"),
        (short, "invalid_master_key"),
        ("p" * 31, "invalid_master_key"),
        ("é" * 32, "weak_master_key"),
        (PHRASE, "weak_master_key"),
    ]:
        with pytest.raises(SecretsError) as caught:
            parse_master_key(text)
        assert caught.value.code == code
        assert not text or text not in str(caught.value)
    assert parse_master_key(PHRASE, allow_legacy_raw_keys=True) == PHRASE.encode()
    with pytest.raises(SecretsError, match="base64 of 32 bytes"):
        parse_master_key(short, allow_legacy_raw_keys=True)


@pytest.mark.behaviour("lemon_core.35")
@pytest.mark.parametrize(
    ("text", "code"), [(PHRASE, "weak_master_key"), ("short", "invalid_master_key")]
)
async def test_a_bad_keychain_is_skipped_and_a_bad_variable_or_file_stops(
    paths: PathSettings, key_file: Path, caplog: pytest.LogCaptureFixture, text: str, code: str
) -> None:
    write_key(key_file, key_text(3))
    for place in (FakePlace(entry=text), FakePlace(fails=True)):
        keys = chain(paths, keychain=place)
        assert [(await keys.load()).source for _ in range(2)] == ["file", "file"]
    skipped = [vars(line) for line in caplog.records if line.levelno == logging.WARNING]
    assert [line["lemon_fields"]["code"] for line in skipped] == [code, "master_key_unreadable"]
    assert text not in str(skipped)
    # The file holds a good key, yet it is not the one that the variable meant.
    assert await code_of(chain(paths, environ={VARIABLE: text})) == code
    write_key(key_file, text)
    assert await code_of(chain(paths)) == code
    raw = chain(paths, allow_legacy_raw_keys=True)
    if code == "weak_master_key":
        assert (await raw.load()).key == PHRASE.encode()
    else:
        assert await code_of(raw) == code


async def test_a_file_that_cannot_be_read_stops(paths: PathSettings, key_file: Path) -> None:
    key_file.mkdir(parents=True)
    keys = chain(paths)
    assert await code_of(keys) == "master_key_unreadable"
    with pytest.raises(SecretsError, match="secrets_master_key"):
        await keys.load()


@pytest.mark.behaviour("lemon_core.35")
async def test_the_file_is_private_before_it_has_content(
    paths: PathSettings, key_file: Path, open_umask: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int, int]] = []
    fdopen = os.fdopen

    def spying(fd: int, mode: str) -> object:
        found = os.fstat(fd)
        folder = stat.S_IMODE(key_file.parent.stat().st_mode)
        seen.append((stat.S_IMODE(found.st_mode), found.st_size, folder))
        return fdopen(fd, mode)

    # Nothing else shows the moment between the creation and the first byte.
    monkeypatch.setattr("lemon_core.key_providers.os.fdopen", spying)
    place = FileKey(key_file, state_dir=paths.state_dir)
    await place.put("one", force=False)
    paths.state_dir.chmod(0o755)
    await place.put("two", force=True)
    assert seen == [(0o600, 0, 0o700)] * 2
    assert (key_file.read_text(), stat.S_IMODE(key_file.stat().st_mode)) == ("two\n", 0o600)
    assert list(paths.state_dir.iterdir()) == [key_file]


async def test_only_the_state_folder_is_tightened(paths: PathSettings, open_umask: None) -> None:
    place = FileKey(paths.home / "key", state_dir=paths.state_dir)
    paths.home.chmod(0o755)
    await place.put("one", force=False)
    assert stat.S_IMODE(paths.home.stat().st_mode) == 0o755


@pytest.mark.behaviour("lemon_core.35")
async def test_no_key_is_overwritten_without_force(paths: PathSettings, key_file: Path) -> None:
    keys = MasterKeyChain(default_providers(paths, {}, KeyLocations(order=("env", "file"))))
    assert await keys.init_master_key() == "file"
    first = key_file.read_text()
    assert len(b64decode(first)) == 32
    assert (await keys.load()).source == "file"
    with pytest.raises(SecretsError) as caught:
        await keys.init_master_key()
    assert (caught.value.code, key_file.read_text()) == ("key_file_exists", first)
    assert str(key_file) in str(caught.value)
    assert await keys.init_master_key("file", force=True) == "file"
    assert key_file.read_text() != first


async def test_two_who_write_at_once_leave_one_key(paths: PathSettings, key_file: Path) -> None:
    place = FileKey(key_file, state_dir=paths.state_dir)
    outcomes: list[str] = []

    async def write(text: str) -> None:
        try:
            await place.put(text, force=False)
            outcomes.append(text)
        except SecretsError as exc:
            outcomes.append(exc.code)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write, "one")
            tasks.start_soon(write, "two")
    outcomes.remove("key_file_exists")
    assert key_file.read_text() == f"{outcomes[0]}\n"


@pytest.mark.behaviour("lemon_core.35")
async def test_a_key_anywhere_refuses_a_second_one(paths: PathSettings, key_file: Path) -> None:
    environ = {VARIABLE: key_text(2)}
    place = FakePlace(entry="bad")
    for keys, target in [
        (chain(paths, keychain=place), None),
        (chain(paths, environ=environ), None),
        (chain(paths, environ=environ), "file"),
    ]:
        with pytest.raises(SecretsError) as caught:
            await keys.init_master_key(target)
        assert caught.value.code == "key_file_exists"
    assert (place.written, key_file.exists()) == ([], False)


async def test_with_force_a_key_is_not_written_where_nobody_would_find_it(
    paths: PathSettings, key_file: Path
) -> None:
    keys = chain(paths, environ={VARIABLE: key_text(2)})
    with pytest.raises(SecretsError) as caught:
        await keys.init_master_key("file", force=True)
    assert (caught.value.code, key_file.exists()) == ("master_key_shadowed", False)
    place = FakePlace(entry="bad")
    assert await chain(paths, keychain=place).init_master_key(force=True) == "keychain"
    assert len(b64decode(place.written[0])) == 32


@pytest.mark.behaviour("lemon_core.35")
async def test_a_place_that_fails_gets_no_second_key_elsewhere(
    paths: PathSettings, key_file: Path
) -> None:
    keys = chain(paths, keychain=FakePlace(fails=True))
    for force, code in [(False, "master_key_unreadable"), (True, "master_key_not_written")]:
        with pytest.raises(SecretsError) as caught:
            await keys.init_master_key(force=force)
        assert (caught.value.code, key_file.exists()) == (code, False)
    assert await keys.init_master_key("file") == "file"


async def test_a_place_that_is_not_there_or_not_writable_is_no_target(paths: PathSettings) -> None:
    for target in ("env", "cloud"):
        with pytest.raises(SecretsError) as caught:
            await chain(paths).init_master_key(target)
        assert caught.value.code == "unknown_key_provider"
    with pytest.raises(SecretsError) as caught:
        await MasterKeyChain([EnvKey({}, VARIABLE)]).init_master_key()
    assert caught.value.code == "master_key_not_written"


async def test_a_folder_that_cannot_be_made_is_told(paths: PathSettings) -> None:
    paths.state_dir.write_text("a file")
    with pytest.raises(SecretsError) as caught:
        await chain(paths).init_master_key("file")
    assert caught.value.code == "master_key_unreadable"


@pytest.mark.behaviour("lemon_core.35")
async def test_a_home_of_ones_own(tmp_path: Path) -> None:
    """`~` is the caller's HOME, also for a file that is configured."""
    homes = [PathSettings(tmp_path / name) for name in ("a", "b")]
    at = KeyLocations(order=("file",), key_file="~/keys/master")
    for paths in homes:
        for locations, file in [(None, ".lemon/secrets_master_key"), (at, "keys/master")]:
            keys = MasterKeyChain(default_providers(paths, {}, locations))
            assert await keys.init_master_key("file") == "file"
            assert len(b64decode((paths.home / file).read_text())) == 32
    found = [(await MasterKeyChain(default_providers(p, {}, at)).load()).key for p in homes]
    assert found[0] != found[1]


async def test_order_and_variable_are_configurable(paths: PathSettings, key_file: Path) -> None:
    write_key(key_file, key_text(3))
    at = KeyLocations(order=("file", "env"), variable="OTHER_KEY")
    keys = MasterKeyChain(default_providers(paths, {"OTHER_KEY": key_text(2)}, at))
    assert (await keys.load()).source == "file"
    key_file.unlink()
    assert (await keys.load()).source == "env"


async def test_a_file_that_others_can_read_is_used_with_one_warning(
    paths: PathSettings, key_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_key(key_file, key_text(3), 0o644)
    keys = chain(paths)
    assert [(await keys.load()).source for _ in range(2)] == ["file", "file"]
    lines = [vars(record) for record in caplog.records]
    assert [line["lemon_fields"]["mode"] for line in lines] == ["0644"]
    assert key_text(3) not in str(lines)


def test_a_key_is_not_in_its_repr() -> None:
    assert repr(MasterKey(b"\1" * 32, "env")) == "MasterKey(source='env')"


# A `security` that keeps one entry beside itself and notes how it was called. Like the real one it
# reads commands from stdin with -i and exits with 44 for what it does not have.
SECURITY = r"""#!/bin/sh
here=${0%/*}
echo "$HOME $*" >> "$here/calls"
[ -f "$here/hangs" ] && exec sleep 60
[ -f "$here/locked" ] && exit 51
if [ "$1" = -i ]; then
    read -r line
    entry=${line##* -w \"}
    echo "${entry%\"}" > "$here/entry"
    exit 0
fi
[ -f "$here/entry" ] || exit 44
cat "$here/entry"
"""


@pytest.fixture
def security(tmp_path: Path) -> Path:
    tool = tmp_path / "tools" / "security"
    tool.parent.mkdir()
    tool.write_text(SECURITY)
    tool.chmod(0o700)
    (tool.parent / "calls").touch()
    return tool


def keychain(tool: Path, home: Path, timeout_ms: int = 5_000) -> KeychainKey:
    return KeychainKey("Lemon Secrets", "default", home=home, tool=tool, timeout_ms=timeout_ms)


async def test_the_keychain_by_its_command(tmp_path: Path, security: Path) -> None:
    home = tmp_path / "home"
    place = keychain(security, home)
    with anyio.fail_after(5):
        assert place.available()
        assert await place.fetch() is None
        assert await place.put(key_text(1), force=False)
        assert await place.fetch() == key_text(1)
        with pytest.raises(SecretsError) as caught:
            await place.put(key_text(2), force=False)
        assert caught.value.code == "key_file_exists"
        assert await place.put(key_text(2), force=True)
        assert await place.fetch() == key_text(2)
    calls = (security.parent / "calls").read_text()
    find = f"{home} find-generic-password -s Lemon Secrets -a default -w"
    assert calls.splitlines()[0] == find
    assert set(calls.splitlines()) == {find, f"{home} -i"}


async def test_a_keychain_that_fails_or_hangs(tmp_path: Path, security: Path) -> None:
    (security.parent / "locked").touch()
    with anyio.fail_after(5):
        with pytest.raises(SecretsError, match="exit 51"):
            await keychain(security, tmp_path).fetch()
        with pytest.raises(SecretsError) as caught:
            await keychain(security, tmp_path).put(key_text(1), force=True)
        assert caught.value.code == "master_key_not_written"
        (security.parent / "hangs").touch()
        with pytest.raises(SecretsError, match="no answer in time"):
            await keychain(security, tmp_path, timeout_ms=50).fetch()


def test_without_the_command_there_is_no_keychain(tmp_path: Path) -> None:
    assert not keychain(tmp_path / "security", tmp_path).available()
