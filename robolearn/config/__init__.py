"""How a run is stated and resolved: `key=value` overrides, schema, fields, the registry of names and its tables.

May import: errors, files. Imports neither torch nor a simulator. Read `run_config.py` first, then `registry.py`.
"""

from robolearn.config.run_config import (
    FILE_NAME,
    OWN,
    Config,
    changed,
    load,
    resolve,
    resume_changes,
    save,
    show,
    to_dict,
    validate,
)

__all__ = [
    "FILE_NAME",
    "OWN",
    "Config",
    "changed",
    "load",
    "resolve",
    "resume_changes",
    "save",
    "show",
    "to_dict",
    "validate",
]
