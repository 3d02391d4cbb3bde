"""Agent tuning: driver."""
