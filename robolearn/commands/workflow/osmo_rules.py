"""What an OSMO workflow may hold: its published fields, and the rules between them.

After NVIDIA OSMO's own models, which forbid unknown fields (github.com/NVIDIA/OSMO, August 2026, in src:
utils/job/workflow.py, task.py and common.py, utils/connectors/postgres.py, lib/api/storage.py). `dataset`, gone in 6.4,
and `labels`, not in 6.3, are left out: a file that passes here is valid in both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import pydantic

from robolearn.commands.strict import Strict, checked
from robolearn.config import yaml_file
from robolearn.errors import ConfigError, quote

_NAME = r"[a-zA-Z]([a-zA-Z0-9_-]*[a-zA-Z0-9])?"
_PART = r"[^/,;*]+"
_STORES = {
    "swift": r"(/PART){2,}",
    "s3": r"(/PART)*",
    "gs": r"(/PART)*",
    "tos": r"(/PART)+",
    "azure": r"(/PART)+",
}
_URL = "|".join(rf"{kind}://{_PART}{rest.replace('PART', _PART)}/*" for kind, rest in _STORES.items())
_SIZE = re.compile(r"\d+(\.\d+)?(T|Ti|TiB|G|Gi|GiB|M|Mi|MiB|K|Ki|KiB|B|m)?")
_CODES = re.compile(r"(\d+(-\d+)?)(,\d+(-\d+)?)*")
_SPAN = re.compile(r"\d+(us|ms|s|m|h|d)|P(\d+D)?(T(?=.)(\d+H)?(\d+M)?(\d+(\.\d+)?S)?)?")
_TOKEN = re.compile(r"\{\{(.*?)\}\}")
ACTIONS = ("COMPLETE", "FAIL", "RESCHEDULE")
HIGHEST = 255
"""Exit codes above it are OSMO's own."""

TOKENS = ("output", "workflow_id", "input:N", "host:TASK")
"""What OSMO puts in place of `{{...}}`."""


