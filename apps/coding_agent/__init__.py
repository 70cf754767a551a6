"""coding_agent: the agent that works on files; the gateway runs it through `executor.Executor`."""
