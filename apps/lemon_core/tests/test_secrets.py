"""Secrets in the store (specification lemon_core 11)."""

from __future__ import annotations

import logging
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lemon_core.boot import boot
from lemon_core.bus import SYSTEM_TOPIC, Bus
from lemon_core.key_providers import EnvKey
from lemon_core.master_key import MasterKeyChain
from lemon_core.profiles import Profile
from lemon_core.secret_cipher import VERSION, Sealed, Undecipherable, seal, unseal
from lemon_core.secret_record import TABLE
from lemon_core.secrets import SecretInfo, Secrets, SecretsError, SecretsStatus
from lemon_core.store import DeleteKey, PutValue, Store, StoreSettings, StoreUnavailable, open_store
from lemon_core.system_events import SecretChanged
from lemon_core.testing import FakeClock, scrubbed_environ, temp_home

pytestmark = pytest.mark.anyio

VARIABLE = "LEMON_SECRETS_MASTER_KEY"
OLD, NEW = (b64encode(bytes([seed]) * 32).decode() for seed in (1, 2))
PLAIN = "sk-planted-value"


@dataclass
class Bench:
    """Secrets over a store, and what they stand on."""

    store: Store
    clock: FakeClock = field(default_factory=FakeClock)
    bus: Bus = field(default_factory=Bus)
    environ: dict[str, str] = field(default_factory=lambda: {VARIABLE: OLD})

    def __post_init__(self) -> None:
        keys = MasterKeyChain([EnvKey(self.environ, VARIABLE)])
        self.secrets = Secrets(self.store, self.clock, keys, self.bus, self.environ)

    async def record(self, name: str, owner: str = "default") -> dict[str, object]:
        """The stored row."""
        row = await self.store.get(TABLE, (owner, name))
        assert isinstance(row, dict)
        return row

    async def change(self, name: str, **fields: object) -> None:
        """Write into the stored row, as somebody with access to the database would."""
        await self.store.put(TABLE, ("default", name), {**await self.record(name), **fields})

    async def refusal(self, name: str) -> str:
        """The code with which `get` refuses."""
        with pytest.raises(SecretsError) as caught:
            await self.secrets.get(name)
        assert PLAIN not in str(caught.value)
        return caught.value.code


@pytest.fixture(params=["memory", "sqlite"])
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    clock = FakeClock()
    async with open_store(StoreSettings(request.param, tmp_path), clock) as store:
        yield Bench(store, clock)


def flipped(text: str, index: int) -> str:
    """Base64 `text` with one bit of byte `index` changed."""
    raw = bytearray(b64decode(text))
    raw[index % len(raw)] ^= 1
    return b64encode(raw).decode()


@pytest.mark.behaviour("lemon_core.34")
@given(st.text(min_size=1).map(str.encode), st.binary(min_size=32, max_size=64))
def test_what_was_sealed_is_read_back(plain: bytes, master: bytes) -> None:
    sealed, again = seal(plain, master), seal(plain, master)
    assert unseal(sealed, master) == plain
    sizes = [len(b64decode(part)) for part in (sealed.ciphertext, sealed.nonce, sealed.salt)]
    assert sizes == [len(plain) + 16, 12, 32]
    assert sealed.salt != again.salt
    assert sealed.nonce != again.nonce


@pytest.mark.behaviour("lemon_core.34")
@given(
    st.binary(min_size=1, max_size=64),
    st.sampled_from(["ciphertext", "nonce", "salt"]),
    st.integers(min_value=0, max_value=200),
)
def test_any_changed_bit_and_any_other_key_is_noticed(plain: bytes, part: str, index: int) -> None:
    sealed = seal(plain, b"m" * 32)
    parts = {"ciphertext": sealed.ciphertext, "nonce": sealed.nonce, "salt": sealed.salt}
    changed = Sealed(**{**parts, part: flipped(parts[part], index)})
    cut = Sealed(**{**parts, part: parts[part][:-4]})
    for broken, master in [(changed, b"m" * 32), (cut, b"m" * 32), (sealed, b"n" * 32)]:
        with pytest.raises(Undecipherable):
            unseal(broken, master)