def _span(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{quote(value)} is no duration")
    if isinstance(value, str) and (not _SPAN.fullmatch(value) or value == "P"):
        raise ValueError(f"{quote(value)} is no duration; write a whole number with d, h, m or s, such as 8h")
    return value


def _size(value: str) -> str:
    if not _SIZE.fullmatch(value):
        raise ValueError(f"{quote(value)} is no size; write a number with Ki, Mi, Gi or Ti")
    return value


SCHEMES = "s3://, gs://, azure://, swift:// or tos://"


def is_url(value: str) -> bool:
    """Whether OSMO takes a text as the address of a storage."""
    return re.fullmatch(_URL, value) is not None


def _url(value: str) -> str:
    if not is_url(value):
        raise ValueError(f"{quote(value, 120)} is no storage; write {SCHEMES}")
    return value


def _regex(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"{quote(value)} is no regular expression: {error}") from None
    return value


Name = Annotated[str, pydantic.Field(pattern=f"^{_NAME}$")]
TaskName = Annotated[str, pydantic.Field(pattern=f"^{_NAME}(:{_NAME})?$")]
Span = Annotated[Any, pydantic.AfterValidator(_span)]
Size = Annotated[str, pydantic.AfterValidator(_size)]
Url = Annotated[str, pydantic.AfterValidator(_url)]
Regex = Annotated[str, pydantic.AfterValidator(_regex)]
Scalar = str | int | float | bool
Word = str | int | float
"""OSMO turns numbers into text where it wants text."""


class FromTask(Strict):
    """An input: the output of another task."""

    task: TaskName
    regex: Regex = ""


class FromUrl(Strict):
    """An input or an output: a folder in a storage."""

    url: Url
    regex: Regex = ""


def _kind(value: Any) -> str:
    given = value if isinstance(value, dict) else {}
    return "FromTask" if "task" in given else "FromUrl"


Input = Annotated[
    Annotated[FromTask, pydantic.Tag("FromTask")] | Annotated[FromUrl, pydantic.Tag("FromUrl")],
    pydantic.Discriminator(_kind),
]


class Checkpoint(Strict):
    """A folder that is uploaded while the task runs."""

    path: str
    url: Url
    frequency: Span
    regex: Regex = ""


class File(Strict):
    """A file that OSMO puts into the container."""

    path: str
    contents: str
    base64: bool = False

    @pydantic.field_validator("path")
    @classmethod
    def _place(cls, value: str) -> str:
        parts = [part for part in value.split("/") if part]
        if not parts or (parts[0] == "osmo" and not value.startswith("/osmo/data/output/")):
            raise ValueError(f"{quote(value)}: an empty path, or one in /osmo, is not allowed")
        return value


class Kpi(Strict):
    """A number that the task reports."""

    index: Word
    path: str


class Topology(Strict):
    """Which tasks should be near each other."""

    key: str
    group: str = "default"
    requirementType: Literal["required", "preferred"] = "required"


class Resource(Strict):
    """What a task needs of a node."""

    cpu: int | None = None
    gpu: int | None = None
    memory: Size | None = None
    storage: Size | None = None
    platform: str | None = None
    nodesExcluded: list[str] = pydantic.Field(default_factory=list)
    topology: list[Topology] = pydantic.Field(default_factory=list)


class Task(Strict):
    """A container."""

    name: Name
    image: str
    command: Annotated[list[Word], pydantic.Field(min_length=1)]
    args: list[Word] = pydantic.Field(default_factory=list)
    inputs: list[Input] = pydantic.Field(default_factory=list)
    outputs: list[FromUrl] = pydantic.Field(default_factory=list)
    kpis: list[Kpi] = pydantic.Field(default_factory=list)
    lead: bool = False
    environment: dict[str, Scalar] = pydantic.Field(default_factory=dict)
    files: list[File] = pydantic.Field(default_factory=list)
    privileged: bool = False
    hostNetwork: bool = False
    volumeMounts: list[str] = pydantic.Field(default_factory=list)
    credentials: dict[str, Scalar | dict[str, Scalar]] = pydantic.Field(default_factory=dict)
    downloadType: Literal["download"] | None = None
    cacheSize: Word | None = None
    exitActions: dict[str, Word] = pydantic.Field(default_factory=dict)
    checkpoint: list[Checkpoint] = pydantic.Field(default_factory=list)
    resource: str = "default"

    @pydantic.field_validator("name")
    @classmethod
    def _not_reserved(cls, value: str) -> str:
        if _fold(value[:63].rstrip("-_")) == "osmo-ctrl":
            raise ValueError("'osmo-ctrl' is a name of OSMO's own")
        return value

    @pydantic.field_validator("files")
    @classmethod
    def _paths(cls, value: list[File]) -> list[File]:
        paths = [file.path for file in value]
        for path in paths:
            if paths.count(path) > 1:
                raise ValueError(f"{quote(path)} occurs {paths.count(path)} times; a path is of one file")
        return value

    @pydantic.field_validator("exitActions")
    @classmethod
    def _actions(cls, value: dict[str, Word]) -> dict[str, Word]:
        taken: dict[int, str] = {}
        for action, codes in value.items():
            if action.upper() not in ACTIONS:
                raise ValueError(f"unknown action {quote(action)}; valid: COMPLETE, FAIL, RESCHEDULE")
            if isinstance(codes, float) or not _CODES.fullmatch(str(codes)):
                raise ValueError(f"{action}: {quote(codes)} are no exit codes; write 75 or 0,20-30")
            for part in str(codes).split(","):
                low, _, high = part.partition("-")
                if int(high or low) > HIGHEST:
                    raise ValueError(f"{action}: {part} is above {HIGHEST}, the highest code of a task")
                for code in range(int(low), int(high or low) + 1):
                    if code in taken:
                        raise ValueError(f"exit code {code} is of {taken[code]} and of {action}")
                    taken[code] = action
        return value


class Group(Strict):
    """Tasks that run at the same time."""

    name: Name
    barrier: bool = True
    ignoreNonleadStatus: bool = True
    tasks: Annotated[list[Task], pydantic.Field(min_length=1)]

    @pydantic.model_validator(mode="after")
    def _one_lead(self) -> Group:
        leads = sum(task.lead for task in self.tasks)
        if len(self.tasks) > 1 and leads != 1:
            raise ValueError(f"group {quote(self.name)} has {leads} tasks with lead: true, and must have one")
        return self


class Timeout(Strict):
    """How long a workflow may run and wait."""

    exec_timeout: Span | None = None
    queue_timeout: Span | None = None


class Workflow(Strict):
    """Tasks or groups of tasks."""

    name: Name
    pool: str = ""
    groups: list[Group] = pydantic.Field(default_factory=list)
    tasks: list[Task] = pydantic.Field(default_factory=list)
    resources: dict[str, Resource] = pydantic.Field(default_factory=lambda: {"default": Resource()})
    timeout: Timeout | None = None
    backend: str = ""

    @pydantic.model_validator(mode="after")
    def _rules(self) -> Workflow:
        if bool(self.groups) == bool(self.tasks):
            raise ValueError("state either tasks or groups" + (", not both" if self.groups else ""))
        _require_names(self)
        _require_order(self)
        for task in _tasks(self):
            if task.resource not in self.resources:
                raise ValueError(
                    f"task {quote(task.name)} wants resource {quote(task.resource)}, which is not stated"
                )
        return self


class Document(Strict):
    """A workflow's file."""

    version: Literal[2] = 2
    workflow: Workflow


def _fold(name: str) -> str:
    """Names that OSMO takes for the same."""
    return name.lower().replace("_", "-")


def _tasks(workflow: Workflow) -> Iterator[Task]:
    yield from workflow.tasks
    for group in workflow.groups:
        yield from group.tasks


def _require_names(workflow: Workflow) -> None:
    names = [task.name for task in workflow.tasks]
    for group in workflow.groups:
        names += [group.name, *(task.name for task in group.tasks)]
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(_fold(name), name)
        if names.count(name) > 1:
            raise ValueError(
                f"the name {quote(name)} occurs {names.count(name)} times among tasks and groups"
            )
        if other != name:
            raise ValueError(f"{quote(other)} and {quote(name)} are the same name to OSMO (case, - and _)")


def _require_order(workflow: Workflow) -> None:
    """A group's inputs come from groups before it."""
    groups = [(group.name, group.tasks) for group in workflow.groups]
    groups += [(task.name, [task]) for task in workflow.tasks]
    everywhere = {task.name for task in _tasks(workflow)}
    before: set[str] = set()
    for name, tasks in groups:
        for task in tasks:
            for source in task.inputs:
                if not isinstance(source, FromTask) or ":" in source.task:
                    continue
                if source.task not in everywhere:
                    raise ValueError(
                        f"task {quote(task.name)} wants the output of {quote(source.task)}, which is none"
                    )
                if source.task not in before:
                    raise ValueError(
                        f"{quote(name)} wants the output of {quote(source.task)}, which comes later"
                    )
        before |= {task.name for task in tasks}


def _require_tokens(text: str, document: Document) -> None:
    """Tokens without spaces that exist; anything else in {{ }} would be a variable of a template."""
    names = {task.name for task in _tasks(document.workflow)}
    for found in _TOKEN.finditer(text):
        token, line = found[1], text[: found.start()].count("\n") + 1
        plain = token in ("output", "workflow_id") or re.fullmatch(r"input:\d+", token)
        kind, _, name = token.partition(":")
        if plain or (kind in ("host", "input") and name in names):
            continue
        spaced = "; write it without spaces" if token != token.strip() and token.strip() in TOKENS else ""
        raise ConfigError(f"line {line}: unknown token {{{{{token}}}}}{spaced}; valid: {', '.join(TOKENS)}")
    for marker in ("{%", "{#"):
        if marker in text:
            line = text[: text.index(marker)].count("\n") + 1
            raise ConfigError(f"line {line}: {marker} begins a template, which is not checked here")


def require_workflow(text: str, where: str) -> None:
    """Check a file.

    Raises:
        ConfigError: OSMO would refuse it; names the first fault.
    """
    shown = quote(where, 120)
    try:
        content = yaml_file.parse(text)
    except ValueError as error:
        raise ConfigError(f"{shown}: {error}") from error
    document = checked(Document, content, shown)
    try:
        _require_tokens(text, document)
    except ConfigError as error:
        raise ConfigError(f"{shown}: {error}") from error
