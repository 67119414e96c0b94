"""Checks workflow files, and the rules they are checked by, against what the engines publish.

    git clone --depth 1 https://github.com/ray-project/kuberay && git clone --depth 1 https://github.com/NVIDIA/OSMO
    robolearn workflow --engine kuberay --output work --image reg/robolearn:1 --store claim task=humanoid_walk
    python scripts/check_workflow.py --crd kuberay/ray-operator/config/crd/bases/ray.io_rayjobs.yaml work/*.yaml
    python scripts/check_workflow.py --cookbook OSMO/cookbook

The first check validates RayJobs against the whole schema of the custom resource, with unknown fields refused, which
Kubernetes would drop silently. The second one puts the default values into every file of OSMO's cookbook and checks it
with RoboLearn's rules, which must take all of them. Exit code 1 where something is refused.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

import jsonschema
import yaml
from jinja2 import meta
from jinja2.sandbox import SandboxedEnvironment

from robolearn.commands.strict import checked
from robolearn.commands.workflow.osmo_rules import Document
from robolearn.errors import ConfigError

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
TOKEN = re.compile(r"\{\{\s*((?:input|host):[^}\s]+|output|workflow_id)\s*\}\}")


def closed(schema: Any) -> Any:
    """The schema with unknown fields refused, as the API server does with strict field validation."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    out = {key: closed(value) for key, value in schema.items() if key not in ("format", "description")}
    known = isinstance(schema.get("properties"), dict) and schema.get("type") == "object"
    if known and "additionalProperties" not in schema:
        open_ = schema.get("x-kubernetes-preserve-unknown-fields")
        out["additionalProperties"] = bool(open_)
    return out


def schema_of(crd: Path) -> dict[str, Any]:
    """The schema of version v1 of a custom resource; metadata are those of every resource."""
    content = yaml.load(crd.read_text(), Loader=LOADER)
    (version,) = [v for v in content["spec"]["versions"] if v["name"] == "v1"]
    schema: dict[str, Any] = closed(version["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object", "required": ["name"]}
    return schema


def check_manifest(path: Path, schema: dict[str, Any]) -> str | None:
    """The first fault of a RayJob; None where it is valid."""
    content = yaml.load(path.read_text(), Loader=LOADER)
    error = jsonschema.exceptions.best_match(jsonschema.Draft202012Validator(schema).iter_errors(content))
    return None if error is None else f"{error.json_path}: {error.message[:200]}"


def rendered(text: str) -> Any:
    """A workflow of OSMO with its default values; tokens stay."""
    kept = TOKEN.sub(lambda m: "@@" + m[1].replace("{", "").replace("}", "") + "@@", text)
    parts = re.split(r"^default-values:", kept, flags=re.MULTILINE)
    values: dict[str, Any] = {}
    if len(parts) > 1:
        values = yaml.load("default-values:" + parts[1], Loader=LOADER)["default-values"] or {}
    environment = SandboxedEnvironment()
    unset = meta.find_undeclared_variables(environment.parse(parts[0])) - set(values)
    values |= dict.fromkeys(unset, "s3://bucket/path")  # given when it is submitted
    whole = environment.from_string(parts[0]).render(values)
    return yaml.load(re.sub(r"@@(.*?)@@", r"{{\1}}", whole), Loader=LOADER)


def check_cookbook(path: Path) -> str | None:
    """The first fault that RoboLearn's rules find in a file of the cookbook; None where they take it."""
    content = rendered(path.read_text())
    if not isinstance(content, dict) or "workflow" not in content:
        return None
    for task in _tasks(content["workflow"]):
        for file in task.get("files", []):
            if "localpath" in file:  # the client puts the content in its place
                file.pop("localpath")
                file["contents"] = ""
    try:
        checked(Document, content)
    except ConfigError as error:
        return str(error)
    return None


def _tasks(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    tasks = list(workflow.get("tasks", []))
    for group in workflow.get("groups", []):
        tasks += group.get("tasks", [])
    return tasks


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--crd", type=Path, help="ray.io_rayjobs.yaml of KubeRay")
    parser.add_argument("--cookbook", type=Path, help="folder of OSMO's cookbook")
    given = parser.parse_args(words)
    faults = 0
    found: list[tuple[Path, str | None]] = []
    if given.crd is not None:
        schema = schema_of(given.crd)
        jobs = [path for path in given.files if "kind: RayJob" in path.read_text()]
        found += [(path, check_manifest(path, schema)) for path in jobs]
    if given.cookbook is not None:
        found += [(path, check_cookbook(path)) for path in sorted(given.cookbook.rglob("*.yaml"))]
    for path, fault in found:
        faults += fault is not None
        print(f"{'FAULT' if fault else 'ok   '}  {path}{': ' + fault if fault else ''}")
    print(f"{len(found)} files, {faults} with a fault")
    return 1 if faults or not found else 0


if __name__ == "__main__":
    sys.exit(main())
