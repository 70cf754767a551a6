"""Execution contexts (specification lemon_core 6.3)."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lemon_core.execution_context import (
    AuthorityError,
    ContextRejected,
    ExecutionContext,
    Limits,
    Principal,
    Provenance,
    Workspace,
)
from lemon_core.tests.policies import TOOLS, contexts, limits, policies
from lemon_core.tool_policy import ToolPolicy, intersect
from lemon_core.util import canonical_json

NOW = 500
OPERATOR = Principal(kind="operator", id="operator")


def root(
    cwd: Path,
    *,
    roots: tuple[str, ...] = (),
    policy: ToolPolicy | None = None,
    bounds: Limits | None = None,
    provenance: Provenance | None = None,
    read_only: bool = False,
    expires_at_ms: int | None = None,
) -> ExecutionContext:
    return ExecutionContext.root(
        run_id="run_1",
        session_key="agent:default:main",
        agent_id="default",
        principal=OPERATOR,
        provenance=provenance or Provenance(origin="cli"),
        workspace=Workspace.at(str(cwd), roots, read_only=read_only),
        capabilities=policy or ToolPolicy.full_access(),
        limits=bounds,
        now_ms=NOW,
        expires_at_ms=expires_at_ms,
    )


def refused(context: ExecutionContext, **changes: Any) -> str:
    with pytest.raises(AuthorityError) as caught:
        context.child("run_2", **{"now_ms": NOW, **changes})
    return caught.value.code


def test_a_root_context_begins_its_lineage(tmp_path: Path) -> None:
    context = root(tmp_path)
    line = context.lineage
    assert (line.run_id, line.root_run_id, line.parent_run_id, line.depth) == (
        "run_1",
        "run_1",
        None,
        0,
    )
    assert context.limits == Limits()
    assert context.validity.issued_at_ms == NOW


def test_a_child_is_linked_and_inherits_who_asked(tmp_path: Path) -> None:
    parent = root(tmp_path, provenance=Provenance(origin="channel", peer_id="7"))
    child = parent.child("run_2", agent_id="helper", now_ms=NOW + 1)
    grandchild = child.child("run_3", session_key="agent:helper:main:sub:x", now_ms=NOW + 2)
    assert grandchild.lineage.model_dump() == {
        "run_id": "run_3",
        "root_run_id": "run_1",
        "parent_run_id": "run_2",
        "session_key": "agent:helper:main:sub:x",
        "agent_id": "helper",
        "depth": 2,
    }
    assert grandchild.principal == parent.principal
    assert grandchild.provenance == parent.provenance
    assert grandchild.workspace == parent.workspace
    assert child.lineage.session_key == parent.lineage.session_key


@pytest.mark.behaviour("lemon_core.19")
@given(ceiling=policies, request=st.none() | policies)
def test_a_child_has_at_most_its_parents_policy(
    ceiling: ToolPolicy, request: ToolPolicy | None
) -> None:
    parent = root(Path("/"), policy=ceiling)
    child = parent.child("run_2", policy=request, now_ms=NOW)
    assert child.capabilities == intersect(ceiling, request)
    for tool in TOOLS:
        assert ceiling.allowed(tool) or not child.capabilities.allowed(tool)


@pytest.mark.behaviour("lemon_core.19")
@given(mine=limits, wanted=st.none() | limits)
def test_a_child_has_the_smaller_of_each_limit(mine: Limits, wanted: Limits | None) -> None:
    child = root(Path("/"), bounds=mine).child("run_2", limits=wanted, now_ms=NOW)
    for name in Limits.model_fields:
        given_bounds = [getattr(mine, name), getattr(wanted, name, None)]
        expected = min((bound for bound in given_bounds if bound is not None), default=None)
        assert getattr(child.limits, name) == expected


@pytest.mark.behaviour("lemon_core.19")
def test_a_child_stays_inside_the_workspace(tmp_path: Path) -> None:
    inner, outer = tmp_path / "in", tmp_path / "out"
    (inner / "sub").mkdir(parents=True)
    outer.mkdir()
    (inner / "door").symlink_to(outer)
    parent = root(inner)
    narrower = Workspace.at(str(inner / "sub"))
    assert parent.child("run_2", workspace=narrower, now_ms=NOW).workspace == narrower
    door = str(inner / "door")
    for wider in (
        Workspace.at(str(tmp_path)),
        Workspace.at(str(outer)),
        Workspace.at(str(inner), (str(inner), str(outer))),
        Workspace(cwd=door, roots=(door,)),
        Workspace(cwd=door, roots=(str(inner),)),
    ):
        assert refused(parent, workspace=wider) == "workspace_escape"


@pytest.mark.behaviour("lemon_core.19")
def test_a_child_of_a_reader_only_reads(tmp_path: Path) -> None:
    parent = root(tmp_path, read_only=True)
    child = parent.child("run_2", workspace=Workspace.at(str(tmp_path)), now_ms=NOW)
    assert child.workspace.read_only
    writer = root(tmp_path)
    reading = Workspace.at(str(tmp_path), read_only=True)
    assert writer.child("run_2", workspace=reading, now_ms=NOW).workspace.read_only


@pytest.mark.behaviour("lemon_core.19")
def test_untrusted_input_only_turns_on(tmp_path: Path) -> None:
    trusted = root(tmp_path)
    untrusted = trusted.child("run_2", untrusted_input=True, now_ms=NOW)
    assert not trusted.provenance.untrusted_input
    assert untrusted.provenance.untrusted_input
    again = untrusted.child("run_3", untrusted_input=False, now_ms=NOW)
    assert again.provenance.untrusted_input


@pytest.mark.behaviour("lemon_core.19")
def test_depth_and_number_of_children_are_bounded(tmp_path: Path) -> None:
    parent = root(tmp_path, bounds=Limits(max_depth=1, max_children=2))
    child = parent.child("run_2", children_started=1, now_ms=NOW)
    assert refused(child) == "depth_exceeded"
    assert refused(parent, children_started=2) == "children_exceeded"


def test_an_expired_context_has_no_children(tmp_path: Path) -> None:
    parent = root(tmp_path, expires_at_ms=NOW + 10)
    assert parent.child("run_2", now_ms=NOW + 10).validity.expires_at_ms == NOW + 10
    assert refused(parent, now_ms=NOW + 11) == "expired"
    with pytest.raises(AuthorityError, match="expired"):
        root(tmp_path, expires_at_ms=NOW - 1)


def test_nonsense_is_an_invalid_request(tmp_path: Path) -> None:
    with pytest.raises(AuthorityError) as caught:
        root(tmp_path).child("", now_ms=NOW)
    assert caught.value.code == "invalid_request"
    assert "run_id" in str(caught.value)


def test_a_root_does_not_start_behind_a_link_out_of_its_roots(tmp_path: Path) -> None:
    inner = tmp_path / "in"
    inner.mkdir()
    (inner / "door").symlink_to(tmp_path)
    space = Workspace(cwd=str(inner / "door"), roots=(str(inner),))
    with pytest.raises(AuthorityError) as caught:
        ExecutionContext.root(
            run_id="run_1",
            session_key="agent:default:main",
            agent_id="default",
            principal=OPERATOR,
            provenance=Provenance(origin="cli"),
            workspace=space,
            capabilities=ToolPolicy.full_access(),
            now_ms=NOW,
        )
    assert caught.value.code == "workspace_escape"


@given(contexts(), policies)
def test_narrowing_changes_only_the_capabilities(
    context: ExecutionContext, policy: ToolPolicy
) -> None:
    narrowed = context.narrowed(policy)
    assert narrowed.capabilities == intersect(context.capabilities, policy)
    assert narrowed.narrowed(context.capabilities).model_dump(exclude={"capabilities"}) == (
        context.model_dump(exclude={"capabilities"})
    )


# -- wire form -------------------------------------------------------------------------------


def wire(context: ExecutionContext) -> dict[str, Any]:
    """The wire form as it comes out of JSON, free to be tampered with."""
    loaded: dict[str, Any] = json.loads(json.dumps(context.to_wire()))
    return loaded


def signed(form: dict[str, Any]) -> dict[str, Any]:
    return {**form, "digest": hashlib.sha256(canonical_json(form["context"])).hexdigest()}


def rejection(form: object, **expected: Any) -> str:
    with pytest.raises(ContextRejected) as caught:
        ExecutionContext.from_wire(form, **{"now_ms": NOW, **expected})
    return caught.value.code


@pytest.mark.behaviour("lemon_core.20")
@given(contexts())
def test_the_wire_form_round_trips(context: ExecutionContext) -> None:
    assert ExecutionContext.from_wire(wire(context), now_ms=NOW) == context
    assert ExecutionContext.from_wire(context.to_wire(), now_ms=NOW) == context
    assert wire(ExecutionContext.from_wire(wire(context), now_ms=NOW)) == wire(context)
    assert json.loads(context.to_wire_json()) == wire(context)


@pytest.mark.behaviour("lemon_core.20")
def test_each_mismatch_has_its_code() -> None:
    node = Provenance(origin="node", node_id="kitchen")
    form = wire(root(Path("/"), provenance=node, expires_at_ms=NOW + 1))
    assert rejection({**form, "v": 2}) == "unsupported_version"
    assert rejection({**form, "v": True}) == "unsupported_version"
    assert rejection({**form, "extra": 1}) == "malformed"
    assert rejection({**form, "digest": "0" * 64}) == "digest_mismatch"
    assert rejection({**form, "digest": None}) == "digest_mismatch"
    assert rejection(form, now_ms=NOW + 2) == "expired"
    assert rejection(form, expected_run_id="run_2") == "run_mismatch"
    assert rejection(form, expected_node_id="attic") == "node_mismatch"
    assert rejection(form, allowed_roots=["/srv"]) == "workspace_escape"
    good = ExecutionContext.from_wire(
        form, now_ms=NOW + 1, expected_run_id="run_1", expected_node_id="kitchen"
    )
    assert good.provenance == node


def test_a_context_for_any_node_fits_every_node() -> None:
    context = root(Path("/"))
    form = wire(context)
    assert ExecutionContext.from_wire(form, now_ms=NOW, expected_node_id="attic") == context


def test_a_node_lends_only_its_own_roots(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "door").symlink_to("/")
    context = root(tmp_path / "in")
    form = wire(context)
    lent = [str(tmp_path)]
    assert ExecutionContext.from_wire(form, now_ms=NOW, allowed_roots=lent) == context
    form["context"]["workspace"]["roots"] = [str(tmp_path / "in" / "door")]
    form["context"]["workspace"]["cwd"] = str(tmp_path / "in" / "door")
    assert rejection(signed(form), allowed_roots=lent) == "workspace_escape"


@pytest.mark.behaviour("lemon_core.20")
@pytest.mark.parametrize(
    ("part", "key", "value"),
    [
        ("lineage", "extra", 1),
        ("lineage", "depth", -1),
        ("lineage", "depth", "0"),
        ("lineage", "run_id", ""),
        ("principal", "kind", "root"),
        ("provenance", "engine", "other"),
        ("provenance", "untrusted_input", 0),
        ("workspace", "roots", []),
        ("workspace", "roots", ["tmp"]),
        ("workspace", "cwd", "/tmp/.."),
        ("limits", "max_tokens", 0),
        ("limits", "max_tokens", True),
        ("limits", "max_cost_usd", -1.0),
        ("limits", "unknown", None),
        ("validity", "issued_at_ms", None),
    ],
)
def test_every_part_is_read_strictly(part: str, key: str, value: object) -> None:
    form = wire(root(Path("/tmp")))
    form["context"][part][key] = value
    assert rejection(signed(form)) == "malformed"


@pytest.mark.behaviour("lemon_core.20")
@pytest.mark.parametrize(
    "policy",
    [
        {},
        {"allow": "all"},
        None,
        "full_access",
        {"alow": "all"},
        {**ToolPolicy.full_access().dump(), "deny": ["b", "a"]},
        {**ToolPolicy.full_access().dump(), "profile": "read_only"},
        {**ToolPolicy.full_access().dump(), "max_file_size": 0},
    ],
)
def test_a_policy_is_taken_as_written_or_not_at_all(policy: object) -> None:
    form = wire(root(Path("/")))
    form["context"]["capabilities"] = policy
    assert rejection(signed(form)) == "invalid_policy"


@pytest.mark.parametrize(
    "form",
    [
        None,
        [],
        "x",
        {"v": 1},
        {"v": 1, "context": None, "digest": ""},
        {"v": 1, "context": {"x": float("nan")}, "digest": ""},
        {"v": 1, "context": {"x": object()}, "digest": ""},
        signed({"v": 1, "context": {}}),
        signed({"v": 1, "context": {"capabilities": ToolPolicy.full_access().dump()}}),
    ],
)
def test_garbage_is_malformed(form: object) -> None:
    assert rejection(form) == "malformed"


def test_a_bare_policy_is_no_context() -> None:
    assert rejection(ToolPolicy.full_access().dump()) == "unsupported_version"
