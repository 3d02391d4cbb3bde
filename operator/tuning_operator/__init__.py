"""Agent tuning: operator."""
