"""What should exist for a run: pure functions from (run, settings, attempt) to manifests.

Called by `engine` for what `cluster` then creates. Children are created once and never applied again, so every
builder gives the whole object.
"""
