"""The RayClusters of samples with GPUs or worker pods, and one that sets everything, are those in `golden`."""

import pytest
import yaml

from tests.unit.desired import goldens


@pytest.mark.parametrize("name", goldens.NAMES)
def test_the_cluster_is_the_one_that_is_written_out(name: str) -> None:
    written = yaml.safe_load(goldens.path(name).read_text())
    assert goldens.built(name) == written, "is it meant? then run: python -m tests.unit.desired.goldens"


def test_there_is_no_other_file() -> None:
    assert {path.stem for path in goldens.FOLDER.iterdir()} == set(goldens.NAMES)


def test_every_sample_with_a_gpu_or_workers_is_among_them() -> None:
    samples = {path.name.split(".")[1] for path in (goldens.ROOT / "crds" / "samples").glob("*.yaml")}
    clusters = {name: goldens.the_run(name).spec.cluster for name in samples}
    assert {name for name, cluster in clusters.items() if cluster.head.gpus or cluster.workers} == set(goldens.SAMPLES)
