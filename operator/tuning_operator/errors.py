"""What can go wrong in the operator, as one small tree.

::

    OperatorError
    |- SpecRejectedError   permanent: the object cannot be read as a TuningRun; shown as Accepted=False
    `- SettingsError       permanent: the operator's own configuration is wrong; it does not start
    ApiError               an answer of the API server that is no success; its tree is drawn in `cluster.errors`

Raised by `api` (SpecRejectedError), `settings` (SettingsError) and `cluster` (ApiError); caught by `reconcile` and
`__main__`. A run that fails is no error but a fact, judged by `engine`. Anything that is not in this tree is a bug:
it is logged, counted and tried again with growing delay.
"""


class OperatorError(Exception):
    """Root of what this package raises by itself."""


class SpecRejectedError(OperatorError):
    """The object cannot be read as a TuningRun; the text names field and reason."""


class SettingsError(OperatorError):
    """The operator's environment is incomplete or contradictory; the text names the variable."""
