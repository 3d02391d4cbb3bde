"""A workflow that asks the model with clients of its own, made as their documentation shows. Runs in workers only."""

import asyncio
from typing import Any

import httpx
import openai
import requests

from tuning_runner.episodes import WorkflowOutput

CLIENT = httpx.AsyncClient()
"""Made on import: it has read the variables for proxies by then."""


async def asks_with_each_client(task: dict[str, Any], model: Any) -> WorkflowOutput:
    """The replies of our own model, of OpenAI's client, of httpx and of requests."""
    messages = [{"role": "user", "content": task["question"]}]
    replies = [(await model(messages)).text]
    client = openai.AsyncOpenAI(base_url=model.base_url, api_key=model.api_key, max_retries=0)
    answer = await client.chat.completions.create(model=model.model_name, messages=messages)
    replies.append(answer.choices[0].message.content)
    request: dict[str, Any] = {
        "url": f"{model.base_url}/chat/completions",
        "json": {"model": model.model_name, "messages": messages},
        "headers": {"Authorization": f"Bearer {model.api_key}"},
    }
    found = [await CLIENT.post(**request), await asyncio.to_thread(requests.post, timeout=5, **request)]
    replies += [response.json()["choices"][0]["message"]["content"] for response in found]
    return WorkflowOutput(reward=1.0, response=replies)