def test_the_format_is_the_specified_one() -> None:
    """HKDF as RFC 5869 writes it, and the version authenticated: others can read the table."""
    import hashlib
    import hmac

    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    master, salt, nonce = b"k" * 32, b"s" * 32, b"n" * 12
    version = b"lemon-secrets-v1"
    extracted = hmac.new(salt, master, hashlib.sha256).digest()
    key = hmac.new(extracted, version + b"\x01", hashlib.sha256).digest()
    ciphertext = AESGCM(key).encrypt(nonce, b"text", version)
    texts = [b64encode(part).decode() for part in (ciphertext, nonce, salt)]
    assert unseal(Sealed(*texts), master) == b"text"


@pytest.mark.behaviour("lemon_core.34")
async def test_a_secret_comes_back_and_its_use_is_counted(bench: Bench) -> None:
    made = bench.clock.now_ms()
    info = await bench.secrets.set(" KEY ", PLAIN)
    assert info == SecretInfo("default", "KEY", "manual", VERSION, None, 0, None, made, made)
    await bench.clock.advance(5)
    assert [await bench.secrets.get("KEY") for _ in range(2)] == [PLAIN, PLAIN]
    used = SecretInfo("default", "KEY", "manual", VERSION, None, 2, made + 5, made, made)
    assert await bench.secrets.list() == (used,)
    again = await bench.secrets.set("KEY", "other", provider="oauth", expires_at=made + 100)
    assert again == SecretInfo(
        "default", "KEY", "oauth", VERSION, made + 100, 0, None, made, made + 5
    )
    assert await bench.secrets.get("KEY") == "other"


async def test_owners_are_apart_and_names_are_sorted(bench: Bench) -> None:
    for owner, name in [("a", "Z"), ("a", "B"), ("b", "Z")]:
        await bench.secrets.set(name, f"{owner}{name}", owner=owner)
    assert [info.name for info in await bench.secrets.list(owner="a")] == ["B", "Z"]
    assert await bench.secrets.list() == ()
    assert await bench.secrets.delete("Z", owner="a")
    assert await bench.secrets.get("Z", owner="b") == "bZ"


async def test_bad_names_and_values(bench: Bench) -> None:
    for name, value, code in [
        (" ", "x", "invalid_secret_name"),
        ("KEY", "", "invalid_secret_value"),
        ("KEY", 5, "invalid_secret_value"),
        ("KEY", f"{PLAIN}\ud800", "invalid_secret_value"),
    ]:
        with pytest.raises(SecretsError) as caught:
            await bench.secrets.set(name, value)  # type: ignore[arg-type]  # the case under test
        assert caught.value.code == code
        assert caught.value.__cause__ is None
        assert PLAIN not in str(caught.value)
    assert await bench.secrets.list() == ()


@pytest.mark.behaviour("lemon_core.34")
async def test_what_was_tampered_with_or_belongs_to_another_key_is_refused(bench: Bench) -> None:
    await bench.secrets.set("KEY", PLAIN)
    good = await bench.record("KEY")
    for name in ("ciphertext", "nonce", "salt"):
        await bench.change("KEY", **{**good, name: flipped(str(good[name]), 3)})
        assert await bench.refusal("KEY") == "decrypt_failed"
        await bench.change("KEY", **{**good, name: "not base64"})
        assert await bench.refusal("KEY") == "decrypt_failed"
    await bench.change("KEY", **{**good, "version": "lemon-secrets-v9"})
    assert await bench.refusal("KEY") == "decrypt_failed"
    await bench.change("KEY", **good)
    bench.environ[VARIABLE] = NEW
    assert await bench.refusal("KEY") == "decrypt_failed"
    del bench.environ[VARIABLE]
    assert await bench.refusal("KEY") == "missing_master_key"
    assert await bench.refusal("OTHER") == "not_found"
    assert (await bench.record("KEY"))["usage_count"] == 0


@pytest.mark.behaviour("lemon_core.34")
async def test_an_expired_secret_is_refused_and_removed(bench: Bench) -> None:
    end = bench.clock.now_ms() + 10
    for name in ("READ", "LISTED"):
        await bench.secrets.set(name, PLAIN, expires_at=end)
    await bench.clock.advance(9)
    assert await bench.secrets.get("READ") == PLAIN
    assert await bench.secrets.exists("READ")
    await bench.clock.advance(1)
    assert not await bench.secrets.exists("READ")
    assert await bench.refusal("READ") == "expired"
    assert await bench.refusal("READ") == "not_found"
    assert await bench.secrets.list() == ()
    assert await bench.store.list(TABLE) == []


