"""The two ways in which the local cluster can fail. Raised everywhere in this package, printed by `cli`."""


class ClusterError(Exception):
    """Something that should work here did not; the message holds the tail of the log that tells why."""


class UnavailableError(ClusterError):
    """This machine cannot run what was asked (no root, not Linux, no apt); the message says what is missing."""
