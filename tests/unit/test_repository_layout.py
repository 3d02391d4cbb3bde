"""The layout that the build relies on, and the sizes that keep the code readable."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
MODULE_LINES = 400
FUNCTION_LINES = 60
USUAL_FUNCTION_LINES = 40


def modules() -> list[Path]:
    """Every Python module of the product and of its tests."""
    return [path for folder in ("operator", "tests", "images") for path in sorted((ROOT / folder).rglob("*.py"))]


def function_lengths(path: Path) -> Iterator[tuple[int, str]]:
    """Lines and name of every function of a module."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (node.end_lineno or node.lineno) - node.lineno + 1, f"{path.relative_to(ROOT)}:{node.name}"


def test_the_folder_operator_is_no_package_and_holds_no_module_so_that_it_cannot_shadow_the_standard_library() -> None:
    assert (ROOT / "operator").is_dir()
    assert not (ROOT / "operator" / "__init__.py").exists()
    assert list((ROOT / "operator").glob("*.py")) == []


def test_no_module_is_longer_than_a_reader_can_hold() -> None:
    assert [str(path) for path in modules() if len(path.read_text().splitlines()) > MODULE_LINES] == []


def test_no_function_is_longer_than_a_screen_and_nine_in_ten_are_well_below() -> None:
    lengths = sorted(length for path in modules() for length in function_lengths(path))
    assert lengths[-1][0] <= FUNCTION_LINES, lengths[-3:]
    assert lengths[len(lengths) * 9 // 10][0] <= USUAL_FUNCTION_LINES


def test_every_module_says_what_it_is() -> None:
    assert [str(path) for path in modules() if not ast.get_docstring(ast.parse(path.read_text()))] == []
