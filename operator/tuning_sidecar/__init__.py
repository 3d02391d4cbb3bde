"""The sidecar: turns what the runner writes to the volume into metrics, progress, log and result."""
