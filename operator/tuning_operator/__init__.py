"""The controller: turns TuningRuns into RayClusters and Jobs, and tells the truth about them.

Layers, each importing only those to its right: `__main__`, handlers -> reconcile -> cluster (I/O) -> engine ->
desired -> api. The last three are pure: no I/O, no clock, no randomness.
"""
