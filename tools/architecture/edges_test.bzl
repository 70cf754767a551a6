"""Unit tests of edges.bzl, over the cases that lemon_core.quality is tested over too."""

load("@bazel_skylib//lib:unittest.bzl", "asserts", "unittest")
load("//tools/architecture:edge_cases.bzl", "EDGE_CASES")
load("//tools/architecture:edges.bzl", "app_of", "dependents", "edge_errors", "edge_report")
load("//tools/architecture:policy.bzl", "ALLOWED", "FINAL")

def _edge_errors_impl(ctx):
    env = unittest.begin(ctx)
    for name, case in EDGE_CASES.items():
        errors = edge_errors(
            case["app"],
            case["deps"],
            case["test_deps"],
            case["allowed"],
            case["final"],
        )
        found = [[error.code, error.dep] for error in errors]
        asserts.equals(env, case["errors"], found, name)
    return unittest.end(env)

def _edge_report_impl(ctx):
    env = unittest.begin(ctx)
    errors = edge_errors("app", ["//apps/extra"], [], {"app": ["gone"], "extra": []}, {"app": ["gone"]})
    asserts.equals(
        env,
        """\
apps/app/BUILD.bazel and tools/architecture/policy.bzl disagree:
  forbidden_dependency: ALLOWED does not permit the edge app -> extra; remove it or change the policy
  stale_dependency_permission: ALLOWED permits the edge app -> gone, which is gone; remove the permission""",
        edge_report("app", errors),
    )
    return unittest.end(env)

def _app_of_impl(ctx):
    env = unittest.begin(ctx)
    for label, app in {
        "//apps/lemon_core": "lemon_core",
        "//apps/lemon_core/inner:x": "lemon_core",
        "//apps/lemon_core:rpc": "lemon_core",
        "//protos:execution": None,
        ":lemon_core": None,
        "@//apps/lemon_core": "lemon_core",
        "@pypi//apps": None,
    }.items():
        asserts.equals(env, app, app_of(label), label)
    return unittest.end(env)

def _dependents_impl(ctx):
    env = unittest.begin(ctx)
    asserts.equals(env, ["b", "c"], dependents("a", {"a": [], "b": ["a"], "c": ["a", "b"], "d": ["b"]}))
    return unittest.end(env)

def _policy_impl(ctx):
    env = unittest.begin(ctx)
    asserts.equals(env, 24, len(FINAL))
    for table in [ALLOWED, FINAL]:
        for app, row in table.items():
            asserts.equals(env, sorted(row), row, "the row of %s is sorted" % app)
            for dep in row:
                asserts.true(env, dep in FINAL, "%s of %s is an app" % (dep, app))
    return unittest.end(env)

edge_errors_test = unittest.make(_edge_errors_impl)
edge_report_test = unittest.make(_edge_report_impl)
app_of_test = unittest.make(_app_of_impl)
dependents_test = unittest.make(_dependents_impl)
policy_test = unittest.make(_policy_impl)
