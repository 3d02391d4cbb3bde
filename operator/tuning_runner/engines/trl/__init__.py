"""The TRL engine: TRL's GRPO trainer on the CPU or on one GPU, in one process.

Only `tuning_runner.training` imports it. The modules here are the only ones of the runner that load torch.
"""
