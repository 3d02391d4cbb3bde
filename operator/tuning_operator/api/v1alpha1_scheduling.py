"""On which nodes a pod may run: tolerations and affinity as Kubernetes has them, typed and bounded.

Used by `v1alpha1_cluster`. The names and meanings are those of a pod; `desired` copies them into the pods as they are.
"""

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from tuning_operator.api.model import ApiModel, DnsLabel, LabelKey, LabelValue, Rule, rule, valid_keys

Weight = Annotated[int, Field(ge=1, le=100, examples=[50])]
Labels = Annotated[dict[LabelKey, LabelValue], Field(max_length=16, examples=[{"app": "tool-server"}])]


class TolerationOperator(StrEnum):
    """How a toleration matches a taint."""

    EQUAL = "Equal"
    EXISTS = "Exists"


class TaintEffect(StrEnum):
    """What a taint does to pods that do not tolerate it."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


class SelectorOperator(StrEnum):
    """How a label of a node is compared."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"
    GREATER = "Gt"
    LESS = "Lt"


class LabelOperator(StrEnum):
    """How a label of a pod is compared."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


_VALUES_OF_SETS = (
    rule(
        "!(self.operator in ['In', 'NotIn']) || (has(self.values) && self.values.size() > 0)",
        "`values` must be set with `operator` In or NotIn: list the values to compare with",
        "values",
    ),
    rule(
        "!(self.operator in ['Exists', 'DoesNotExist']) || !has(self.values) || self.values.size() == 0",
        "`values` must not be set with `operator` Exists or DoesNotExist, which do not look at them: leave them out",
        "values",
    ),
)


class Toleration(ApiModel):
    """A taint that the pod does not mind."""

    validations: ClassVar[tuple[Rule, ...]] = (
        rule(
            "has(self.key) || self.operator == 'Exists'",
            "`key` must be set with `operator` Equal: name the taint, or use Exists to tolerate every taint",
            "key",
        ),
        rule(
            "!has(self.value) || self.operator == 'Equal'",
            "`value` must not be set with `operator` Exists, which does not look at it: leave it out, or use Equal",
            "value",
        ),
        rule(
            "!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
            "`tolerationSeconds` needs `effect` NoExecute, the only one that ends running pods: set it, or leave the "
            "seconds out",
            "tolerationSeconds",
        ),
    )

    key: Annotated[LabelKey, Field(examples=["nvidia.com/gpu"])] | None = None
    """Key of the taint. Without it, and with operator Exists: every taint."""
    operator: Annotated[TolerationOperator, Field(examples=["Exists"])] = TolerationOperator.EQUAL
    """Equal compares the value of the taint, Exists does not look at it."""
    value: Annotated[LabelValue, Field(examples=["present"])] | None = None
    """Value of the taint, compared with operator Equal."""
    effect: Annotated[TaintEffect, Field(examples=["NoSchedule"])] | None = None
    """Effect of the taint. Without it: every effect."""
    toleration_seconds: Annotated[int, Field(ge=0, le=31_536_000, examples=[300])] | None = None
    """Seconds for which a taint with effect NoExecute is tolerated. Without it: for ever."""


class NodeRequirement(ApiModel):
    """A condition on one label or field of a node."""

    validations: ClassVar[tuple[Rule, ...]] = (
        *_VALUES_OF_SETS,
        rule(
            "!(self.operator in ['Gt', 'Lt']) || "
            "(has(self.values) && self.values.size() == 1 && self.values[0].matches('^[0-9]+$'))",
            "`values` must be one whole number with `operator` Gt or Lt: write it in quotes",
            "values",
        ),
    )

    key: Annotated[LabelKey, Field(examples=["nvidia.com/gpu.product"])]
    """Key of the node's label, or metadata.name in matchFields."""
    operator: Annotated[SelectorOperator, Field(examples=["In"])]
    """How the label is compared with the values."""
    values: Annotated[tuple[LabelValue, ...], Field(max_length=64, examples=[["NVIDIA-H100-80GB-HBM3"]])] = ()
    """Values to compare with; none for Exists and DoesNotExist, one whole number for Gt and Lt."""


