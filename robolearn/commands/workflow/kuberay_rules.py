"""What a RayJob may hold: the fields of KubeRay's custom resource that robolearn writes, without any others.

After the CRD ray.io_rayjobs.yaml (github.com/ray-project/kuberay, ray-operator/config/crd/bases, version 1.7), whose
openAPIV3Schema has 1.4 MB, most of it pods. scripts/check_workflow.py checks files against the whole of it.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

import pydantic

from robolearn.commands.strict import Strict, checked
from robolearn.commands.workflow.steps import IMAGE
from robolearn.config import yaml_file
from robolearn.errors import ConfigError, quote

_QUANTITY = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
    r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)
_LABEL = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
_SUBDOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
LONGEST = 47
"""Most characters of a RayJob's name: KubeRay appends to it for the cluster and its pods, which may have 63."""


def _quantity(value: str | int) -> str | int:
    if isinstance(value, str) and not re.match(_QUANTITY, value):
        raise ValueError(f"{quote(value)} is no quantity; write 8, 500m or 64Gi")
    return value


def is_name(value: str) -> bool:
    """Whether Kubernetes takes a text as a resource's name: a DNS subdomain (RFC 1123)."""
    return len(value) <= 253 and re.fullmatch(_SUBDOMAIN, value) is not None


def _name(value: str) -> str:
    if not is_name(value):
        raise ValueError(f"{quote(value)} is no name: lower-case letters, digits, - and .")
    return value


def _image(value: str) -> str:
    if not IMAGE.match(value):
        raise ValueError(f"{quote(value, 120)} is no reference of an image; write [HOST[:PORT]/]NAME[:TAG]")
    return value


Name = Annotated[str, pydantic.AfterValidator(_name)]
Quantity = Annotated[str | int, pydantic.AfterValidator(_quantity)]
Label = Annotated[str, pydantic.Field(pattern=_LABEL)]
Count = Annotated[int, pydantic.Field(ge=0, lt=2**31)]
Positive = Annotated[int, pydantic.Field(ge=1, lt=2**31)]


class Metadata(Strict):
    """Name and labels."""

    name: Name
    namespace: str | None = None
    labels: dict[str, str] = pydantic.Field(default_factory=dict)
    annotations: dict[str, str] = pydantic.Field(default_factory=dict)


class Env(Strict):
    """An environment variable."""

    name: str
    value: str = ""


class Mount(Strict):
    """A volume in a container."""

    name: str
    mountPath: str
    readOnly: bool = False
    subPath: str = ""


class Claim(Strict):
    """A persistent volume claim."""

    claimName: Name
    readOnly: bool = False


class ConfigMapVolume(Strict):
    """The files of a ConfigMap."""

    name: Name
    defaultMode: Count | None = None
    optional: bool = False


class EmptyDir(Strict):
    """Scratch space; with medium Memory, shared memory."""

    medium: Literal["", "Memory"] = ""
    sizeLimit: Quantity | None = None


class Volume(Strict):
    """Where a pod's files come from."""

    name: Label
    persistentVolumeClaim: Claim | None = None
    configMap: ConfigMapVolume | None = None
    emptyDir: EmptyDir | None = None


class Resources(Strict):
    """What a container needs, and may use at most."""

    limits: dict[str, Quantity] = pydantic.Field(default_factory=dict)
    requests: dict[str, Quantity] = pydantic.Field(default_factory=dict)


class Container(Strict):
    """A container."""

    name: Label
    image: Annotated[str, pydantic.AfterValidator(_image)]
    command: list[str] = pydantic.Field(default_factory=list)
    args: list[str] = pydantic.Field(default_factory=list)
    env: list[Env] = pydantic.Field(default_factory=list)
    resources: Resources = pydantic.Field(default_factory=Resources)
    volumeMounts: list[Mount] = pydantic.Field(default_factory=list)
    workingDir: str = ""


class Toleration(Strict):
    """A taint of nodes that a pod accepts."""

    key: str = ""
    operator: Literal["Exists", "Equal"] = "Equal"
    value: str = ""
    effect: str = ""


class Pod(Strict):
    """A pod."""

    containers: Annotated[list[Container], pydantic.Field(min_length=1)]
    volumes: list[Volume] = pydantic.Field(default_factory=list)
    nodeSelector: dict[str, str] = pydantic.Field(default_factory=dict)
    tolerations: list[Toleration] = pydantic.Field(default_factory=list)
    serviceAccountName: str = ""
    terminationGracePeriodSeconds: Count | None = None
    restartPolicy: Literal["Always", "OnFailure", "Never"] | None = None

    @pydantic.model_validator(mode="after")
    def _mounts(self) -> Pod:
        volumes = [volume.name for volume in self.volumes]
        for name in volumes:
            if volumes.count(name) > 1:
                raise ValueError(f"volume {quote(name)} occurs {volumes.count(name)} times")
        for container in self.containers:
            for mount in container.volumeMounts:
                if mount.name not in volumes:
                    raise ValueError(
                        f"container {quote(container.name)} mounts {quote(mount.name)}, which is no volume"
                    )
        return self