async def test_what_is_set_after_the_end_is_a_new_secret(bench: Bench) -> None:
    await bench.secrets.set("KEY", PLAIN, expires_at=bench.clock.now_ms() + 1)
    await bench.clock.advance(1)
    assert (await bench.secrets.set("KEY", PLAIN)).created_at == bench.clock.now_ms()


@pytest.mark.behaviour("lemon_core.34")
async def test_a_variable_stands_in_and_may_be_preferred(bench: Bench) -> None:
    resolve = bench.secrets.resolve
    with pytest.raises(SecretsError) as caught:
        await resolve("KEY")
    assert caught.value.code == "not_found"
    assert await bench.secrets.fetch_value("KEY") is None
    bench.environ["KEY"] = "from env"
    assert ((await resolve("KEY")).value, (await resolve("KEY")).source) == ("from env", "env")
    assert await bench.secrets.fetch_value("KEY") == "from env"
    with pytest.raises(SecretsError):
        await resolve("KEY", env_fallback=False)
    await bench.secrets.set("KEY", PLAIN)
    assert ((await resolve("KEY")).value, (await resolve("KEY")).source) == (PLAIN, "store")
    assert (await resolve("KEY", prefer_env=True)).source == "env"
    bench.environ["KEY"] = " "
    assert (await resolve("KEY", prefer_env=True)).source == "store"
    bench.environ[VARIABLE] = NEW
    with pytest.raises(SecretsError) as caught:
        await bench.secrets.fetch_value("KEY")
    assert caught.value.code == "decrypt_failed"
    bench.environ["KEY"] = "from env"
    assert (await resolve("KEY")).source == "env"


