"""TuningRun, version v1alpha1: the object as the operator reads it.

Made by the informers with `from_object`, passed as a frozen value to `desired` and `engine`. The fields are in
`v1alpha1_spec` and `v1alpha1_status`.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import ValidationError

from tuning_operator.api.model import ApiModel, Rule, rule
from tuning_operator.api.v1alpha1_spec import TuningRunSpec
from tuning_operator.api.v1alpha1_status import TuningRunStatus
from tuning_operator.errors import SpecRejected

NAME_LIMIT = 39
"""Characters of a run's name: the names of its pods and Services are made from it."""


class ObjectMeta(ApiModel):
    """What the operator needs of the metadata."""

    name: str
    namespace: str
    uid: str
    generation: int = 1
    resource_version: str = ""
    creation_timestamp: str = ""
    deletion_timestamp: str | None = None


class TuningRun(ApiModel):
    """One training of an agent's model."""

    validations: ClassVar[tuple[Rule, ...]] = (
        rule(
            f"size(self.metadata.name) <= {NAME_LIMIT} && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
            f"`metadata.name` must be at most {NAME_LIMIT} lower-case letters, digits and hyphens, begin with a letter "
            "and end with a letter or digit: choose a shorter or simpler name",
        ),
        rule(
            "!has(self.spec.model.run) || self.spec.model.run.name != self.metadata.name",
            "`spec.model.run.name` must be another run: this one has no model before it is trained",
        ),
    )

    metadata: ObjectMeta
    spec: TuningRunSpec
    """What to train, on what and where."""
    status: TuningRunStatus = TuningRunStatus()
    """What became of it."""

    @classmethod
    def from_object(cls, document: Mapping[str, Any]) -> "TuningRun":
        """Read the object as the API server gives it; fields that this version does not know are ignored.

        Raises:
            SpecRejected: a field is missing or has another type; the text names it.
        """
        try:
            return cls.model_validate(document)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            raise SpecRejected(f"{place}: {first['msg']}") from error

    @property
    def name(self) -> str:
        """metadata.name."""
        return self.metadata.name

    @property
    def namespace(self) -> str:
        """metadata.namespace."""
        return self.metadata.namespace

    @property
    def uid(self) -> str:
        """metadata.uid."""
        return self.metadata.uid

    @property
    def deleted(self) -> bool:
        """Whether deletion was asked for."""
        return self.metadata.deletion_timestamp is not None
