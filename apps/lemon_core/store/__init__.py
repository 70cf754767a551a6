"""Durable state: the store, its backends and the typed wrappers."""

from lemon_core.store.bindings import ProjectBindingStore
from lemon_core.store.chat_state import DELETE, KEEP, ChatStateChange, ChatStateStore
from lemon_core.store.codec import Codec, Key
from lemon_core.store.core import (
    ABSENT,
    DeleteKey,
    PutValue,
    Store,
    StoreSettings,
    backend_for,
    open_store,
)
from lemon_core.store.errors import (
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreTooNew,
    StoreUnavailable,
    UnsupportedValue,
)
from lemon_core.store.run_record import RunRecord
from lemon_core.store.run_store import RunStore, SessionEntry
from lemon_core.store.usage import ModelUsage, Usage, UsageRow, UsageStore
from lemon_core.store.wrappers import (
    UNSET,
    PolicyStore,
    ProgressStore,
    SessionSettings,
    SessionSettingsStore,
)

__all__ = [
    "ABSENT",
    "DELETE",
    "KEEP",
    "UNSET",
    "ChatStateChange",
    "ChatStateStore",
    "Codec",
    "DeleteKey",
    "Key",
    "ModelUsage",
    "PolicyStore",
    "ProgressStore",
    "ProjectBindingStore",
    "PutValue",
    "RunRecord",
    "RunStore",
    "SessionEntry",
    "SessionSettings",
    "SessionSettingsStore",
    "Store",
    "StoreBusy",
    "StoreCorrupt",
    "StoreError",
    "StoreSettings",
    "StoreTooNew",
    "StoreUnavailable",
    "UnsupportedValue",
    "Usage",
    "UsageRow",
    "UsageStore",
    "backend_for",
    "open_store",
]
