"""The layout that the build relies on."""

from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_folder_operator_is_no_package_and_holds_no_module_so_that_it_cannot_shadow_the_standard_library() -> None:
    assert (ROOT / "operator").is_dir()
    assert not (ROOT / "operator" / "__init__.py").exists()
    assert list((ROOT / "operator").glob("*.py")) == []