class Template(Strict):
    """How pods are made."""

    metadata: Metadata | None = None
    spec: Pod


class Head(Strict):
    """The pod that schedules."""

    template: Template
    rayStartParams: dict[str, str] = pydantic.Field(default_factory=dict)
    serviceType: Literal["ClusterIP", "NodePort", "LoadBalancer"] | None = None
    labels: dict[str, str] = pydantic.Field(default_factory=dict)
    resources: dict[str, str] = pydantic.Field(default_factory=dict)


class Workers(Strict):
    """Pods that are alike."""

    groupName: Label
    replicas: Count = 0
    minReplicas: Count
    maxReplicas: Count
    numOfHosts: Positive = 1
    rayStartParams: dict[str, str] = pydantic.Field(default_factory=dict)
    labels: dict[str, str] = pydantic.Field(default_factory=dict)
    resources: dict[str, str] = pydantic.Field(default_factory=dict)
    template: Template

    @pydantic.model_validator(mode="after")
    def _range(self) -> Workers:
        if not self.minReplicas <= self.replicas <= self.maxReplicas:
            raise ValueError(
                f"group {quote(self.groupName)}: replicas {self.replicas} are not within minReplicas "
                f"{self.minReplicas} and maxReplicas {self.maxReplicas}"
            )
        return self


class Auth(Strict):
    """Who may use the cluster."""

    mode: Literal["disabled", "token"]
    secretName: str = ""


class Cluster(Strict):
    """A Ray cluster."""

    rayVersion: Annotated[str, pydantic.Field(pattern=r"^\d+\.\d+\.\d+")] = "2.60.0"
    authOptions: Auth | None = None
    headGroupSpec: Head
    workerGroupSpecs: list[Workers] = pydantic.Field(default_factory=list)

    @pydantic.model_validator(mode="after")
    def _groups(self) -> Cluster:
        names = [group.groupName for group in self.workerGroupSpecs]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"group {quote(name)} occurs {names.count(name)} times")
        return self


class JobSpec(Strict):
    """What is run on which cluster."""

    entrypoint: Annotated[str, pydantic.Field(min_length=1)]
    entrypointNumCpus: float = 0.0
    entrypointNumGpus: float = 0.0
    entrypointResources: str = ""
    rayClusterSpec: Cluster
    submissionMode: Literal["K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"] = "K8sJobMode"
    shutdownAfterJobFinishes: bool = False
    ttlSecondsAfterFinished: Count = 0
    activeDeadlineSeconds: Positive | None = None
    backoffLimit: Count = 0
    runtimeEnvYAML: str = ""
    suspend: bool = False

    @pydantic.model_validator(mode="after")
    def _shutdown(self) -> JobSpec:
        if self.ttlSecondsAfterFinished and not self.shutdownAfterJobFinishes:
            raise ValueError("ttlSecondsAfterFinished needs shutdownAfterJobFinishes: true")
        return self


class RayJob(Strict):
    """A job on a Ray cluster of its own."""

    apiVersion: Literal["ray.io/v1"]
    kind: Literal["RayJob"]
    metadata: Metadata
    spec: JobSpec

    @pydantic.model_validator(mode="after")
    def _length(self) -> RayJob:
        if len(self.metadata.name) > LONGEST:
            raise ValueError(f"metadata.name: {quote(self.metadata.name)} has more than {LONGEST} characters")
        return self


class ConfigMap(Strict):
    """Small files."""

    apiVersion: Literal["v1"]
    kind: Literal["ConfigMap"]
    metadata: Metadata
    data: dict[str, str]


def require_manifest(text: str, where: str) -> None:
    """Check a file with one resource.

    Raises:
        ConfigError: Kubernetes would refuse it, or it has a field that is not known here; names the first fault.
    """
    shown = quote(where, 120)
    try:
        content = yaml_file.parse(text)
    except ValueError as error:
        raise ConfigError(f"{shown}: {error}") from error
    kind = content.get("kind") if isinstance(content, dict) else None
    if kind == "ConfigMap":
        checked(ConfigMap, content, shown)
    else:
        checked(RayJob, content, shown)
