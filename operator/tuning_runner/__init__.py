"""Agent tuning: runner."""