@pytest.mark.behaviour("lemon_core.34")
async def test_no_value_in_list_status_events_logs_or_repr(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    seen: list[object] = []
    with bench.bus.subscribe(SYSTEM_TOPIC) as events, anyio.fail_after(5):
        seen.append(await bench.secrets.set("KEY", PLAIN))
        seen.append(await bench.secrets.list())
        seen.append(await bench.secrets.status())
        bench.environ["KEY"] = PLAIN
        seen += [await bench.secrets.resolve("KEY"), bench.secrets]
        seen.append(await bench.secrets.import_from_env("OTHER", "KEY"))
        bench.environ[VARIABLE] = NEW
        seen.append(await bench.secrets.resolve("KEY"))
        assert await bench.secrets.delete("KEY")
        assert not await bench.secrets.delete("KEY")
        batch = await events.receive_batch()
    assert [event.payload for event in batch] == [
        SecretChanged(owner="default", name="KEY", action="set"),
        SecretChanged(owner="default", name="OTHER", action="set"),
        SecretChanged(owner="default", name="KEY", action="delete"),
    ]
    assert {event.type for event in batch} == {"secret_changed"}
    rows = await bench.store.list(TABLE)
    told = repr([seen, batch, rows, [vars(record) for record in caplog.records]])
    assert "KEY" in told
    for planted in (PLAIN, b64encode(PLAIN.encode()).decode(), OLD, NEW):
        assert planted not in told


async def test_the_status_names_the_key_and_counts(bench: Bench) -> None:
    await bench.secrets.set("KEY", PLAIN)
    assert await bench.secrets.status() == SecretsStatus(
        configured=True,
        source="env",
        problem=None,
        keychain_available=False,
        env_fallback=True,
        owner="default",
        count=1,
    )
    bench.environ[VARIABLE] = "short"
    broken = await bench.secrets.status()
    assert (broken.configured, broken.source, broken.problem, broken.count) == (
        False,
        None,
        "invalid_master_key",
        1,
    )


async def test_importing_a_variable(bench: Bench) -> None:
    for name, value, code in [("A", None, "env_not_found"), ("A", " ", "env_empty")]:
        if value is not None:
            bench.environ[name] = value
        with pytest.raises(SecretsError) as caught:
            await bench.secrets.import_from_env(name)
        assert caught.value.code == code
    bench.environ["A"] = PLAIN
    assert (await bench.secrets.import_from_env("A")).provider == "env"
    assert bench.environ["A"] == PLAIN
    await bench.secrets.import_from_env("KEY", "A", delete_after=True)
    assert "A" not in bench.environ
    assert await bench.secrets.get("KEY") == PLAIN
    bench.environ["B"] = PLAIN
    del bench.environ[VARIABLE]
    with pytest.raises(SecretsError, match="no master key"):
        await bench.secrets.import_from_env("B", delete_after=True)
    assert bench.environ["B"] == PLAIN


@pytest.mark.behaviour("lemon_core.34")
async def test_rekey_changes_every_record_and_nothing_else(bench: Bench) -> None:
    assert await bench.secrets.rekey(NEW) == 0
    await bench.secrets.set("A", "a")
    await bench.secrets.set("B", "b", owner="other")
    before = [await bench.secrets.list(owner=owner) for owner in ("default", "other")]
    assert await bench.secrets.rekey(NEW) == 2
    assert [await bench.secrets.list(owner=owner) for owner in ("default", "other")] == before
    assert await bench.refusal("A") == "decrypt_failed"
    bench.environ[VARIABLE] = NEW
    assert await bench.secrets.get("A") == "a"
    assert await bench.secrets.get("B", owner="other") == "b"


class FailingStore(Store):
    """Refuses transactions that change more than one key, as a full disk would."""

    async def transaction(self, writes: object) -> None:
        assert isinstance(writes, list)
        if len(writes) > 1:
            raise StoreUnavailable("the disk is full")
        only: PutValue | DeleteKey = writes[0]
        await super().transaction([only])


@pytest.mark.behaviour("lemon_core.34")
async def test_rekey_is_all_or_nothing(bench: Bench) -> None:
    for name in ("A", "B"):
        await bench.secrets.set(name, name)
    good = await bench.record("B")
    await bench.change("B", ciphertext=flipped(str(good["ciphertext"]), 0))
    rows = await bench.store.list(TABLE)
    for master, code in [(NEW, "decrypt_failed"), ("short", "invalid_master_key")]:
        with pytest.raises(SecretsError) as caught:
            await bench.secrets.rekey(master)
        assert caught.value.code == code
        assert await bench.store.list(TABLE) == rows
    await bench.change("B", **good)
    rows = await bench.store.list(TABLE)
    full = FailingStore(bench.store.backend)
    refused = Secrets(full, bench.clock, bench.secrets.keys, bench.bus, bench.environ)
    with pytest.raises(StoreUnavailable):
        await refused.rekey(NEW)
    assert await bench.store.list(TABLE) == rows
    assert await bench.secrets.get("A") == "A"


async def test_a_use_that_cannot_be_counted_does_not_lock_out(bench: Bench) -> None:
    class ReadOnly(Store):
        async def compare_and_swap(self, *_: object) -> bool:
            raise StoreUnavailable("the disk is full")

    await bench.secrets.set("KEY", PLAIN, expires_at=bench.clock.now_ms() + 1)
    full = ReadOnly(bench.store.backend)
    secrets = Secrets(full, bench.clock, bench.secrets.keys, bench.bus, bench.environ)
    assert await secrets.get("KEY") == PLAIN
    await bench.clock.advance(1)
    with pytest.raises(SecretsError) as caught:
        await secrets.get("KEY")
    assert caught.value.code == "expired"


async def test_uses_and_a_new_value_at_once_lose_nothing(bench: Bench) -> None:
    await bench.secrets.set("KEY", "one")
    values: list[str] = []

    async def use() -> None:
        values.append(await bench.secrets.get("KEY"))

    async def change() -> None:
        await bench.secrets.set("KEY", "two")

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for job in (use, use, change, use):
                tasks.start_soon(job)
    assert set(values) <= {"one", "two"}
    assert await bench.secrets.get("KEY") == "two"
    assert (await bench.record("KEY"))["usage_count"] == 1 + values.count("two")


async def test_a_runtime_carries_its_secrets() -> None:
    """Section 13: the key of the runtime's home, kept over a restart."""
    with temp_home() as paths, anyio.fail_after(10):
        root = logging.getLogger("lemon")
        handlers, level = root.handlers[:], root.level
        try:
            for started in range(2):
                async with boot(
                    Profile("test"),
                    cwd=paths.home,
                    environ=scrubbed_environ(paths.home, {"PLANTED": PLAIN}),
                    paths=paths,
                    serve=False,
                ) as runtime:
                    if not started:
                        await runtime.secrets.keys.init_master_key("file")
                        await runtime.secrets.import_from_env("PLANTED", delete_after=True)
                        assert "PLANTED" not in runtime.environ
                    found = await runtime.secrets.resolve("PLANTED")
                    assert (found.value, found.source) == (PLAIN, "store")
        finally:
            root.handlers[:] = handlers
            root.setLevel(level)