class NodeTerm(ApiModel):
    """Conditions on a node that must hold together."""

    validations: ClassVar[tuple[Rule, ...]] = (
        rule(
            "(has(self.matchExpressions) && self.matchExpressions.size() > 0) || "
            "(has(self.matchFields) && self.matchFields.size() > 0)",
            "set `matchExpressions`, `matchFields` or both: without a condition no node matches",
        ),
        rule(
            "!has(self.matchFields) || self.matchFields.all(field, field.key == 'metadata.name' && "
            "field.operator in ['In', 'NotIn'] && has(field.values) && field.values.size() == 1)",
            "`matchFields` must have `key` metadata.name, `operator` In or NotIn, and one of `values`: Kubernetes "
            "knows no more; use `matchExpressions` for labels",
            "matchFields",
        ),
    )

    match_expressions: Annotated[tuple[NodeRequirement, ...], Field(max_length=16)] = ()
    """Conditions on the labels of the node."""
    match_fields: Annotated[tuple[NodeRequirement, ...], Field(max_length=4)] = ()
    """Conditions on the fields of the node; Kubernetes knows metadata.name only."""


class NodeTerms(ApiModel):
    """Alternatives of conditions on a node."""

    node_selector_terms: Annotated[tuple[NodeTerm, ...], Field(min_length=1, max_length=8)]
    """Terms of which at least one must hold."""


class PreferredNode(ApiModel):
    """Conditions on a node that are wished for."""

    weight: Weight
    """Weight of the wish among the others, from 1 to 100."""
    preference: NodeTerm
    """Conditions that the node should meet."""


class NodeAffinity(ApiModel):
    """Conditions on the node of a pod."""

    required_during_scheduling_ignored_during_execution: NodeTerms | None = None
    """Conditions on the node that must hold, or the pod is not scheduled."""
    preferred_during_scheduling_ignored_during_execution: Annotated[tuple[PreferredNode, ...], Field(max_length=8)] = ()
    """Conditions that the scheduler tries to meet."""


class LabelRequirement(ApiModel):
    """A condition on one label of a pod."""

    validations: ClassVar[tuple[Rule, ...]] = _VALUES_OF_SETS

    key: Annotated[LabelKey, Field(examples=["app"])]
    """Key of the pod's label."""
    operator: Annotated[LabelOperator, Field(examples=["In"])]
    """How the label is compared with the values."""
    values: Annotated[tuple[LabelValue, ...], Field(max_length=64, examples=[["tool-server"]])] = ()
    """Values to compare with; none for Exists and DoesNotExist."""


class LabelSelector(ApiModel):
    """Pods by their labels; all conditions must hold."""

    validations: ClassVar[tuple[Rule, ...]] = (valid_keys("matchLabels"),)

    match_labels: Labels = Field(default_factory=dict)
    """Labels that the pods must have, with their values."""
    match_expressions: Annotated[tuple[LabelRequirement, ...], Field(max_length=16)] = ()
    """Further conditions on the labels of the pods."""


class PodTerm(ApiModel):
    """Pods, and the part of the cluster that is shared with them or kept free of them."""

    label_selector: LabelSelector | None = None
    """Pods that are meant, by their labels. Without it: none."""
    topology_key: Annotated[LabelKey, Field(examples=["kubernetes.io/hostname"])]
    """Label of nodes whose equal values make one place, such as a host or a zone."""
    namespaces: Annotated[tuple[DnsLabel, ...], Field(max_length=16, examples=[["tools"]])] = ()
    """Namespaces of the pods. Without it: the run's namespace."""


class PreferredPods(ApiModel):
    """A wish about the neighbourhood of other pods."""

    weight: Weight
    """Weight of the wish among the others, from 1 to 100."""
    pod_affinity_term: PodTerm
    """Pods that are meant, and the place."""


class PodAffinity(ApiModel):
    """Conditions on the neighbourhood of a pod."""

    required_during_scheduling_ignored_during_execution: Annotated[tuple[PodTerm, ...], Field(max_length=8)] = ()
    """Conditions without which the pod is not scheduled."""
    preferred_during_scheduling_ignored_during_execution: Annotated[tuple[PreferredPods, ...], Field(max_length=8)] = ()
    """Conditions that the scheduler tries to meet."""


class Affinity(ApiModel):
    """Where a pod may or should run, as in the affinity of a pod."""

    node_affinity: NodeAffinity | None = None
    """Conditions on the node that the pod runs on."""
    pod_affinity: PodAffinity | None = None
    """Pods near which the pod must or should run."""
    pod_anti_affinity: PodAffinity | None = None
    """Pods away from which the pod must or should run."""
