"""A workflow that raises in every episode."""


async def run(task, model):
    """Raise."""
    raise RuntimeError(f"the tool shed is locked for {task['a']} and {task['b']}")


async def judge(task, response):
    """Never reached."""
    raise AssertionError("there is nothing to judge")
