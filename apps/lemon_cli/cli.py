"""The words that this app adds to the command line."""

from lemon_core.commands import CommandSpec

COMMANDS = (
    CommandSpec(
        "setup",
        "Set Lemon up, step by step.",
        "lemon_cli.setup_command:app",
    ),
    CommandSpec(
        "model",
        "Connect a model provider.",
        "lemon_cli.model_command:app",
    ),
    CommandSpec(
        "run",
        "Send one prompt and stream the answer.",
        "lemon_cli.run_command:app",
        needs_runtime=True,
    ),
    CommandSpec(
        "chat",
        "Talk in the terminal.",
        "lemon_cli.chat_command:app",
        needs_runtime=True,
    ),
    CommandSpec(
        "sessions",
        "List, show, reset and set up conversations.",
        "lemon_cli.sessions_command:app",
    ),
    CommandSpec(
        "runs",
        "List, show, abort and steer runs.",
        "lemon_cli.runs_command:app",
    ),
    CommandSpec(
        "approvals",
        "List and answer what runs ask before they do it.",
        "lemon_cli.approvals_command:app",
    ),
    CommandSpec(
        "models",
        "List models, their prices and what they can do.",
        "lemon_cli.models_command:app",
    ),
    CommandSpec(
        "start",
        "Run the Lemon server in the foreground.",
        "lemon_cli.start_command:app",
        needs_runtime=True,
    ),
    CommandSpec(
        "daemon",
        "Run the Lemon server in the background.",
        "lemon_cli.daemon_command:app",
        needs_runtime=True,
    ),
    CommandSpec("stop", "End the Lemon server.", "lemon_cli.stop_command:stop_app"),
    CommandSpec(
        "restart",
        "End the Lemon server and start it in the background.",
        "lemon_cli.stop_command:restart_app",
        needs_runtime=True,
    ),
    CommandSpec(
        "status", "Say whether the Lemon server runs.", "lemon_cli.status_command:status_app"
    ),
    CommandSpec("version", "Say which Lemon this is.", "lemon_cli.status_command:version_app"),
    CommandSpec(
        "completion",
        "Print the completion script of a shell.",
        "lemon_cli.completion_command:app",
    ),
)
