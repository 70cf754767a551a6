"""The dependency policy at load time: pure functions, no targets."""

def app_of(label):
    """Returns the app that a label below //apps names, None for any other label.

    Args:
      label: a string such as "//apps/lemon_core" or "//apps/lemon_core:rpc".
    """
    prefix = "//apps/"
    label = "//" + label.partition("//")[2] if label.startswith("@") else label
    if not label.startswith(prefix):
        return None
    return label[len(prefix):].partition(":")[0].partition("/")[0]

def edge_errors(app, deps, test_deps, allowed, final):
    """Compares the labels of an app with its policy row, in both directions.

    The same rules as lemon_core.quality.architecture.edge_errors; both are tested over the cases
    of edge_cases.bzl.

    Args:
      app: name of the app.
      deps: labels its library depends on; a label of a part is an edge to its app.
      test_deps: labels that only its tests depend on.
      allowed: app to list of apps, the policy now.
      final: app to list of apps, the policy in the end.

    Returns:
      A list of struct(code, dep, message); `dep` is empty when the app itself is at fault.
    """
    policy = "tools/architecture/policy.bzl"
    if app not in allowed:
        return [_error("unknown_app", "", "%s has no row in ALLOWED of %s" % (app, policy))]
    edges = {app_of(label): True for label in deps + test_deps}
    edges = [edge for edge in sorted([e for e in edges if e]) if edge != app]
    row = allowed[app]
    errors = []
    if app not in final:
        errors.append(_error(
            "outside_final",
            "",
            "%s is in ALLOWED but has no row in FINAL" % app,
        ))
    for dep in edges:
        if dep in row:
            continue
        if dep in allowed:
            errors.append(_error(
                "forbidden_dependency",
                dep,
                "ALLOWED does not permit the edge %s -> %s; remove it or change the policy" % (app, dep),
            ))
        else:
            errors.append(_error(
                "unknown_app",
                dep,
                "the edge %s -> %s points at no app of ALLOWED" % (app, dep),
            ))
    for dep in sorted(row):
        if dep not in edges:
            errors.append(_error(
                "stale_dependency_permission",
                dep,
                "ALLOWED permits the edge %s -> %s, which is gone; remove the permission" % (app, dep),
            ))
    for dep in sorted(row):
        if dep not in final.get(app, row):
            errors.append(_error("outside_final", dep, "FINAL has no edge %s -> %s" % (app, dep)))
    return errors

def edge_report(app, errors):
    """Returns the text that loading fails with.

    Args:
      app: name of the app.
      errors: what edge_errors returned.
    """
    lines = ["  %s: %s" % (error.code, error.message) for error in errors]
    return "\n".join(["apps/%s/BUILD.bazel and tools/architecture/policy.bzl disagree:" % app] + lines)

def dependents(app, allowed):
    """Returns the sorted names of the apps whose row names `app`."""
    return sorted([other for other, row in allowed.items() if app in row])

def _error(code, dep, message):
    return struct(code = code, dep = dep, message = message)
