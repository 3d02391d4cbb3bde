"""Loading the base model and its tokenizer, and writing the tuned model as a plain Hugging Face folder.

Called by `engine`. Nothing here reaches a network: `sources` has brought all files.
"""

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from tuning_contract.causes import Cause
from tuning_contract.run_document import LoraSettings, ModelSettings
from tuning_runner.episodes.errors import RunError
from tuning_runner.permissions import not_readable, require_readable


@dataclass(frozen=True)
class LoadedModel:
    """The base model in memory."""

    model: Any
    """A causal language model in float32, on the GPU if there is one, in evaluation mode."""
    tokenizer: Any
    end_tokens: frozenset[int]
    """Ids that end a reply, by the model's generation settings and the tokenizer."""

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return sum(parameter.numel() for parameter in self.model.parameters())


def load_tokenizer(settings: ModelSettings) -> Any:
    """The tokenizer with the run's chat template.

    Raises:
        RunError: ConfigInvalid, naming the folder and what is wrong with it.
    """
    folder = Path(settings.path)
    transformers_logging.disable_progress_bar()
    try:
        _require_model_folder(folder)
    except PermissionError as error:
        raise RunError(Cause.CONFIG_INVALID, f"model folder {folder}: {not_readable(error, folder)}") from error
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), padding_side="left", local_files_only=True)
    except (OSError, ValueError) as error:
        raise RunError(Cause.CONFIG_INVALID, f"the tokenizer in {folder} cannot be loaded: {error}") from error
    except ImportError as error:
        message = f"the tokenizer in {folder} needs a package that the image lacks: add it to `workflow.image`: {error}"
        raise RunError(Cause.CONFIG_INVALID, message) from error
    if settings.chat_template_path is not None:
        tokenizer.chat_template = _chat_template(Path(settings.chat_template_path))
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


_MODEL_FILES = ("*.json", "*.safetensors", "pytorch_model*.bin", "*.model", "*.txt", "*.jinja")
"""What the libraries open of a model's folder: what else lies there may belong to anybody."""


def _require_model_folder(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        found = (
            ", ".join(sorted(entry.name for entry in folder.iterdir())[:10]) if folder.is_dir() else "no such folder"
        )
        raise RunError(Cause.CONFIG_INVALID, f"model folder {folder} has no config.json ({found})")
    require_readable(folder, _MODEL_FILES)


def _chat_template(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise RunError(Cause.CONFIG_INVALID, f"the chat template cannot be read: {error}") from error
    except UnicodeDecodeError as error:
        message = f"the chat template {file.name} is no text in UTF-8 ({error}): save it as UTF-8"
        raise RunError(Cause.CONFIG_INVALID, message) from error


def load_model(settings: ModelSettings, tokenizer: Any) -> LoadedModel:
    """The base model.

    Raises:
        RunError: ConfigInvalid when the folder holds no causal language model.
    """
    try:
        model = AutoModelForCausalLM.from_pretrained(settings.path, dtype=torch.float32, local_files_only=True)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise RunError(Cause.CONFIG_INVALID, f"the model in {settings.path} cannot be loaded: {error}") from error
    except ImportError as error:
        message = f"the model in {settings.path} needs a package that the image lacks: choose the unquantised model"
        message = f"{message}, or add the package to `workflow.image`: {error}"
        raise RunError(Cause.CONFIG_INVALID, message) from error
    length = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if length is not None and settings.max_model_length > length:
        message = f"`model.maxModelLength` {settings.max_model_length} is more than the model's {length} positions"
        raise RunError(Cause.CONFIG_INVALID, message)
    ends = model.generation_config.eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    return LoadedModel(
        model=model.eval().to("cuda" if torch.cuda.is_available() else "cpu"),
        tokenizer=tokenizer,
        end_tokens=frozenset(int(end) for end in [*ends, tokenizer.eos_token_id] if end is not None),
    )


def precision() -> contextlib.AbstractContextManager[None]:
    """The precision of forward passes: float32 on the CPU, bfloat16 on a GPU that has it."""
    if torch.cuda.is_available() and torch.cuda.is_bf16_supported():
        half: contextlib.AbstractContextManager[None] = torch.autocast("cuda", dtype=torch.bfloat16)
        return half
    return contextlib.nullcontext()


def checkpoint_bytes(loaded: LoadedModel, lora: LoraSettings | None, keep_last: int) -> int:
    """Room that all checkpoints of a run and its final model need: float32 weights and Adam's two moments."""
    if lora is None:
        trained = loaded.parameters
    else:
        layers = [module for module in loaded.model.modules() if isinstance(module, torch.nn.Linear)]
        trained = sum(lora.rank * (layer.in_features + layer.out_features) for layer in layers)
    # While one is being written, `keep_last` complete ones are still there.
    return 12 * trained * (keep_last + 1) + 4 * loaded.parameters


def write_model(model: Any, loaded: LoadedModel, folder: Path) -> None:
    """The whole model with tokenizer and chat template, as `from_pretrained` reads it.

    In float32, whatever the base model was stored in: a rounded model is not the one whose figures the result shows,
    and a small learning rate changes less than the rounding. Whoever serves it may choose another type.
    """
    model.save_pretrained(str(folder))
    loaded.tokenizer.save_pretrained(str(folder))


def model_problem(folder: Path) -> str:
    """Why `folder` is no whole model; empty when it is. Tensors are listed, not read."""
    for name in ("config.json", "tokenizer_config.json"):
        if not (folder / name).is_file():
            return f"{folder.name}/{name} is missing"
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        return f"{folder.name} has no weights"
    for file in weights:
        try:
            with safe_open(str(file), framework="pt") as tensors:
                if not list(tensors.keys()):
                    return f"{folder.name}/{file.name} is empty"
        except (OSError, SafetensorError) as error:
            return f"{folder.name}/{file.name} cannot be read: {error}"
    return ""
