"""Env and what one control step is made of: StepResult, LearnerEnv, Contract, graphs and timers.

May import: errors, files, runtime, config, envs, tasks.
Read `env.py` first.
"""
