"""Decisions, and nothing else: what is observed goes in as a `World`, what to do comes out as a `Plan`.

No clock, network, environment or chance in here: `World.now` is the only time.
"""
