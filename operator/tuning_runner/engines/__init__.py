"""The engines of the runner, one package each; `tuning_runner.engine` says what they share."""
