"""What can go wrong in the operator, as one small tree.

::

    OperatorError
    |- SpecRejected       permanent  the object cannot be read as a TuningRun; shown as Accepted=False
    |- SettingsError      permanent  the operator's own configuration is wrong; it does not start
    `- ApiError                      an answer of the API server that is no success
       |- NotFound        a fact     404: the object, its namespace or its kind is not there
       |- AlreadyExists   a fact     409 on create: somebody made it before
       |- Conflict        temporary  409 on update or delete: we planned on an old version; plan again
       |- Gone            a fact     410: a watch or a page is too old; list again
       |- Invalid         permanent  400, 422: the server refuses what we built
       |- Deposed         a fact     this process is not, or no more, the one of several operators that acts
       |- Forbidden       temporary  403: a right is missing; shown as Degraded, tried again rarely
       `- ApiUnavailable  temporary  401, 429, 5xx, time-outs, broken connections, a namespace that goes; tried again
                                     with growing delay

Raised by `api` (SpecRejected), `settings` (SettingsError) and `cluster` (ApiError: `cluster.errors` maps HTTP status
to class, once); caught by `reconcile` and `__main__`. A run that fails is no error but a fact, judged by `engine`.
Anything that is not in this tree is a bug: it is logged, counted and tried again with growing delay.
"""


class OperatorError(Exception):
    """Root of the tree."""


class SpecRejected(OperatorError):  # noqa: N818 - these names are those of the API server's own reasons
    """The object cannot be read as a TuningRun; the text names field and reason."""


class SettingsError(OperatorError):
    """The operator's environment is incomplete or contradictory; the text names the variable."""


class ApiError(OperatorError):
    """The API server's answer was no success.

    Attributes:
        status: HTTP status, 0 when there was no answer at all.
        message: the server's own sentence, fit to be shown to a user.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.status = status


class NotFound(ApiError):  # noqa: N818
    """404: the object, its namespace or its kind is not there."""


class AlreadyExists(ApiError):  # noqa: N818
    """409 on create: an object of this name is there; whose it is, its labels tell."""


class Conflict(ApiError):  # noqa: N818
    """409 on update or delete: the object changed since it was read. Plan again, never repeat blindly."""


class Gone(ApiError):  # noqa: N818
    """410: the resource version of a watch or page is too old. List again."""


class Invalid(ApiError):  # noqa: N818
    """400 or 422: the server refuses the object that was built."""


class Deposed(ApiError):  # noqa: N818
    """Nothing was asked: this process is not the leader. Whoever led until now ends; nobody tries again."""


class Forbidden(ApiError):  # noqa: N818
    """403: a permission is missing.

    Attributes:
        verb: what was tried, in the words of RBAC: create, get, list, watch, patch, delete.
        resource: on what, as plural and group: `rayclusters.ray.io`.
    """

    def __init__(self, message: str, status: int = 403, *, verb: str = "", resource: str = "") -> None:
        super().__init__(message, status)
        self.verb = verb
        self.resource = resource


class ApiUnavailable(ApiError):  # noqa: N818
    """401, 429, 5xx, time-outs, broken connections, and 403 for a namespace that is being deleted: try again later.

    After a 401 the token is read anew.

    Attributes:
        retry_after: seconds that the server asked to wait; None when it did not say.
    """

    def __init__(self, message: str, status: int = 0, *, retry_after: float | None = None) -> None:
        super().__init__(message, status)
        self.retry_after = retry_after
