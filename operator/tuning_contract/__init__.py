"""What the operator, the driver, the runner and the sidecar agree on.

Everybody imports this package and nobody copies from it. It needs only the standard library, so that
every image can carry it, and it does no I/O beyond the files whose format it defines.
"""
