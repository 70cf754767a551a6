"""Every message that Lemon accepts ends as something, exactly once.

The README names the modules that other apps may import; nothing is imported here, because the
command line needs only `lemon_router.cli`.
"""
