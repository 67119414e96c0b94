"""Configuration of a training run: `key=value` overrides, schema, fields, and the registry of names with its tables.

May import: errors, files. Imports neither torch nor a simulator. Read `run_config.py` first, then `registry.py`.
"""

from robolearn.config.run_config import (
    EXTERNAL,
    FILE_NAME,
    Config,
    changed,
    load,
    named_files,
    resolve,
    resume_changes,
    save,
    show,
    to_dict,
    validate,
)

__all__ = [
    "EXTERNAL",
    "FILE_NAME",
    "Config",
    "changed",
    "load",
    "named_files",
    "resolve",
    "resume_changes",
    "save",
    "show",
    "to_dict",
    "validate",
]
