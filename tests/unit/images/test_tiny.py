"""The sample of the tests: its agent, and the model that it starts from."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.images.sources import IMAGES, load


async def test_the_agent_asks_the_question_and_returns_the_reply() -> None:
    asked: list[tuple[Any, dict[str, Any]]] = []

    async def model(messages: Any, **settings: Any) -> SimpleNamespace:
        asked.append((messages, settings))
        return SimpleNamespace(content=[{"type": "text", "text": "3"}])

    output = await load("examples/tiny/tiny_agent.py").run({"question": "What is 1 + 2?"}, model)
    assert output.response == "3"
    assert output.reward is None
    assert asked == [([{"role": "user", "content": "What is 1 + 2?"}], {"max_tokens": 4})]


@pytest.mark.parametrize(("response", "reward"), [("3", 1.0), (" 3 ", 1.0), ("33", 0.0), ("", 0.0)])
async def test_only_the_number_is_rewarded(response: str, reward: float) -> None:
    verdict = await load("examples/tiny/tiny_agent.py").judge({"answer": "3"}, response)
    assert verdict.reward == reward


@pytest.mark.model
def test_the_saved_model_answers_a_fifth_of_the_sums_right(tmp_path: Path) -> None:
    program = IMAGES / "examples/tiny/build_model.py"
    subprocess.run([sys.executable, program, "--out", tmp_path], check=True, capture_output=True)
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    torch.manual_seed(0)
    right = 0
    for a in range(5):
        for b in range(5):
            prompt = tokenizer.apply_chat_template(
                [{"role": "user", "content": f"What is {a} + {b}?"}],
                add_generation_prompt=True,
                return_tensors="pt",
                return_dict=True,
            )
            replies = model.generate(**prompt, max_new_tokens=4, do_sample=True, top_k=0, num_return_sequences=40)
            texts = tokenizer.batch_decode(replies[:, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
            right += sum(text.strip() == str(a + b) for text in texts)
    assert sum(p.numel() for p in model.parameters()) < 150_000
    # 1,000 samples at a probability of 0.2 to 0.25: three standard deviations are 0.04.
    assert 0.15 < right / 1000 < 0.30
