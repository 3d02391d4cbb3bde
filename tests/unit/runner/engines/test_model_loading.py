"""Models and templates that this image cannot load: what to change, not a traceback."""

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tuning_contract.causes import Cause
from tuning_contract.run_document import ModelSettings
from tuning_runner.engines.trl.model import load_model, load_tokenizer
from tuning_runner.episodes.errors import RunError

pytestmark = pytest.mark.model


def settings(folder: Path, template: Path | None = None) -> ModelSettings:
    path = None if template is None else str(template)
    return ModelSettings(str(folder), max_model_length=64, max_response_tokens=4, chat_template_path=path)


@pytest.mark.parametrize(
    "quantisation",
    [
        {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False},
        {"quant_method": "bitsandbytes", "load_in_4bit": True},
        {"quant_method": "torchao", "quant_type": {"default": {"_type": "Int4WeightOnlyConfig", "_data": {}}}},
    ],
    ids=lambda quantisation: str(quantisation["quant_method"]),
)
def test_a_model_that_needs_a_missing_package_is_a_wrong_configuration(
    tiny_model: Path, tmp_path: Path, quantisation: dict[str, object]
) -> None:
    model = shutil.copytree(tiny_model, tmp_path / "model")
    config = json.loads((model / "config.json").read_text()) | {"quantization_config": quantisation}
    (model / "config.json").write_text(json.dumps(config))
    tokenizer = load_tokenizer(settings(model))
    with pytest.raises(
        RunError, match=r"choose the unquantised model, or add the package to `workflow.image`"
    ) as caught:
        load_model(settings(model), tokenizer)
    assert caught.value.cause is Cause.CONFIG_INVALID
    assert "needs a package that the image lacks" in caught.value.message


def test_a_chat_template_that_is_no_utf_8_is_a_wrong_configuration(tiny_model: Path, tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_bytes("{{ 'Größe' }}".encode("latin-1"))
    with pytest.raises(RunError, match=r"template template\.jinja is no text in UTF-8 .*: save it as UTF-8") as caught:
        load_tokenizer(settings(tiny_model, template))
    assert caught.value.cause is Cause.CONFIG_INVALID


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
def test_a_broken_file_of_a_model_is_a_wrong_configuration(tiny_model: Path, tmp_path: Path, name: str) -> None:
    model = shutil.copytree(tiny_model, tmp_path / "model")
    (model / name).write_bytes(b'{"half": "\xff')
    with pytest.raises(RunError, match="cannot be loaded") as caught:
        load_model(settings(model), load_tokenizer(settings(model)))
    assert caught.value.cause is Cause.CONFIG_INVALID
