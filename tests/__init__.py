"""The tests; a package, so that `python -m tests.cluster` never finds another package of that name."""
