"""Agent tuning: sidecar."""
