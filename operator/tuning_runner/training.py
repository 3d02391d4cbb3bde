"""The training process: the child of `python -m tuning_runner`.

Reads run.json, chooses the engine, and runs one attempt. Exit codes: `tuning_contract.termination` (the verdict is in
result.json). Nothing here imports torch before the number of threads is set. Not here: the log and what is done when
this process is killed (`supervision`).
"""

import json
import os
import sys

from tuning_contract import environment
from tuning_contract.causes import Cause
from tuning_contract.directory import RunDirectory
from tuning_contract.run_document import RunDocument
from tuning_contract.termination import EXIT_FAILED, EXIT_STOPPED
from tuning_contract.version import VERSION, missing_features
from tuning_runner.attempt import Attempt, EngineFactory
from tuning_runner.console import say
from tuning_runner.engine import Engine, Inputs
from tuning_runner.episodes.errors import RunError
from tuning_runner.location import run_directory, run_document_text
from tuning_runner.resources import available_cpus
from tuning_runner.sources import uses_hub
from tuning_runner.stopping import Stop, StopError
from tuning_runner.supervision import die_with_parent


def main(engine_factory: EngineFactory | None = None) -> int:
    """The whole process.

    Args:
        engine_factory: another than `make_engine`.
    """
    die_with_parent()
    attempt = int(os.environ[environment.ATTEMPT])
    text = run_document_text(os.environ)
    directory = run_directory(os.environ, text)
    stop = Stop()
    try:
        stop.listen()
        run = parse(text)
        cpus = prepare_environment(uses_hub(run))
        say(f"run {run.run.namespace}/{run.run.name}, attempt {attempt}, contract {VERSION}, {cpus} CPUs")
        limit = os.environ.get(environment.FINAL_EVALUATION_SECONDS)
        final_seconds = float(limit) if limit else None
        return Attempt(run, attempt, directory, engine_factory or make_engine, stop, final_seconds).execute()
    except RunError as error:
        return _refuse(text, attempt, directory, error.message)
    except StopError:
        return EXIT_STOPPED  # in the last moment before or after the attempt itself: `supervision` writes the result


def parse(text: str) -> RunDocument:
    """run.json as values.

    Raises:
        RunError: ConfigInvalid, when this image is too old for it or it is no run.json.
    """
    try:
        requires = tuple(json.loads(text).get("requires", ()))
        if missing := missing_features(requires):
            features = ", ".join(f"`{name}`" for name in missing)
            message = f"the image has runner {VERSION}, which lacks {features}: use a newer runner image"
            raise RunError(Cause.CONFIG_INVALID, message)
        return RunDocument.from_text(text)
    except (ValueError, AttributeError) as error:
        message = f"the runner {VERSION} of this image cannot read run.json: {error}"
        raise RunError(Cause.CONFIG_INVALID, message) from error


def prepare_environment(hub: bool) -> int:
    """Set what libraries read when they are imported; returns the CPUs of this container.

    What the run itself has set in `workflow.env` stays.

    Args:
        hub: whether model or tasks come from the Hugging Face hub.
    """
    cpus = available_cpus()
    # Ray sets 1 in the process that starts this one, so a 1 says nothing of what the run wants.
    if os.environ.get("OMP_NUM_THREADS", "1") == "1":
        os.environ["OMP_NUM_THREADS"] = str(cpus)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if not hub:
        # Everything is in the image or on a volume: a look at the hub would only wait for a time-out.
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
    # A bar of progress is thousands of lines in a log; `hub` tells how far a download is.
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    os.environ["HF_DATASETS_DISABLE_PROGRESS_BARS"] = "1"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    # The files themselves are kept: their parts a second time would fill the claim by up to 10 GB.
    os.environ["HF_XET_CHUNK_CACHE_SIZE_BYTES"] = "0"
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    return cpus


def make_engine(inputs: Inputs) -> Engine:
    """The engine that run.json names."""
    if inputs.run.engine.type == "TRL":
        from tuning_runner.engines.trl.engine import TRLEngine

        return TRLEngine(inputs)
    message = f"this image has no engine {inputs.run.engine.type}: use the runner image of that engine"
    raise RunError(Cause.CONFIG_INVALID, message)


def _refuse(text: str, attempt: int, directory: RunDirectory, problem: str) -> int:
    from tuning_runner.checkpoints import newest_attempt
    from tuning_runner.outcome import write_refusal, written_result

    say(f"failed: {Cause.CONFIG_INVALID.value}: {problem}")
    result = written_result(directory)
    if (newest := newest_attempt(directory)) > attempt:
        say(f"no result is written: attempt {newest} has replaced this attempt ({attempt})")
    elif result is not None and result.complete:
        say("no result is written: the run has a complete one")
    else:
        write_refusal(directory, text, attempt, problem)
    return EXIT_FAILED


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads that still sample for episodes that nobody waits for would hold it up.
    os._exit(code)
