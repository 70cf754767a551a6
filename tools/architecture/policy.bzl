"""The direct dependency graph of the apps.

Plain dict literals: Starlark loads them, and the checks in lemon_core.quality parse this very text.
An app's `deps` and `test_deps` together must equal its row of ALLOWED, in both directions.
"""

# What is permitted now. It grows with the apps until it equals FINAL.
ALLOWED = {
    "coding_agent": ["lemon_agent", "lemon_ai", "lemon_core", "lemon_gateway"],
    "lemon_agent": ["lemon_ai", "lemon_core"],
    "lemon_ai": [],
    "lemon_cli": ["lemon_agent", "lemon_ai", "lemon_core"],
    "lemon_core": [],
    "lemon_gateway": ["lemon_agent", "lemon_core"],
    "lemon_router": ["lemon_ai", "lemon_core"],
}

# What the sources of an app may name without a build edge, now. It never permits an edge.
REFERENCE_ONLY = {
    "lemon_gateway": ["lemon_ai"],
}

# The graph of the finished system. ALLOWED may hold nothing that is not here.
FINAL = {
    "coding_agent": [
        "lemon_agent",
        "lemon_ai",
        "lemon_browser",
        "lemon_core",
        "lemon_gateway",
        "lemon_lsp",
        "lemon_mcp",
        "lemon_memory",
        "lemon_platform_test",
        "lemon_skills",
    ],
    "lemon_agent": ["lemon_ai", "lemon_core"],
    "lemon_ai": [],
    "lemon_automation": ["lemon_agent", "lemon_ai", "lemon_core", "lemon_router", "lemon_skills"],
    "lemon_browser": ["lemon_core"],
    "lemon_channels": ["lemon_agent", "lemon_core", "lemon_media"],
    "lemon_cli": ["lemon_agent", "lemon_ai", "lemon_core", "lemon_memory", "lemon_skills"],
    "lemon_computer_use": ["lemon_agent", "lemon_ai", "lemon_core"],
    "lemon_control_plane": [
        "lemon_agent",
        "lemon_ai",
        "lemon_automation",
        "lemon_browser",
        "lemon_channels",
        "lemon_core",
        "lemon_lsp",
        "lemon_media",
        "lemon_memory",
        "lemon_omp",
        "lemon_router",
        "lemon_skills",
    ],
    "lemon_core": [],
    "lemon_evals": [
        "coding_agent",
        "lemon_agent",
        "lemon_ai",
        "lemon_core",
        "lemon_memory",
        "lemon_skills",
    ],
    "lemon_gateway": ["lemon_agent", "lemon_core"],
    "lemon_honcho": [
        "lemon_agent",
        "lemon_ai",
        "lemon_core",
        "lemon_memory",
        "lemon_platform_test",
    ],
    "lemon_lsp": ["lemon_core"],
    "lemon_mcp": ["lemon_core", "lemon_skills"],
    "lemon_media": ["lemon_core"],
    "lemon_memory": ["lemon_core"],
    "lemon_omp": ["lemon_agent", "lemon_ai", "lemon_core"],
    "lemon_platform_test": [
        "lemon_agent",
        "lemon_ai",
        "lemon_channels",
        "lemon_core",
        "lemon_memory",
    ],
    "lemon_router": [
        "lemon_agent",
        "lemon_ai",
        "lemon_channels",
        "lemon_core",
        "lemon_mcp",
        "lemon_media",
        "lemon_memory",
    ],
    "lemon_sim": ["lemon_agent", "lemon_ai", "lemon_core"],
    "lemon_sim_ui": ["lemon_ai", "lemon_core", "lemon_sim"],
    "lemon_skills": ["lemon_agent", "lemon_ai", "lemon_core", "lemon_media", "lemon_memory"],
    "lemon_web": [
        "lemon_agent",
        "lemon_automation",
        "lemon_control_plane",
        "lemon_core",
        "lemon_memory",
        "lemon_router",
    ],
}

# The exceptions of the finished system.
FINAL_REFERENCE_ONLY = {
    "lemon_cli": ["lemon_channels", "lemon_media"],
    "lemon_gateway": ["lemon_ai"],
}
