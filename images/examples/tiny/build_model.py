"""Makes a language model of 141,000 parameters that answers about one of five small sums right, and saves it.

`python build_model.py --out FOLDER` (about 10 s, one thread); run while the image is built, and by tests into any
folder, which is a plain Hugging Face one then: Qwen3 with a byte-level BPE tokenizer and a ChatML template.

Why about a fifth: reinforcement needs groups whose episodes differ. From random weights every reward is 0, and a
model that knows the answers always gets 1; in both cases there is nothing to learn and nothing a test could see. So
supervised steps on the right answers stop as soon as the mean probability of the right reply reaches 0.2.
The same seed gives the same weights on the same machine.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from typing import Any

LARGEST = 4
TARGET = 0.2
LEARNING_RATE = 3e-3
BATCH = 32
MAX_STEPS = 400
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# ChatML that only ever appends, so a conversation's tokens are a prefix of its continuation's.
CHAT_TEMPLATE = (
    "{%- for m in messages %}{{- '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)


def build_tokenizer() -> Any:
    """A byte-level BPE tokenizer of about 300 tokens, trained on the questions; every digit is a token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    corpus = [f"system user assistant\nWhat is {a} + {b}?\n{a + b}" for a in range(10) for b in range(10)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=384,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", padding_side="left"
    )
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


def build_model(tokenizer: Any, seed: int) -> Any:
    """A Qwen3 of 2 layers, width 64, 4 heads on 2 key-value heads, tied embeddings, with random weights."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            max_position_embeddings=2048,
            tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=None,
        )
    )
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model


def warm_up(model: Any, tokenizer: Any, seed: int) -> float:
    """Train on right answers until the mean probability of the right reply is `TARGET`; return that probability.

    Raises:
        RuntimeError: the target is not reached in `MAX_STEPS` steps.
    """
    import torch

    conversations, prompt_length = _conversations(tokenizer)
    rng = random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    model.train()
    for step in range(1, MAX_STEPS + 1):
        batch = conversations[[rng.randrange(len(conversations)) for _ in range(BATCH)]]
        loss = -_reply_log_probabilities(model, batch, prompt_length).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            replies = _reply_log_probabilities(model, conversations, prompt_length)
        probability = float(replies.sum(dim=1).exp().mean())
        if step % 10 == 0 or probability >= TARGET:
            print(f"step {step}: loss {loss.item():.3f}, P(right reply) {probability:.3f}", flush=True)
        if probability >= TARGET:
            return probability
    raise RuntimeError(f"P(right reply) is {probability:.3f} after {MAX_STEPS} steps, less than {TARGET}")


def _conversations(tokenizer: Any) -> tuple[Any, int]:
    """All 25 questions with their right reply, as token ids (25 x length), and the length of the part before the reply.

    Every number is one digit, so all have the same length and nothing is padded.
    """
    import torch

    prompts, whole = [], []
    for a in range(LARGEST + 1):
        for b in range(LARGEST + 1):
            question = [{"role": "user", "content": f"What is {a} + {b}?"}]
            prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, tokenize=False)
            prompts.append(tokenizer(prompt)["input_ids"])
            whole.append(tokenizer(f"{prompt}{a + b}<|im_end|>")["input_ids"])
    return torch.tensor(whole), len(prompts[0])


def _reply_log_probabilities(model: Any, conversations: Any, prompt_length: int) -> Any:
    """The log-probability of every token of the replies: conversations x (digit, end of message)."""
    logits = model(conversations).logits[:, prompt_length - 1 : -1]
    return logits.log_softmax(dim=-1).gather(2, conversations[:, prompt_length:, None]).squeeze(2)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0, help="of the random weights and of the order of the examples")
    arguments = parser.parse_args()

    import torch

    # With one thread the sums are made in one order, so the weights are the same each time.
    torch.set_num_threads(1)
    tokenizer = build_tokenizer()
    model = build_model(tokenizer, arguments.seed)
    warm_up(model, tokenizer, arguments.seed)
    model.save_pretrained(arguments.out)
    tokenizer.save_pretrained(arguments.out)
    for file in arguments.out.iterdir():
        file.chmod(0o644)  # the weights are written for their owner alone, and a pod is another user
    print(f"{sum(p.numel() for p in model.parameters())} parameters, {len(tokenizer)} tokens", flush=True)


if __name__ == "__main__":
    main()
