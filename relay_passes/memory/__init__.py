"""Storage: in-place results, workspaces, streamed weights, the memory plan."""
