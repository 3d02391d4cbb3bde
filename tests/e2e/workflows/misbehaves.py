"""A workflow whose episodes misbehave by task: blocking calls, an endless judge, a sudden exit.

Tasks with a = 0 block their process in urllib while they ask the model, those with a = 1 and b = 0 are judged for
ever, those with a = 1 and b = 1 leave by os._exit; all others are well-behaved.
"""

import json
import os
import urllib.request
from types import SimpleNamespace

from tiny_agent import judge as well_behaved_judge
from tiny_agent import run as well_behaved


def _ask(model, text):
    """Ask the model without asyncio, as a library that knows nothing of it would."""
    body = {"model": model.model_name, "messages": [{"role": "user", "content": text}]}
    request = urllib.request.Request(
        f"{str(model.base_url).rstrip('/')}/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "Authorization": f"Bearer {model.api_key}"},
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]


async def run(task, model):
    """Answer, or misbehave."""
    if (task["a"], task["b"]) == (1, 1):
        os._exit(3)
    if task["a"] == 0:
        return SimpleNamespace(reward=None, response=_ask(model, f"What is 0 + {task['b']}?"), metrics={})
    return await well_behaved(task, model)


async def judge(task, response):
    """Judge, or never come back."""
    while (task["a"], task["b"]) == (1, 0):
        pass
    return await well_behaved_judge(task, response)
