"""The tools: each file has what one or two tools do; `toolset` is what they are made from."""
